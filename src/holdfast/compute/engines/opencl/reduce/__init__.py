"""Reductions, scans, sorting and softmax.

reduction      reductions of expressions over any dimensions
codegen        source of reduction kernels
reduce         sum, prod, mean, max, all, any …
moments        var, std, logsumexp
norm           vector norms and distances
cumulate       cumsum, cumprod, cummax …
row_kernels    softmax and normalization of packed rows
softmax        softmax, log_softmax and gradients
row_sort       stable sort of rows
sorting        sort, topk, median, mode, searchsorted, isin
"""

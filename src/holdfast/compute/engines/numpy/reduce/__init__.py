"""Kernels that reduce or scan along dimensions.

Floats narrower than float32 are computed in float32.

    reduce     sums, products, minima and maxima, any and all, mean and variance
    norm       vector norms
    softmax    softmax and log_softmax, forward and backward
    cumulate   cumsum, cumprod, cummax, logcumsumexp, segment_reduce
    sorting    sort, topk, kthvalue, median, mode
    counting   histograms, bincount, unique, searchsorted
    axes       shared helpers: dimensions, exact sums, blocks that stay in the cache
    c_rows     C loops for activations, softmax and normalization in float32
"""

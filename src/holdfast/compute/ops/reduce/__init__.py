"""Reductions, and what depends on order or count.

Modules:

    counting        histograms, unique, searchsorted, covariance
    cumulate        cumulative sums and products, segments, trapezoid
    norm            vector and matrix norms
    reduce          sums, products, extremes, moments, any and all
    softmax         softmax and log_softmax
    sorting         sort, topk, median, mode, quantiles
"""

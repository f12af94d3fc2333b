"""Kernels that make, copy and join arrays.

    factory    zeros, full, arange, linspace, eye …; copies and casts
    assemble   cat, im2col and col2im, the gradient of unfold
    padding    reflection and replication padding

Views and what is made of them have one kernel for all engines: `engines.layout`.
"""

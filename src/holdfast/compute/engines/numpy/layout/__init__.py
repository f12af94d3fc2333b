"""Kernels that make, view, copy and join arrays.

Views share memory with their argument; all other results have memory of their own.

    factory       zeros, full, arange, linspace, eye …; copies and casts
    views         views: reshape, transpose, slices, as_strided, split …
    view_copies   `_copy`, `_scatter` and backward ops of views; sizes and strides
    assemble      cat, stack, repeat, flip, roll
    padding       constant, reflection and replication padding
    patches       im2col and col2im, pixel and channel shuffles
"""

"""Kernels that create, view, copy and rearrange arrays without computing.

views           views; copies and fills for any dtype
view_copies     `_copy`, `_scatter` and gradients of views; tensor metadata
strided_copy    copies between strided arrays, with casts
factory         zeros, full, arange, eye, tril …
assemble        cat, stack, repeat, flip, roll, im2col, pixel_shuffle …
padding         constant, reflection and replication padding
"""

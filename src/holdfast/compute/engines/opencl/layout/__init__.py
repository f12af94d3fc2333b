"""Kernels that create, copy and rearrange arrays without computing.

views           arrays as bits; copies, fills and views for any dtype
strided_copy    copies between strided arrays, with casts
factory         zeros, full, arange, eye, tril …
assemble        cat, im2col and col2im, the gradient of unfold
padding         reflection and replication padding

Views and what is made of them have one kernel for all engines: `engines.layout`.
"""

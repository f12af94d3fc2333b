"""Kernels that compute each element by itself.

Large float32 arrays go through `blocked` or the C loops, the rest through NumPy's ufuncs.

    pointwise         arithmetic, powers, rounding, most of NumPy's ufuncs
    comparison        comparisons, logic, where, clamp
    complex_numbers   real and imaginary parts, angle, polar
    activation        relu, gelu, silu, softplus … and their backward ops
    gates             glu, and rrelu, whose slopes are random
    special           special functions, from SciPy
    polynomials       Chebyshev, Hermite, Laguerre and Legendre polynomials
    quantize          fake quantization, exact products and convolutions of int8
    blocked           loop over blocks that stay in the cache; erf, sigmoid, log1p of a block
    c_chains          fused chains of ops in one C loop
"""

"""Ops on each element.

Modules:

    activation       activations and their backward ops
    comparison       comparisons, logic, bits, where, clamp
    complex_numbers  real and imaginary parts, conjugates, angles
    pointwise        arithmetic, powers, exponentials, trigonometry, rounding
    quantize         fake quantization, int8 products
    special          error functions, gamma, zeta, Bessel, polynomials
"""

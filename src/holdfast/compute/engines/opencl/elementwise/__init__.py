"""Pointwise ops: C expressions, and the kernels generated from them.

codegen            OpenCL C source of a kernel, from what it reads, computes and writes
strided_kernels    kernels over strided arrays: generate, prepare, launch
expressions        the table of expressions by op, and calling an op
arithmetic         expressions: sums, products, powers, trigonometry, rounding
comparison         expressions: comparisons, bits, clamp, where
activation         expressions: activations and their gradients
special            expressions: error and gamma functions, logit, entropy
pointwise          kernels whose arguments are not promoted to one dtype
complex_numbers    real and imaginary parts
fused_chains       a recorded chain of ops as one kernel
"""

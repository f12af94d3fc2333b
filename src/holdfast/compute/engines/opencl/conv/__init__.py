"""Convolution, pooling and resampling.

convolution      the ops: direct, as im2col, the gradient of the weight
conv_case        the arrays and the window of one convolution
conv_implicit    implicit GEMM convolution
pooling          average and max pooling
resample         interpolation and grid sampling; weighted sums along dimensions
"""

"""Convolution, pooling and resampling.

convolution      the ops: argument checks, forward and gradients
conv_case        the arrays and the window of one convolution
conv_im2col      direct and im2col convolution, the gradient of the weight
conv_implicit    implicit GEMM convolution
pooling          average and max pooling
resample         interpolation and grid sampling; weighted sums along dimensions
"""

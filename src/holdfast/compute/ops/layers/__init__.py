"""Ops behind neural-network layers.

Modules:

    attention    scaled dot-product attention
    convolution  convolutions and transposed convolutions
    dropout      dropout of elements and of features
    grid_sample  sampling at given points, affine grids
    loss         losses: elementwise, against class indices, CTC
    normalize    layer, group, RMS, batch and instance normalization
    pooling      max and average pooling
    recurrent    one recurrent layer over all time steps as one op, or step by step
    resample     upsampling: nearest, linear, cubic
    windows      sizes of sliding windows, for pooling and patches
"""

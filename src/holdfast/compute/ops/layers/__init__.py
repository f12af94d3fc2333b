"""Ops behind neural-network layers.

Modules:

    attention        scaled dot-product attention
    batchnorm        batch normalization
    convolution      convolutions and transposed convolutions
    ctc              CTC loss
    dropout          dropout of elements and of features
    grid_sample      sampling at given points, affine grids
    loss             elementwise losses
    loss_classes     losses against class indices
    normalize        layer, group, RMS and instance normalization
    pooling          max and average pooling
    recurrent        one recurrent layer over all time steps as one op
    recurrent_steps  the same step by step, for engines without a kernel
    resample         upsampling: nearest, linear, cubic
    windows          sizes of sliding windows, for pooling and patches
"""

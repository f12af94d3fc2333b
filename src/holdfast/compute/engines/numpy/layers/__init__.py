"""Kernels of neural network layers and losses.

Floats narrower than float32 are computed in float32.

    convolution    convolution ops, by `conv_direct` or with NumPy alone
    conv_direct    convolution by a C loop, float32
    attention      scaled dot product attention in blocks of queries
    normalize      layer, group, RMS and batch norm
    pooling        average and max pooling, adaptive and fractional too, and unpooling
    resample       nearest, linear, cubic and antialiased resizing
    grid_sample    sampling at the points of a grid; affine grids
    recurrent      LSTM, GRU and RNN layers
    dropout        dropout
    loss           losses: mse, huber, binary cross entropy, nll, margins …
    ctc            connectionist temporal classification loss
"""

"""Kernels of neural network layers and losses.

Floats narrower than float32 are computed in float32.

    convolution    convolution ops: checks arguments, picks one of the two ways below
    conv_direct    convolution by a C loop, float32
    conv_im2col    convolution with NumPy alone, any dtype; gradient of the weight
    attention      scaled dot product attention in blocks of queries
    normalize      layer, group and RMS norm
    batchnorm      batch norm and its running statistics
    pooling        average pooling, regular and adaptive
    max_pooling    max pooling, fractional and adaptive too, and unpooling
    resample       nearest, linear, cubic and antialiased resizing
    grid_sample    sampling at the points of a grid; affine grids
    recurrent      LSTM, GRU and RNN layers
    dropout        dropout
    loss           elementwise losses: mse, huber, binary cross entropy …
    loss_classes   losses whose target is a class: nll, multi margin …
    ctc            connectionist temporal classification loss
"""

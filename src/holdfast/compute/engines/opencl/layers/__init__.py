"""Attention, normalization and losses.

attention    scaled dot product attention and its gradient
normalize    layer, group and RMS norm
batchnorm    batch norm
loss         elementwise losses, cross entropy, nll
"""

"""Attention, normalization and losses.

attention    scaled dot product attention and its gradient
normalize    layer, group, RMS and batch norm
loss         elementwise losses, cross entropy, nll
"""

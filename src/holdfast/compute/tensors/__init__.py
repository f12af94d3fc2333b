"""Tensors that need no torch: `CustomTensor`, and everything that makes, indexes or changes one.

Modules:

    creation        tensor, empty, zeros, randn, from_numpy, from_dlpack …
    custom_tensor   CustomTensor and AutogradTensor; runs ops on tensors and records them
    device          CustomDevice: which engine computes, on which index
    host_data       NumPy arrays from lists, scalars, arrays and torch tensors
    indexing        tensor[index] and tensor[index] = value
    inplace         in-place ops and out=
    methods         conversions, views, and a method for every op
    operators       Python's operators
"""

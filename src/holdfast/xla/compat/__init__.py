"""Corrections that make torchax work with the installed torch and with Holdfast.

torch behaves as before for all tensors but torchax's. Each correction has its reason beside it, and
tests/xla/test_compat has a probe for each that fails once it is no longer needed.

    convolution     grouped convolutions, which XLA splits wrongly
    dtypes          promotion with tensors without dimensions; float32 inside, rounded once
    environment     computes known values at once, takes CPU tensors as constants
    experts         mixture of experts in fixed shapes
    flex            flex_attention with torchax's tensors
    importing       imports torchax although torch has dropped overloads it names
    inplace         in-place operations, also on views
    tensors         methods of torchax's tensors and views
    vmap            torch.vmap with torchax's tensors
    writing         writes into a part of an array, in a form that XLA splits correctly
"""

from __future__ import annotations

from holdfast.xla.compat.importing import device_name, torchax

__all__ = ["device_name", "torchax"]

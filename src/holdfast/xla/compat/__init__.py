"""torchax, made to work with the torch and the Holdfast that are here.

    importing     it imports although torch has dropped overloads and the device has a name already
    tensors       what its tensors and views do wrong
    environment   an environment that computes known values at once, takes CPU tensors as constants
    inplace       operations in place, also on views
    writing       into a part of an array, in a form that XLA splits rightly
    promotion     tensors without axes, which do not decide a format
    rounding      operators that torch computes in float32 and rounds once
    flex, vmap    flex_attention and torch.vmap with torchax's tensors
    convolution   convolutions of several groups, which XLA splits wrongly
    experts       experts chosen token by token, in fixed shapes
Promise: torch does what it did for all tensors but torchax's. Each mend stands beside its reason,
and tests/xla/test_compat holds a probe for each that fails once nobody needs it any longer.
"""

from __future__ import annotations

from holdfast.xla.compat.importing import device_name, torchax

__all__ = ["device_name", "torchax"]

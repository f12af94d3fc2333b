"""Attention on XLA with torch's meaning: Splash on TPU, cuDNN on NVIDIA, plain XLA elsewhere.

`attention` and `scaled_dot_product_attention` take JAX arrays in torch's layout
[batch, heads, length, dim]; `choose` says which engine computes, and why.
"""

from holdfast.xla.attention.calling import attention, scaled_dot_product_attention
from holdfast.xla.attention.choosing import ENGINES, Choice, Form, choose, obstacle

__all__ = [
    "ENGINES",
    "Choice",
    "Form",
    "attention",
    "choose",
    "obstacle",
    "scaled_dot_product_attention",
]

"""Attention on XLA with torch's meaning: Splash on TPU, cuDNN on NVIDIA, plain XLA elsewhere.

`attention` and `scaled_dot_product_attention` take JAX arrays in torch's layout
[batch, heads, length, dim]; `choose` names the engine that computes, and why.

    calling         from torch's arguments to an engine and back
    choosing        which engine computes, and why
    cudnn           cuDNN's kernel, on NVIDIA
    plain           XLA's own operations, everywhere
    problem         arguments, checked and in one form
    splash          the TPU kernel that comes with JAX
    splitting       a fused kernel over several devices
"""

from holdfast.xla.attention.calling import attention, scaled_dot_product_attention
from holdfast.xla.attention.choosing import ENGINES, EngineChoice, Form, choose, obstacle

__all__ = [
    "ENGINES",
    "EngineChoice",
    "Form",
    "attention",
    "choose",
    "obstacle",
    "scaled_dot_product_attention",
]

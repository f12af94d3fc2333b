"""Tiny models of diffusers' classes: seconds instead of gigabytes.

What `holdfast port check` and the tests make and run. An entry is a configuration and one call, as
the class's pipeline makes it, written in the words of `spec`.
"""

from __future__ import annotations

from holdfast.xla.tiny.making import Made, class_of, make, tiny_models

__all__ = ["Made", "class_of", "make", "tiny_models"]

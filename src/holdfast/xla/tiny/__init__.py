"""Tiny models of diffusers' and transformers' classes: seconds instead of gigabytes.

`holdfast port check` and the tests make and run them. An entry is a configuration and one call, as
the class's pipeline makes it. To add one, add it to the JSON file of its kind: `audio`,
`autoencoders`, `encoders` (of text), `image_transformers`, `unets` or `video_transformers`.

    making          make a model with random weights, and its inputs
    spec            the classes that describe a tiny model; reads the JSON files
"""

from __future__ import annotations

from holdfast.xla.tiny.making import Made, class_of, make
from holdfast.xla.tiny.spec import Tiny, tiny_models

__all__ = ["Made", "Tiny", "class_of", "make", "tiny_models"]

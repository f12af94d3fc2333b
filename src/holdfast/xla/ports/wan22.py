"""Wan 2.2 A14B: a transformer for strong noise, one for weak; model_index.json says from where."""

from __future__ import annotations

from dataclasses import replace

from holdfast.xla.ports import wan21

PORT = replace(
    wan21.PORT,
    name="wan22",
    parts={"transformer_2": wan21.PORT, **wan21.PORT.parts},
)

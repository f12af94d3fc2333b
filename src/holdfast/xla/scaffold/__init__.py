"""A new port as a folder for ComfyUI: what `holdfast port new` writes."""

from __future__ import annotations

from holdfast.xla.scaffold.writing import Pack, new

__all__ = ["Pack", "new"]

"""A new port as a folder for ComfyUI: what `holdfast port new` writes.

classes         find the class that a port is of
names           names of the folder, node classes and category
rendering       fill in the templates
templates       the files of a pack
writing         write them, whole or not at all
"""

from __future__ import annotations

from holdfast.xla.scaffold.writing import Pack, new

__all__ = ["Pack", "new"]

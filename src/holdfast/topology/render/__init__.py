"""Pictures of a machine: a tree for the terminal, an SVG for everything else."""

from holdfast.topology.render.svg import svg
from holdfast.topology.render.tree import tree

__all__ = ["svg", "tree"]

"""A machine as a tree for the terminal, or as an SVG picture.

The pictures need no other file, and the tree without colours is plain text.

    tree            the tree
    svg             layout of the picture
    matrix          the table of bandwidths in the picture
    canvas          SVG shapes
    words           phrases about parts of a machine
"""

from holdfast.topology.render.svg import svg
from holdfast.topology.render.tree import tree

__all__ = ["svg", "tree"]

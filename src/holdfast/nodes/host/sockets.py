"""The socket that takes and gives anything.

ComfyUI compares the types of two linked sockets with `!=` and lets those through that are not
unequal; its own nodes have such a type, and so has this file, to be there without ComfyUI too.
"""

from __future__ import annotations


class Anything(str):
    """A type of socket that is unequal to none."""

    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    __hash__ = str.__hash__


ANYTHING = Anything("*")

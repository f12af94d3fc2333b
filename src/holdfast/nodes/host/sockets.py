"""The socket type that matches any other.

ComfyUI compares the types of linked sockets with `!=`. Its own nodes have such a type too; this one
works without ComfyUI.
"""

from __future__ import annotations


class Anything(str):
    """A socket type that is never unequal to another."""

    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    __hash__ = str.__hash__


ANYTHING = Anything("*")

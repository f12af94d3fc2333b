"""Where the kernels of an engine come together, by the op that each computes.

Covers: the decorator, and refusing a second kernel for an op.
Leaves to others: what a kernel gets and gives (each engine).
Promise: a name that is taken raises, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.base.errors import AlreadyRegistered

F = TypeVar("F", bound=Callable[..., Any])


class Kernels(dict[str, Any]):
    """The kernels of one engine; `made` turns an op's name and a function into what is kept."""

    def __init__(
        self, engine: str, made: Callable[[str, Callable[..., Any]], Any] = lambda _, given: given
    ) -> None:
        super().__init__()
        self._engine = engine
        self._made = made

    def kernel(self, *names: str) -> Callable[[F], F]:
        """A decorator: the function below computes these ops."""

        def decorate(function: F) -> F:
            for name in names:
                self.register(name, function)
            return function

        return decorate

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Let `function` compute the op `name`. Raises AlreadyRegistered."""
        if name in self:
            raise AlreadyRegistered(f"the {self._engine} engine has two kernels for {name}")
        self[name] = self._made(name, function)

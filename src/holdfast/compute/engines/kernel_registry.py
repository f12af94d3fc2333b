"""The kernels of one engine, by the op that each computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.base.errors import AlreadyRegistered

F = TypeVar("F", bound=Callable[..., Any])


class Kernels(dict[str, Any]):
    """Op name -> kernel; what is stored is `wrap(op name, function)`."""

    def __init__(
        self,
        engine: str,
        wrap: Callable[[str, Callable[..., Any]], Any] = lambda _, function: function,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._wrap = wrap

    def kernel(self, *names: str) -> Callable[[F], F]:
        """Decorate the function that computes these ops."""

        def decorate(function: F) -> F:
            for name in names:
                self.register(name, function)
            return function

        return decorate

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Let `function` compute the op `name`. Raises AlreadyRegistered and changes nothing."""
        if name in self:
            raise AlreadyRegistered(f"the {self._engine} engine has two kernels for {name}")
        self[name] = self._wrap(name, function)

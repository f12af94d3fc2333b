"""One compiled block for a list of equal blocks.

A transformer of forty equal blocks is traced and compiled forty times, or once with the weights of
all blocks stacked and `jax.lax.scan` over them: the same result, in a fraction of the time. A list
whose blocks differ is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from torch import nn

from holdfast.base.errors import BadInput
from holdfast.residency.predict.shadow import digest_modules, shadow
from holdfast.xla.compat.environment import Tensor

# A list of blocks by its path, and the arguments that go from one block to the next, in the order
# in which a block returns them.
Scan = Mapping[str, tuple[str, ...]]


def blocks_of(module: nn.Module, path: str) -> list[nn.Module]:
    """The blocks of a list that can be scanned. Raises BadInput."""
    try:
        found = module.get_submodule(path)
    except AttributeError:
        found = None
    if not isinstance(found, nn.ModuleList) or not len(found):
        lists = [name for name, one in module.named_modules() if isinstance(one, nn.ModuleList)]
        raise BadInput(
            f"cannot scan {path!r} of {type(module).__name__}: it is no list of modules",
            expected=f"one of {', '.join(lists) or 'none: this module has no lists'}",
        )
    blocks = list(found)
    kinds = {digest_modules(block)[""] for block in blocks}
    if len(kinds) > 1:
        raise BadInput(
            f"cannot scan {path!r} of {type(module).__name__}: its {len(blocks)} blocks are of "
            f"{len(kinds)} kinds",
            expected="blocks of one class with weights of the same shapes",
            hint="leave it out of `scan`",
        )
    return blocks


def require_carried(module: nn.Module, path: str, carried: Any) -> None:
    """Raise BadInput unless the blocks take all the carried arguments."""
    block = module.get_submodule(f"{path}.0")
    takes = inspect.signature(block.forward).parameters
    if isinstance(carried, tuple | list) and carried and all(name in takes for name in carried):
        return
    raise BadInput(
        f"cannot scan {path!r} of {type(module).__name__}: {carried!r} cannot go from one "
        f"{type(block).__name__} to the next",
        expected=f"a tuple of some of {', '.join(takes)}, in the order in which it returns them",
    )


class Scanned(nn.Module):
    """Replaces a list of blocks: one call runs all of them."""

    def __init__(
        self,
        block: nn.Module,
        names: Mapping[int, str],
        stacked: Mapping[str, jax.Array],
        carried: tuple[str, ...],
        environment: Any,
    ) -> None:
        super().__init__()
        # Not as children: the model around it must not find their weights.
        self.__dict__["_block"] = block
        self._names, self._stacked, self._carried = names, dict(stacked), carried
        self._environment = environment

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        block = self.__dict__["_block"]
        given = inspect.signature(block.forward).bind(*args, **kwargs)
        environment = self._environment

        def one(carry: tuple[jax.Array, ...], weights: Mapping[str, jax.Array]) -> Any:
            for name, value in zip(self._carried, carry, strict=True):
                given.arguments[name] = Tensor(value, environment)
            with environment.override_property(prng=jax.random.key(0)):
                answer = self._with_weights(weights)(*given.args, **given.kwargs)
            found = answer if isinstance(answer, tuple | list) else (answer,)
            return tuple(environment.t2j_iso(found[: len(carry)])), None

        first = environment.t2j_iso(tuple(given.arguments[name] for name in self._carried))
        last, _ = jax.lax.scan(one, first, self._stacked)
        answer = environment.j2t_iso(last)
        return answer if len(answer) > 1 else answer[0]

    def _with_weights(self, weights: Mapping[str, jax.Array]) -> Callable[..., Any]:
        def tensor(_: str, old: Any) -> Any:
            name = self._names.get(id(old))
            return old if name is None else Tensor(weights[name], self._environment)

        return shadow(self.__dict__["_block"], tensor)

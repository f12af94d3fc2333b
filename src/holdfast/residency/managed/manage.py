"""`manage` and `unmanage`: put a module under a budget, and take it out again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from holdfast.base.announce import offer_once
from holdfast.base.errors import BadInput, Misuse
from holdfast.base.units import parse_bytes
from holdfast.residency.carriers import carrier_for
from holdfast.residency.managed.group import Group
from holdfast.residency.managed.managed import ENTRIES, Managed
from holdfast.residency.managed.module_hooks import managed_of
from holdfast.residency.stream.weights import Payloads


def manage(
    module: nn.Module,
    budget: str | int | None = None,
    device: Any = "cuda",
    *,
    keep_bytes: int | None = None,
    pack: bool | str = "auto",
    group: Group | None = None,
    entries: Sequence[str] = ENTRIES,
    bring_inputs: bool = True,
    payloads: Payloads | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Managed:
    """Run `module` on `device` with at most `budget` of its memory, activations included.

        managed = residency.manage(transformer, budget="6GB", device="cuda")
        transformer(**inputs)              # as before
        residency.unmanage(transformer)    # as it was

    The first pass finds the order of the weights; from the second on, those that do not fit come
    over the link while the layers before them compute. `pack` sends bf16 and fp16 weights packed
    without loss: "auto" does where not everything fits. `keep_bytes` says how much of the weights
    stays, whatever the budget. `group` shares one budget among several modules. Inputs on the host
    are brought to the device, unless `bring_inputs` is False. `payloads` (`Loaded.packed`) are
    parameters that were read packed, and stay so. `progress` is called with bytes done and in all
    while weights are prepared.
    Raises BadInput, OutOfMemory, or whatever `progress` raises; the module is whole then.
    """
    offer_once()
    if not isinstance(module, nn.Module):
        raise BadInput(f"cannot manage a {type(module).__name__}", expected="a torch.nn.Module")
    if managed_of(module) is not None:
        raise Misuse(
            f"{type(module).__name__} is managed already",
            expected="a module that is not managed",
            hint="managed.set_budget(…) to change its budget, or residency.unmanage(module) first",
        )
    _refuse_shared(module)
    if pack not in ("auto", True, False):
        raise BadInput(f"cannot use pack={pack!r}", expected='"auto", True or False')
    if group is None:
        limit = None if budget is None else parse_bytes(budget)
        group = Group(carrier_for(device), limit)
    managed = Managed(
        module,
        group,
        keep_bytes=keep_bytes,
        payloads=payloads,
        entries=entries,
        bring_inputs=bring_inputs,
        progress=progress,
    )
    managed.packed = _worth_packing(managed, group) if pack == "auto" else bool(pack)
    try:
        group.join(managed)
        managed.take()
        _everyone.add(managed)
    except BaseException:
        managed.release()
        raise
    return managed


_everyone: weakref.WeakSet[Managed] = weakref.WeakSet()


def everyone() -> list[Managed]:
    """All modules of this process that are managed now. Any thread may call this."""
    while True:
        try:
            listed = list(_everyone)
        except RuntimeError:  # one was added meanwhile
            continue
        return [one for one in listed if one in one.group.members]


def _refuse_shared(module: nn.Module) -> None:
    """Two that move the same weights would take them away from each other."""
    mine = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for other in list(_everyone):
        theirs = (*other.module.parameters(), *other.module.buffers())
        if managed_of(other.module) is other and any(id(tensor) in mine for tensor in theirs):
            raise Misuse(
                f"parts of {type(module).__name__} are managed already, by {other.name}",
                expected="weights that are not managed",
                hint="manage the outer module alone, or residency.unmanage the other first",
            )


def unmanage(module: nn.Module) -> None:
    """Stop managing a module, if it is managed: its weights get their own memory again."""
    managed = managed_of(module)
    if managed is not None:
        managed.release()


def _worth_packing(managed: Managed, group: Group) -> bool:
    """Whether something will have to be streamed."""
    total = sum(p.numel() * p.element_size() for p in managed.module.parameters())
    room = group.room_bytes if managed.memory.keep_bytes is None else managed.memory.keep_bytes
    if group.weights_bytes is not None:
        room = min(room, group.weights_bytes)
    return total > room

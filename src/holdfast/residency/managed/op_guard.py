"""Watches every operation of a pass: brings the weights it uses, repeats it if memory ran out.

Only single operations of torch itself are repeated, and only after everything they may have changed
was restored: random generators, and tensors they write to.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.base.errors import OutOfMemory
from holdfast.residency.predict.dry_run import tensors_in
from holdfast.residency.stream.slabs import unwatched

# Arguments that an operation writes to although its schema does not say so.
_HIDDEN_WRITES = {
    "native_batch_norm": ("running_mean", "running_var"),
    "cudnn_batch_norm": ("running_mean", "running_var"),
    "miopen_batch_norm": ("running_mean", "running_var"),
    "rrelu_with_noise": ("noise",),
}
_FULL = (torch.OutOfMemoryError, OutOfMemory)
# Library operations that use another algorithm, with other bits, if memory is short.
_CHOOSING = ("convolution", "convolution_overrideable", "cudnn_convolution", "miopen_convolution")


class Watched(Protocol):
    """A managed module for the guard; `Layers` describes the members."""

    is_moving_weights: bool

    def bring(self, weight: int) -> None: ...
    def make_room(self, used: Sequence[torch.Tensor]) -> bool: ...
    def make_room_ahead(self, used: Sequence[torch.Tensor], key: Hashable) -> None: ...
    def note_workspace(self, key: Hashable, result: Any) -> None: ...
    def refuse(self, full: BaseException) -> BaseException: ...
    def note_values(self, is_shape: bool) -> None: ...
    def note_repeat(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Kind:
    """What an operation's schema implies for repeating it."""

    name: str
    is_trusted: bool  # torch's own, so its schema is complete
    is_seeded: bool
    is_pointwise: bool
    reads_values: bool
    makes_shapes: bool
    writes: tuple[tuple[int, str], ...]  # position and name


@functools.cache
def _kind(func: Any) -> _Kind:
    schema = func._schema
    name = schema.name.partition("::")[2]
    hidden = _HIDDEN_WRITES.get(name, ())
    writes = tuple(
        (at, one.name)
        for at, one in enumerate(schema.arguments)
        if one.name in hidden or (one.alias_info is not None and one.alias_info.is_write)
    )
    tags = func.tags
    return _Kind(
        name=name,
        is_trusted=func.namespace in ("aten", "prims"),
        is_seeded=torch.Tag.nondeterministic_seeded in tags,
        is_pointwise=torch.Tag.pointwise in tags or name in ("copy_", "fill_", "zero_"),
        reads_values=torch.Tag.data_dependent_output in tags,
        makes_shapes=torch.Tag.dynamic_output_shape in tags,
        writes=writes,
    )


class Guard(TorchDispatchMode):
    """Sees every operation of a pass, below torch's functions: a function mode changes some."""

    supports_higher_order_operators = True

    def __init__(self, watched: Watched, weight_of: dict[int, int]) -> None:
        super().__init__()
        self._watched, self._weight_of = watched, weight_of

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code stays compiled; its results would differ otherwise."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watched = self._watched
        if watched.is_moving_weights:
            return func(*args, **kwargs)
        used = tensors_in(args, kwargs)
        self._bring(used)
        if not isinstance(func, torch._ops.OpOverload):  # it calls user code
            return func(*args, **kwargs)
        kind = _kind(func)
        if kind.reads_values or kind.makes_shapes:
            watched.note_values(kind.makes_shapes)
        key = None
        if kind.name in _CHOOSING:  # by these properties a library chooses its algorithm
            tensors = tuple((x.dtype, tuple(x.shape), x.stride()) for x in used)
            key = kind.name, tensors, repr([x for x in args if not isinstance(x, torch.Tensor)])
            watched.make_room_ahead(used, key)
        before = _Before(kind, used, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except _FULL as exc:
            full: BaseException = exc.with_traceback(None)
        else:
            if key is not None:
                watched.note_workspace(key, result)
            return result
        while before.is_known and watched.make_room(used):
            before.bring_back()
            self._bring(used)
            watched.note_repeat(kind.name)
            try:
                return func(*args, **kwargs)
            except _FULL as exc:
                full = exc.with_traceback(None)
        before.bring_back()
        raise watched.refuse(full)

    def _bring(self, used: Sequence[torch.Tensor]) -> None:
        for tensor in used:
            weight = self._weight_of.get(id(tensor))
            if weight is not None:
                self._watched.bring(weight)


class _Before:
    """Saved copies of what an operation may change."""

    __slots__ = ("_generators", "_tensors", "is_known")

    def __init__(
        self, kind: _Kind, used: Sequence[torch.Tensor], args: Any, kwargs: dict[str, Any]
    ) -> None:
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.is_known = kind.is_trusted and all(map(_has_no_code, used))
        if not self.is_known:
            return
        if kind.is_seeded:
            self._note_generators(used, args, kwargs)
        if kind.writes and not _allocates_nothing(kind, used):
            self.is_known = self._note_tensors(kind, args, kwargs)
        elif kind.writes:
            self.is_known = False  # there is no known reason for it to fail

    def _note_generators(self, used: Sequence[Any], args: Any, kwargs: dict[str, Any]) -> None:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Generator)]
        if not given:
            devices = {x.device for x in used} | {torch.device(kwargs.get("device") or "cpu")}
            given = [g for device in devices if (g := _default_generator(device)) is not None]
        with unwatched():
            self._generators = [(generator, generator.get_state()) for generator in given]

    def _note_tensors(self, kind: _Kind, args: Any, kwargs: dict[str, Any]) -> bool:
        """Save copies on the host; False if that is impossible."""
        written = (
            kwargs.get(name, args[at] if at < len(args) else None) for at, name in kind.writes
        )
        try:
            with unwatched(), torch.no_grad():
                for tensor in tensors_in(*written):
                    if tensor.layout != torch.strided:
                        return False
                    self._tensors.append((tensor, tensor.detach().to("cpu", copy=True)))
        except _FULL:
            return False
        return True

    def bring_back(self) -> None:
        with unwatched(), torch.no_grad():
            for generator, state in self._generators:
                generator.set_state(state)
            for tensor, value in self._tensors:
                tensor.detach().copy_(value)


def _allocates_nothing(kind: _Kind, used: Sequence[torch.Tensor]) -> bool:
    """Whether a kernel writes directly to its target, without promotion or a temporary."""
    first = used[0] if used else None
    return kind.is_pointwise and all(
        x.dtype == first.dtype and x.device == first.device for x in used if first is not None
    )


def _has_no_code(tensor: torch.Tensor) -> bool:
    """Whether it is a plain tensor: operations on it run no subclass code."""
    own: Any = torch.Tensor
    return getattr(type(tensor), "__torch_dispatch__", None) is own.__torch_dispatch__


def _default_generator(device: torch.device) -> torch.Generator | None:
    if device.type == "cpu":
        return torch.default_generator
    generators = getattr(getattr(torch, device.type, None), "default_generators", ())
    if not generators:
        return None
    index = device.index
    return generators[getattr(torch, device.type).current_device() if index is None else index]

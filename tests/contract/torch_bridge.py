"""torch programs on our op table: every ATen call inside the block is computed by an engine.

Two ways in. `OnTable` sits below torch's autograd: torch's own backward formulas arrive as ATen
calls and are computed by the table as well. `OnTape` leaves torch's autograd out: what requires a
gradient is noted by ours, and `gradients` goes backward through our own gradient lines.

`OnTable("opencl")` has the OpenCL engine compute: each argument's whole memory is uploaded, so that
kernels meet torch's strides and offsets, and what comes out is read back. Ops that this engine left
to the host are counted in `hosted`.

What the table cannot do is computed by torch and counted in `fallbacks`; a run without fallbacks
has called no torch kernel. torch's own metadata calls (a tensor's sizes changed in place) compute
nothing and are not counted.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import ml_dtypes
import numpy
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.base.errors import HoldfastError
from holdfast.compute import dtype as dtypes
from holdfast.compute.autograd import tape
from holdfast.compute.engine import ENGINES, each, fallbacks, run
from holdfast.compute.ops.rules import Meta
from holdfast.compute.ops.table import Op
from holdfast.compute.tensors import custom_tensor, inplace
from holdfast.compute.tensors.custom_tensor import CustomTensor
from holdfast.compute.torch_device.dispatch.resolve import DROPPED, counterpart, name_of

# Only torch can change the sizes of a torch tensor, or make one without content.
METADATA = {
    *("resize_", "resize_as_", "squeeze_", "squeeze_.dim", "squeeze_.dims", "unsqueeze_"),
    *("transpose_", "t_", "set_", "set_.source_Storage", "detach_", "lift_fresh", "alias"),
    *("as_strided_", "_efficientzerotensor", "set_.source_Tensor", "swapaxes_", "swapdims_"),
}
# What ATen's signatures keep to themselves: a view, and running statistics that are changed.
UNSAID = {"_unsafe_view", "native_batch_norm"}
_TWO_BYTES = {torch.bfloat16: ml_dtypes.bfloat16}
_ONE_BYTE = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}


def to_array(value: torch.Tensor) -> Any:
    """The same memory as a NumPy array."""
    value = value.detach()
    if value.dtype in _TWO_BYTES:
        return value.view(torch.int16).numpy().view(_TWO_BYTES[value.dtype])
    if value.dtype in _ONE_BYTE:
        return value.view(torch.int8).numpy().view(_ONE_BYTE[value.dtype])
    return value.resolve_conj().resolve_neg().numpy()


def to_torch(array: Any) -> torch.Tensor:
    """The same memory as a torch tensor, or a copy where torch cannot have such strides."""
    if any(s < 0 for s in array.strides) or any(s % array.itemsize for s in array.strides):
        array = array.copy()
    for kinds, plain in ((_TWO_BYTES, "int16"), (_ONE_BYTE, "int8")):
        for kind, ours in kinds.items():
            if array.dtype == ours:
                return torch.from_numpy(array.view(plain)).view(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a broadcast view cannot be written to; nobody will
        return torch.from_numpy(array)


def to_dtype(kind: torch.dtype) -> Any:
    """torch's number format as ours."""
    return dtypes.dtype(str(kind).removeprefix("torch."))


class _Bridge(TorchDispatchMode):
    def __init__(self, engine: Any = "numpy") -> None:
        super().__init__()
        self.engine = ENGINES[engine] if isinstance(engine, str) else engine
        self.calls: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.hosted: Counter[str] = Counter()
        self.wrong_rules: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if name in METADATA:
            return self.reshaped(func, args, kwargs)
        op, form = counterpart(func)
        if op is None or not _usable(args, kwargs):
            self.fallbacks[name] += 1
            return self.fall_back(func, args, kwargs)
        self.calls[op.name] += 1
        named = func._schema.arguments
        args = tuple(a for a, p in zip(args, named, strict=False) if p.name not in DROPPED)
        kwargs = {k: v for k, v in kwargs.items() if k not in DROPPED}
        if form == "in place":
            args = _with_defaults(func, args, kwargs)
        targets, kwargs = _targets(func, args, kwargs, form)
        result = self.compute(op, args, kwargs)
        if form == "functional":
            return result
        for target, value in zip(
            targets, result if isinstance(result, tuple) else (result,), strict=True
        ):
            self.assign(op, target, value)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def fall_back(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    def reshaped(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call of METADATA."""
        return func(*args, **kwargs)

    def compute(self, op: Op, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError

    def assign(self, op: Op, target: torch.Tensor, value: torch.Tensor) -> None:
        raise NotImplementedError

    def check_rule(self, op: Op, args: Any, kwargs: Any, out: Any) -> None:
        """Hold what the op's rule foretells against what came out."""
        if op.rule.infer is None:
            return
        foretold = op.rule.infer(op, op.schema.bind(args, kwargs))
        if foretold is None:
            return
        foretold = (foretold,) if isinstance(foretold, Meta) else foretold
        found = (out,) if hasattr(out, "ndim") else out
        for one, other in zip(foretold, found, strict=False):
            if tuple(one.shape) != tuple(other.shape) or one.dtype != other.dtype:
                self.wrong_rules.add(
                    f"{op.name}: foretold {one.dtype}{list(one.shape)}, "
                    f"came {other.dtype}{list(other.shape)}"
                )

    def check_memory(self, op: Op, before: list[Any], bound: dict[str, Any], out: Any) -> None:
        """Hold what the op did to its arguments' memory against what its schema says of it."""
        for copy, (name, array) in zip(before, _arrays_of(op, bound), strict=True):
            if _written(op, name) or op.schema.base in UNSAID:
                continue
            if copy.tobytes() != array.tobytes():
                self.wrong_rules.add(f"{op.name}: it changes {name!r}")
            if not op.schema.view and any(numpy.shares_memory(array, o) for o in _leaves(out)):
                self.wrong_rules.add(f"{op.name}: a result is memory of {name!r}")


def _leaves(value: Any) -> list[Any]:
    """Every array in an argument or a result."""
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in _leaves(one)]
    return [value] if isinstance(value, numpy.ndarray) else []


def _arrays_of(op: Op, bound: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(p.name, leaf) for p in op.schema.parameters for leaf in _leaves(bound[p.name])]


def _written(op: Op, name: str) -> bool:
    return any("!" in (p.alias or "") for p in op.schema.parameters if p.name == name)


class Elsewhere:
    """Arrays of the host on another engine, with their strides and with what they share."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._wholes: dict[int, tuple[Any, Any]] = {}  # bytes here and there, by address

    def up(self, value: Any) -> Any:
        """An argument; its arrays look at a copy of all memory that the tensor is a part of."""
        if isinstance(value, list | tuple):
            return [self.up(one) for one in value]
        if not isinstance(value, torch.Tensor):
            return to_dtype(value) if isinstance(value, torch.dtype) else value
        array = to_array(value)
        if not array.size or value.is_conj() or value.is_neg():
            return self.engine.upload(array)
        there = self._there(value.untyped_storage())
        begin = value.storage_offset() * array.itemsize
        return there.view(array.dtype, array.shape, array.strides, there.offset + begin)

    def _there(self, storage: Any) -> Any:
        address = storage.data_ptr()
        if address not in self._wholes:
            # Arrays over it keep the storage: a result may lie in it when the argument is gone.
            whole = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            self._wholes[address] = whole, self.engine.upload(whole)
        return self._wholes[address][1]

    def down(self, array: Any) -> Any:
        """A result on the host: the memory of an argument if it lies in the argument there."""
        for whole, there in self._wholes.values():
            if array.memory is there.memory:
                return numpy.ndarray(array.shape, array.dtype, whole, array.offset, array.strides)
        return self.engine.download(array)

    def bring_back(self) -> None:
        """Changes of the arguments, to the host."""
        for whole, there in self._wholes.values():
            whole[...] = self.engine.download(there)


class OnTable(_Bridge):
    """torch's autograd above, our kernels below."""

    def compute(self, op: Op, args: Any, kwargs: Any) -> Any:
        raw = [_down(a) for a in args]
        named = {k: _down(v) for k, v in kwargs.items()}
        bound = op.schema.bind(raw, named)
        before = [array.copy() for _, array in _arrays_of(op, bound)]
        if self.engine is ENGINES["numpy"]:
            out = run(op, self.engine, raw, named)
        else:
            out = self._run_elsewhere(op, args, kwargs)
        self.check_rule(op, raw, named, out)
        self.check_memory(op, before, bound, out)
        return self._up(op, out, args)

    def _run_elsewhere(self, op: Op, args: Any, kwargs: Any) -> Any:
        there = Elsewhere(self.engine)
        earlier = fallbacks.copy()
        named = {k: there.up(v) for k, v in kwargs.items()}
        try:
            out = run(op, self.engine, [there.up(a) for a in args], named)
        finally:
            self.hosted += Counter({name: n for (_, name), n in (fallbacks - earlier).items()})
        there.bring_back()
        return each(out, there.down)

    def assign(self, op: Op, target: torch.Tensor, value: torch.Tensor) -> None:
        if (
            tuple(target.shape) != tuple(value.shape)
            and op.schema.base != "copy"
            and target.numel() == 0
        ):
            target.resize_(value.shape)
        if self.engine is ENGINES["numpy"]:
            self.engine.write(to_array(target), to_array(value))
            return
        there = Elsewhere(self.engine)
        self.engine.write(there.up(target), there.up(value))
        there.bring_back()

    def _up(self, op: Op, out: Any, args: Any) -> Any:
        if isinstance(out, list | tuple):
            return type(out)(self._up(op, one, args) for one in out)
        if not hasattr(out, "ndim"):
            return out
        if op.schema.view and isinstance(args[0], torch.Tensor):
            return _as_view(args[0], out)
        return to_torch(out)


class OnTape(_Bridge):
    """Our tape above, our kernels below; torch only takes composite functions apart."""

    def start(self, value: torch.Tensor) -> torch.Tensor:
        """An input, which requires a gradient of ours if it required one of torch's."""
        made = value.detach().clone()
        ours = CustomTensor._wrap(to_array(made), custom_tensor.default_device())
        ours.requires_grad = value.requires_grad
        made.ours = ours
        return made

    def compute(self, op: Op, args: Any, kwargs: Any) -> Any:
        ours = [_ours(a) for a in args]
        named = {k: _ours(v) for k, v in kwargs.items()}
        with tape.enable_grad():
            return self._up(custom_tensor.apply(op, ours, named))

    def assign(self, op: Op, target: torch.Tensor, value: torch.Tensor) -> None:
        with tape.enable_grad():
            inplace.assign(op, _ours(target), _ours(value))

    def reshaped(self, func: Any, args: Any, kwargs: Any) -> Any:
        op, form = counterpart(func)
        same = name_of(func) in ("alias", "lift_fresh")
        ours = _ours(args[0]) if same or form == "in place" else None
        out = func(*args, **kwargs)
        if same:
            out.ours = ours
        elif ours is not None and op is not None:  # the tape has to see the new sizes as well
            with tape.enable_grad():
                out.ours = custom_tensor.apply(op, [ours, *args[1:]], dict(kwargs))
        return out

    def fall_back(self, func: Any, args: Any, kwargs: Any) -> Any:
        flat = [
            a
            for a in torch.utils._pytree.tree_leaves((args, kwargs))
            if isinstance(a, torch.Tensor)
        ]
        if any(_ours(t).requires_grad for t in flat if t.layout is torch.strided):
            raise NotImplementedError(f"{name_of(func)} is not in the table, gradients are lost")
        return func(*args, **kwargs)

    def _up(self, out: Any) -> Any:
        if isinstance(out, list | tuple):
            return type(out)(self._up(one) for one in out)
        if not isinstance(out, CustomTensor):
            return out
        made = to_torch(out._array)
        made.ours = out
        return made


def _ours(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not hasattr(value, "ours"):
            value.ours = CustomTensor._wrap(to_array(value), custom_tensor.default_device())
        return value.ours
    if isinstance(value, list | tuple):
        return [_ours(v) for v in value]
    return to_dtype(value) if isinstance(value, torch.dtype) else value


def _down(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return to_array(value)
    if isinstance(value, list | tuple):
        return [_down(v) for v in value]
    return to_dtype(value) if isinstance(value, torch.dtype) else value


def _as_view(of: torch.Tensor, array: Any) -> torch.Tensor:
    """An array that is a view of a tensor's memory, as a view of that tensor."""
    source = to_array(of)
    if array.dtype != source.dtype or not numpy.may_share_memory(array, source):
        return to_torch(array)
    steps = [s // array.itemsize for s in array.strides]
    if any(s < 0 for s in steps):
        return to_torch(array)
    shift = array.__array_interface__["data"][0] - source.__array_interface__["data"][0]
    return of.as_strided(array.shape, steps, of.storage_offset() + shift // array.itemsize)


def _usable(args: Any, kwargs: Any) -> bool:
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    return all(t.layout is torch.strided for t in leaves if isinstance(t, torch.Tensor)) and (
        kwargs.get("layout") in (None, torch.strided)
    )


def _with_defaults(func: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Arguments with what only the in-place form has a default for (`bernoulli_`'s p)."""
    rest = [a for a in func._schema.arguments[len(args) :] if a.name not in DROPPED]
    return (
        *args,
        *(a.default_value for a in rest if not a.kwarg_only and a.name not in kwargs),
    )


def _targets(func: Any, args: Any, kwargs: Any, form: str) -> tuple[list[Any], dict[str, Any]]:
    if form == "functional":
        return [], kwargs
    if form == "in place":
        return [args[0]], kwargs
    outs = [a.name for a in func._schema.arguments if a.is_out]
    return [kwargs[name] for name in outs], {k: v for k, v in kwargs.items() if k not in outs}


__all__ = ["HoldfastError", "OnTable", "OnTape"]

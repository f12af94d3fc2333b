"""torch programs on the OpenCL engine where the torch device cannot be: tensors without numbers.

`with Shell(engine):` computes every ATen call by the op table. Tensors are torch's "meta" tensors,
which have sizes and no numbers; each carries an array of the engine as `.ours`. So a model of any
library runs on the engine with a torch that the device (`holdfast.torch`) does not work with.
What the table has no op for is taken apart by torch's own decompositions, else refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import each, run
from holdfast.compute.torch_device.dispatch.resolve import DROPPED, counterpart, name_of

# Only sizes change: torch does that for the shell, and the array follows.
_VIEWED = ("view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute")


class Shell(TorchDispatchMode):
    """Within the block every ATen call is computed by `engine`."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.engine = engine
        self.calls: dict[str, int] = {}

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the CPU as one of the engine."""
        array = tensor.detach().contiguous()
        return self._up(self.engine.upload(_numpy(array)))

    def get(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the engine on the CPU."""
        return torch.from_numpy(self.engine.download(tensor.ours).copy())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        self.calls[name] = self.calls.get(name, 0) + 1
        op, form = counterpart(func)
        if op is None:
            apart = decomposition_table.get(func)
            if apart is None:
                raise NotImplementedError(f"{name} is not in the table")
            with self:
                return apart(*args, **kwargs)
        named = func._schema.arguments
        args = [a for a, p in zip(args, named, strict=False) if p.name not in DROPPED]
        kwargs = {k: v for k, v in kwargs.items() if k not in DROPPED}
        outs = {a.name for a in named if a.is_out}
        targets = [kwargs.pop(k) for k in list(kwargs) if k in outs]
        out = run(op, self.engine, [self._down(a) for a in args], self._named(kwargs))
        if form == "functional":
            return self._up(out)
        targets = targets or [args[0]]
        results = out if isinstance(out, tuple | list) else [out]
        for target, result in zip(targets, results, strict=True):
            self.engine.write(target.ours, result)
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _named(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {k: self._down(v) for k, v in kwargs.items()}

    def _down(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            found = getattr(value, "ours", None)
            if found is None:
                found = value.ours = self.engine.upload(_numpy(value))
            return found
        if isinstance(value, list | tuple):
            return [self._down(v) for v in value]
        if isinstance(value, torch.dtype):
            return dtypes.dtype(str(value).removeprefix("torch."))
        return value

    def _up(self, out: Any) -> Any:
        return each(out, self._tensor)

    def _tensor(self, array: Any) -> torch.Tensor:
        kind = getattr(torch, dtypes.dtype(array.dtype).name)
        size = array.dtype.itemsize
        steps = [stride // size for stride in array.strides]
        made: Any = torch.empty_strided(array.shape, steps, dtype=kind, device="meta")
        made.ours = array
        return made


def _numpy(tensor: torch.Tensor) -> Any:
    if tensor.device.type == "meta":
        raise NotImplementedError("a tensor without numbers that no op of ours has made")
    return tensor.detach().cpu().numpy()

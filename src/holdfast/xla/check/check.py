"""Whether a class of diffusers or transformers runs on XLA, tried with a tiny model of it.

    checked = check("diffusers:FluxTransformer2DModel")
    checked.ok, checked.error_f32, checked.collectives

Compares torch with XLA in float32 and bfloat16 and one device with several, and reports missing
operators, bytes on each device and collectives. A failure inside the model is reported, not raised.
Errors are the largest difference divided by the largest value of torch's float32 result.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import NamedSharding, PartitionSpec

from holdfast.base.errors import Absent, BadInput
from holdfast.residency.predict.shadow import build_on_meta
from holdfast.topology.amx import disable_broken_amx
from holdfast.xla.arrays import dtype_of, to_jax, to_torch
from holdfast.xla.check.comparison import (
    distance,
    failure_of,
    floats,
    make_traceable,
    on_torch,
    on_xla,
)
from holdfast.xla.cluster.mesh import make_mesh
from holdfast.xla.errors import translate_errors
from holdfast.xla.module.calls import ModuleCall
from holdfast.xla.ops import line_for, operator, overrides
from holdfast.xla.sharding.rules import rules_for
from holdfast.xla.sharding.shards import bytes_on, collectives, place_all, report
from holdfast.xla.tiny import Made, class_of, make

DTYPES = ("f32", "bf16")
MOST_BF16 = 1.5  # times torch's own error in bfloat16
_MISSING = re.compile(r"Operator with name (\S+) has no lowering")
_Known = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PortCheck:
    """The result of a check. None: not requested, or not reached."""

    name: str
    devices: int
    bound: float = 1e-4  # of error_f32
    apart: float = 1e-5  # of error_sharded
    error_f32: float | None = None
    error_bf16: float | None = None
    torch_bf16_error: float | None = None  # None also where torch's CPU cannot
    error_sharded: float | None = None  # several devices against one
    missing_ops: tuple[str, ...] = ()
    bytes_per_device: int = 0  # of the tiny model in float32
    ideal_bytes: int = 0
    full_bytes_per_device: int | None = None  # of the class as it is by default, in bfloat16
    full_ideal_bytes: int | None = None
    collectives: Mapping[str, int] = field(default_factory=dict)
    failure: str | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it may be used: see `problems`."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, a line each."""
        found = [f"{one} is missing on XLA; write {line_for(one)}" for one in self.missing_ops]
        if self.failure is not None and not self.missing_ops:
            found.append(self.failure)
        if self.error_f32 is not None and not self.error_f32 <= self.bound:
            found.append(
                f"f32 differs from torch by {self.error_f32:.1e}, more than {self.bound:g}"
            )
        if self.error_sharded is not None and not self.error_sharded <= self.apart:
            found.append(
                f"{self.devices} devices differ from one by {self.error_sharded:.1e}, more than "
                f"{self.apart:g}"
            )
        own = self.torch_bf16_error
        error = self.error_bf16
        if error is not None and own is not None and not error <= MOST_BF16 * own:
            found.append(
                f"bf16 differs by {error:.1e}, more than {MOST_BF16:g} times torch's own {own:.1e}"
            )
        return tuple(found)


def check(name: str, devices: int = 8, dtypes: Sequence[str] = DTYPES, seed: int = 0) -> PortCheck:
    """Make a tiny model of `library:ClassName` and compare.

    With one device nothing is split. Raises NotFound for a class without a tiny model, BadInput,
    Absent where there are not so many devices.
    """
    if not dtypes or set(dtypes) - set(DTYPES):
        raise BadInput(f"cannot check {', '.join(dtypes)!r}", expected="f32, bf16 or both")
    with translate_errors("looking for devices"):
        several = devices_for(devices)
    started = time.perf_counter()
    disable_broken_amx()
    made = make(name, seed)
    found: _Known = {"devices": devices, "bound": made.tiny.bound, "apart": made.tiny.apart}
    with warnings.catch_warnings(), jax.default_matmul_precision("highest"):
        warnings.simplefilter("ignore")  # the models' own: deprecations and the like
        for part in _parts(made, several, dtypes):
            try:
                found |= part(found)
            except Exception as exc:  # noqa: BLE001  a model may raise anything; it is reported
                first = _missing(exc)
                found["failure"] = failure_of(exc)
                found["missing_ops"] = () if first is None else find_all_missing(made, first)
                break
    found = {key: value for key, value in found.items() if not key.startswith("_")}
    return PortCheck(name, **found, seconds=time.perf_counter() - started)


def devices_for(count: int) -> list[Any]:
    """So many devices: the accelerator's if it has as many, else virtual ones of the CPU.

    Raises BadInput, Absent.
    """
    if count < 1:
        raise BadInput(f"cannot check on {count} devices", expected="1 or more")
    for platform in (None, "cpu"):
        found = jax.devices(platform)
        if len(found) >= count:
            return found[:count]
    raise Absent(
        f"there are no {count} devices to check on: JAX has {len(jax.devices('cpu'))} of the CPU",
        expected=f"{count} devices, of an accelerator or virtual",
        hint=f"XLA_FLAGS=--xla_force_host_platform_device_count={count}",
    )


def _parts(
    made: Made, devices: list[Any], dtypes: Sequence[str]
) -> list[Callable[[_Known], _Known]]:
    """The work in its order. Each gets what is known so far and adds to it; `_keys` stay here."""
    parts: list[Callable[[_Known], _Known]] = [
        lambda _: _measure_full(made, len(devices)),
        lambda _: {"_truth": on_torch(made)},
    ]
    if "f32" in dtypes:
        parts += [
            lambda _: {"_plain": on_xla(made)},
            lambda known: {"error_f32": distance(known["_plain"], known["_truth"])},
        ]
        if len(devices) > 1:
            parts.append(lambda known: _check_sharded(made, devices, known["_plain"]))
    if "bf16" in dtypes:
        parts.append(lambda known: _check_bf16(made, known["_truth"]))
    return parts


def _missing(exc: Exception) -> str | None:
    cause: BaseException | None = exc
    while cause is not None:
        found = _MISSING.search(str(cause))
        if found is not None:
            return found[1]
        cause = cause.__cause__
    return None


def find_all_missing(made: Made, first: str) -> tuple[str, ...]:
    """This operator and those that would be missing after it, in the order of their use.

    Each is replaced by zeros of the right shape, so that tracing can go on, until that fails.
    """
    found = [first]
    while True:
        stubs = overrides({one: _make_stub(one) for one in found})
        call = ModuleCall(made.module, made.tiny.method, overrides=stubs)
        function, given = make_traceable(call, made.inputs(), made.tiny.static)
        weights = {name: to_jax(one) for name, one in call.weights.items()}
        try:
            jax.eval_shape(function, weights, given)
        except Exception as exc:  # noqa: BLE001  with zeros in it, a model may raise anything
            following = _missing(exc)
            if following is not None and following not in found:
                found.append(following)
                continue
        return tuple(found)


def _make_stub(name: str) -> Callable[..., Any]:
    wanted = operator(name)

    def zeros(value: Any) -> Any:  # not every operator of torch knows shapes alone
        is_array = isinstance(value, jax.Array)
        return to_torch(np.zeros(value.shape, value.dtype)) if is_array else value

    def stub(*args: Any, **kwargs: Any) -> Any:
        given, by_name = jax.tree.map(zeros, (args, kwargs))
        answer = wanted(*given, **by_name)
        return jax.tree.map(lambda one: jax.numpy.zeros(one.shape, dtype_of(one.dtype)), answer)

    return stub


def _measure_full(made: Made, count: int) -> _Known:
    """What each device would hold of the class as it is by default; nothing where it has none."""
    cls = class_of(made.name)
    config = getattr(cls, "config_class", None)
    try:
        module = build_on_meta(cls if config is None else lambda: cls(config()))
    except Exception:  # noqa: BLE001  many classes need arguments
        return {}
    found = report(rules_for(module, size=count), torch.bfloat16)
    return {"full_bytes_per_device": found.device_bytes, "full_ideal_bytes": found.ideal_bytes}


def _check_sharded(made: Made, devices: list[Any], plain: list[np.ndarray]) -> _Known:
    """Weights split over all devices, everything else whole on each of them."""
    call = ModuleCall(made.module, made.tiny.method)
    mesh = make_mesh(devices)
    rules = rules_for(made.module, mesh=mesh)
    weights = place_all(call.weights, rules, mesh)
    function, inputs = make_traceable(call, made.inputs(), made.tiny.static)
    given = jax.device_put(inputs, NamedSharding(mesh, PartitionSpec()))
    program = jax.jit(function).lower(weights, given).compile()
    return {
        "error_sharded": distance(floats(program(weights, given)), plain),
        "collectives": dict(collectives(program)),
        "bytes_per_device": bytes_on(devices[0], weights),
        "ideal_bytes": report(rules).ideal_bytes,
    }


def _check_bf16(made: Made, truth: list[np.ndarray]) -> _Known:
    """torch and XLA in bfloat16, each against torch in float32."""
    half = make(made.name, made.seed)
    half.module.to(torch.bfloat16)
    try:
        own = distance(on_torch(half, torch.bfloat16), truth)
    except Exception:  # noqa: BLE001  not every operator of torch's CPU has the dtype
        own = None
    found = on_xla(half, torch.bfloat16)
    return {"torch_bf16_error": own, "error_bf16": distance(found, truth)}

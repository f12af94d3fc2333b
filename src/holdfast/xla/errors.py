"""Errors of JAX, XLA and torchax as Holdfast's.

    with translate_errors("drawing with flux", report):
        step(weights, latents)

Translates a device that another process uses, memory that ran out, missing operators and values
that are known only at run time. Everything else passes unchanged; the original is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import jax

from holdfast.base.errors import HoldfastError, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.xla.cluster.device_holders import (
    GPU_FILES,
    LOCK_FILE,
    TPU_FILES,
    Holder,
    holder,
    holders,
)
from holdfast.xla.ops import arguments_of

ROOM = 0.8  # of a device for weights; the rest is for what is computed
_MOST_DEVICES = 4096
_WIDE = {"float32", "f32", "fp32", "torch.float32"}

_IN_USE = re.compile(
    r"(TPU is|libtpu\S*) already in use|in use by another process"
    r"|libtpu (multi-process )?lockfile|libtpu_lockfile|open\(/dev/\S+\): Device or resource busy"
    r"|CUDA_ERROR_DEVICE_UNAVAILABLE|devices are busy or unavailable|is/are busy or unavailable",
    re.IGNORECASE,
)
_FULL_AT_START = re.compile(r"Unable to initialize backend '\w+'.*out.of.memory", re.I | re.S)
_PID = re.compile(r"process with pid (\d+)")
_SIZE = r"\d+(?:\.\d+)?\s?(?:[KMGTP]?i?B\b|[KMGTP]\b|bytes\b)"
_ASKED = (  # exact counts first
    rf"Used (?P<asked>{_SIZE}) of (?P<there>{_SIZE})",
    rf"Attempting to (?:allocate|reserve) (?P<asked>{_SIZE}).*?There are (?P<free>{_SIZE}) free",
    rf"allocate request for {_SIZE} \((?P<asked>{_SIZE})\)",
    rf"(?:allocate|allocating) (?P<asked>{_SIZE})",
)
_OPERATOR = re.compile(r"Operator with name (\S+) has no lowering")
_ARGUMENTS = re.compile(r"depends on the values? of the arguments? (.+?)\.(?:\s|$)")
_WEIGHTS = {"weights", "params", "parameters", "w"}
_TRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_TRACED_TEXTS = (
    (TypeError, "Shapes must be 1D sequences of concrete values"),  # jax has no class for it
    (RuntimeError, "cannot be called on meta tensors"),  # torchax's tensors look like meta to torch
)


class Weights(Protocol):
    """The part of a `ShardReport` that is needed here: bytes of weights, number of devices."""

    @property
    def total_bytes(self) -> int: ...

    @property
    def parts(self) -> int: ...


@contextmanager
def translate_errors(
    doing: str, report: Weights | None = None, *, dtype: str | None = None
) -> Iterator[None]:
    """Raise Holdfast's errors for those of JAX, XLA and torchax. `doing` comes after "while".

    `report` and `dtype` describe the weights; with them, out of memory says what would fit.
    """
    try:
        yield
    except HoldfastError:
        raise
    except Exception as exc:
        error = explain(exc, doing, report, dtype=dtype)
        if error is None:
            raise
        raise error from exc


def explain(
    exc: Exception, doing: str, report: Weights | None = None, *, dtype: str | None = None
) -> HoldfastError | None:
    """Return Holdfast's error for an exception, or None for an unknown one."""
    text = str(exc)
    if isinstance(exc, RuntimeError) and (_IN_USE.search(text) or _FULL_AT_START.search(text)):
        return in_use(text, doing)
    is_full = "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()
    if isinstance(exc, jax.errors.JaxRuntimeError) and is_full:
        return _out_of_memory(text, doing, report, dtype)
    if type(exc).__name__ == "OperatorNotFound" and (found := _OPERATOR.search(text)):
        return _no_operator(found[1], doing)
    if isinstance(exc, jax.errors.UnexpectedTracerError):
        return _explain_leak(text, doing)
    if needs_a_value(exc):
        return _explain_value(text, doing)
    return None


def needs_a_value(exc: Exception) -> bool:
    """Whether the model's Python read a value that is known only at run time."""
    text = str(exc)
    return isinstance(exc, _TRACED) or any(
        isinstance(exc, kind) and words in text for kind, words in _TRACED_TEXTS
    )


def in_use(text: str, doing: str, files: Sequence[str] | None = None) -> Unsupported:
    """Make the error for a device that another process uses.

    Without a pid in `text`, /proc is searched for processes that have `files` open.
    """
    is_tpu = re.search(r"tpu|/dev/accel|/dev/vfio", text, re.IGNORECASE) is not None
    kind = "TPU" if is_tpu else "GPU"
    pid = _PID.search(text)
    if pid is not None:
        found: tuple[Holder, ...] = (holder(int(pid[1])),)
    else:
        found = holders(files or (TPU_FILES if is_tpu else GPU_FILES))
    uses = "use" if len(found) > 1 else "uses"
    who = f"{' and '.join(map(str, found))} {uses} it" if found else "nobody to be seen uses it"
    return Unsupported(
        f"cannot start the {kind} while {doing}: {who}",
        expected="one process for a TPU" if is_tpu else "a GPU with memory to spare",
        hint=_way_out(text, found, is_tpu),
    )


def _way_out(text: str, found: Sequence[Holder], is_tpu: bool) -> str:
    if found:
        pids = " ".join(str(one.pid) for one in found)
        return f"end what uses it (kill {pids}), or JAX_PLATFORMS=cpu to run without"
    if "lockfile" in text:
        return f"rm {LOCK_FILE}, which a process that has ended left behind"
    look = f"sudo lsof -w {' '.join(TPU_FILES[:2])}" if is_tpu else "nvidia-smi"
    return f"{look} shows processes of other users; JAX_PLATFORMS=cpu runs without"


def _out_of_memory(text: str, doing: str, report: Weights | None, dtype: str | None) -> OutOfMemory:
    sizes = _sizes(text)
    capacity = sizes.get("there") or _capacity_bytes()
    shown = [f"{format_bytes(sizes[n])} {w}" for n, w in _WORDS.items() if n in sizes]
    what = f"ran out of memory while {doing}" + (f": {', '.join(shown)}" if shown else "")
    if report is None:
        return OutOfMemory(what, hint=_ANYWAY)
    each = f"{format_bytes(-(-report.total_bytes // report.parts))} on each of {report.parts}"
    devices = f"{each} device{'' if report.parts == 1 else 's'}"
    below = "" if capacity is None else f", in {format_bytes(capacity)} each"
    return OutOfMemory(
        what,
        expected=f"{format_bytes(report.total_bytes)} of weights, {devices}, and what is "
        f"computed{below}",
        hint=_ANYWAY
        if capacity is None
        else advice(report.total_bytes, capacity, report.parts, dtype),
    )


_WORDS = {"asked": "asked for", "there": "there", "free": "free"}
_ANYWAY = "a mesh with more devices (tp), bfloat16 weights, or a smaller picture"


def _sizes(text: str) -> dict[str, int]:
    """Bytes requested, present and free, as far as the text gives them."""
    for pattern in _ASKED:
        found = re.search(pattern, text, re.DOTALL | re.IGNORECASE)
        if found is not None:
            return {
                name: parse_bytes(size.removesuffix("bytes"))
                for name, size in found.groupdict().items()
            }
    return {}


def _capacity_bytes() -> int | None:
    """Memory of one device, or None if the back end does not report it."""
    with suppress(RuntimeError, NotImplementedError):
        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return None


def advice(weights_bytes: int, capacity_bytes: int, devices: int, dtype: str | None = None) -> str:
    """Suggest how weights would fit that are split over `devices` of `capacity_bytes` each.

    A fifth of each device is left for activations. `dtype` is that of the weights.
    """
    ways = []
    parts = _count_devices(weights_bytes, capacity_bytes, devices)
    if parts == devices:  # the weights are not what is too much
        ways.append("a smaller picture or fewer frames")
        parts = 2 * devices
    if parts is not None:
        ways.append(_split(parts, weights_bytes))
    if dtype is None or str(dtype) in _WIDE:
        ways += _narrow(weights_bytes, capacity_bytes, devices, dtype)
    if not ways:
        return f"a smaller model: {_MOST_DEVICES} devices are too few"
    return ", or ".join(ways)


def _narrow(weights: int, capacity: int, devices: int, dtype: str | None) -> list[str]:
    """Suggest bfloat16, with more devices if that alone is not enough."""
    parts = _count_devices(weights // 2, capacity, devices)
    if dtype is None:
        return ["bfloat16 if the weights are float32"]
    if parts is None:
        return []
    if parts == devices:
        return [f"bfloat16 weights ({format_bytes(-(-weights // 2 // parts))} on each device)"]
    return [f"bfloat16 weights and {_split(parts, weights // 2)}"]


def _split(parts: int, weights: int) -> str:
    return (
        f"a mesh with tp={parts} ({format_bytes(-(-weights // parts))} of weights on each device)"
    )


def _count_devices(weights: int, capacity: int, devices: int) -> int | None:
    while weights > devices * capacity * ROOM:
        devices *= 2
        if devices > _MOST_DEVICES:
            return None
    return devices


def _no_operator(name: str, doing: str) -> Unsupported:
    plain = name.replace("::", ".")
    key = plain if plain.count(".") != 1 or "::" not in name else f"{plain}.default"
    function = "my_" + key.split(".")[1 if "." in key else 0]
    return Unsupported(
        f"nobody has written {key} for JAX, which was needed while {doing}",
        expected="operators that torchax has, that Holdfast has, or that the port brings along",
        hint="write it, with JAX arrays in and out:\n"
        f"    def {function}({arguments_of(key)}):\n"
        f"        return jax.numpy...\n"
        f'    Port(..., ops={{"{key}": {function}}})',
    )


def _explain_value(text: str, doing: str) -> Unsupported:
    names = _inputs(text)
    if names:
        what = f"the value of {' and '.join(map(repr, names))}"
        static = ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "")
        hint = f"Port(..., static=({static})), which compiles once for each value"
    else:
        what = "a value that only the running program has"
        hint = 'name the input that decides: Port(..., static=("name",))'
    return Unsupported(
        f"cannot compile while {doing}: the model's Python looks at {what}",
        expected="code whose branches and shapes depend on static inputs alone",
        hint=hint,
    )


def _inputs(text: str) -> list[str]:
    """The inputs that jax names: `height`, and "mask" of `inputs['mask'][0]`. No weights."""
    found = _ARGUMENTS.search(text)
    if found is None:
        return []
    names = []
    for path in re.split(r",? and |, ", found[1]):
        root, *keys = re.findall(r"[^\[\]'\"]+", path)
        if root not in _WEIGHTS:
            names.append(keys[0] if keys and not keys[0].isdigit() else root)
    return list(dict.fromkeys(names))


def _explain_leak(text: str, doing: str) -> Unsupported:
    line = re.search(r"was created on line (.+?:\d+(?::\d+)?)\b", text)
    where = f", made at {line[1]}" if line else ""
    return Unsupported(
        f"cannot compile while {doing}: the model kept a value of an earlier trace{where}",
        expected="a model that keeps nothing of a call, or whose cache is empty when it begins",
        hint="clear what the model keeps between calls, or make the input it comes from static: "
        'Port(..., static=("name",))',
    )

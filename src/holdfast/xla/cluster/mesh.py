"""The devices a model is spread over, in one or two named axes.

"tp" (tensor parallel) splits weights, "dp" (data parallel) splits the inputs. No device is left out
silently: a shape that does not fit the devices is an error, and CPU alone is a warning.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from holdfast.base.errors import Absent, BadInput

AXIS = "tp"
Device = Any  # a jax.Device, which type checkers take for a variable


class CpuFallback(UserWarning):
    """There is no accelerator that JAX can use, and nobody asked for the CPU."""


def make_mesh(
    devices: str | Sequence[Device] | None = None,
    axes: str | Sequence[str] | None = None,
    shape: Mapping[str, int] | None = None,
) -> Mesh:
    """A mesh over all devices with the one axis "tp", or of the shape that is asked for.

    `devices` is a platform ("tpu", "gpu", "cpu") or the devices themselves; without it they are
    those of the accelerator, or of the CPU with a warning (`CpuFallback`). `axes` names the axes,
    and the last of them gets all devices; `shape` says how many each has: `{"dp": 2, "tp": 4}`.
    Raises BadInput for a shape that does not take all devices, Absent for a platform without any.
    """
    found = _devices(devices)
    sizes = _shape(len(found), axes, shape)
    grid = mesh_utils.create_device_mesh(
        tuple(sizes.values()), found, allow_split_physical_axes=True
    )
    return Mesh(grid, tuple(sizes))


def _devices(given: str | Sequence[Device] | None) -> list[Device]:
    if isinstance(given, str):
        return _of_platform(given)
    if given is not None:
        return _require_distinct(list(given))
    found = jax.devices()
    # JAX_PLATFORMS and `jax.config` are one setting.
    asked = (getattr(jax.config, "jax_platforms", None) or "").split(",")
    if found[0].platform == "cpu" and "cpu" not in asked:
        warnings.warn(
            f"JAX finds no TPU and no GPU: models run on {_format_count(len(found))} of the CPU, "
            "slowly\n  try: pip install 'jax[tpu]' or 'jax[cuda13]' on a machine that has one; "
            "JAX_PLATFORMS=cpu says that the CPU is meant",
            CpuFallback,
            stacklevel=3,
        )
    return found


def _of_platform(platform: str) -> list[Device]:
    try:
        return jax.devices(platform)
    except RuntimeError as exc:
        usable = {device.platform for device in (*jax.devices(), *jax.devices("cpu"))}
        raise Absent(
            f"JAX finds no device of the platform {platform!r}: {exc}",
            expected=f"one that it can use here: {', '.join(sorted(usable))}",
        ) from exc


def _require_distinct(devices: list[Device]) -> list[Device]:
    if not devices or len(set(devices)) < len(devices):
        raise BadInput(
            "a mesh needs a device" if not devices else "a mesh was given a device twice",
            expected="different devices, such as jax.devices()[:4]",
        )
    return devices


def _shape(
    count: int, axes: str | Sequence[str] | None, shape: Mapping[str, int] | None
) -> dict[str, int]:
    if shape is None:
        names = [axes] if isinstance(axes, str) else [AXIS] if axes is None else list(axes)
        if not names or len(set(names)) < len(names):
            raise BadInput(
                f"a mesh cannot have the axes {names}",
                expected='different names such as "dp", "tp"',
            )
        return {name: count if name == names[-1] else 1 for name in names}
    if axes is not None:
        raise BadInput(
            "a mesh was given both axes and a shape",
            expected='axes=("dp", "tp"), or shape={"dp": 2, "tp": 4}, which names them too',
        )
    if not shape or min(shape.values()) < 1 or math.prod(shape.values()) != count:
        asked = " x ".join(f"{name}={size}" for name, size in shape.items()) or "no axis"
        raise BadInput(
            f"a mesh of {asked} does not fit {_format_count(count)}",
            expected=f"sizes whose product is {count}",
            hint=_suggest_shape(count, shape),
        )
    return dict(shape)


def _suggest_shape(count: int, shape: Mapping[str, int]) -> str | None:
    """The same shape with another last size; fewer devices where that does not come out even."""
    if not shape or min(shape.values()) < 1:
        return None
    *names, last = shape
    others = math.prod(shape[name] for name in names)
    if count % others == 0:
        return f"shape={dict(shape) | {last: count // others}}"
    asked = math.prod(shape.values())
    return f"devices=jax.devices()[:{asked}]" if asked < count else None


def _format_count(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"

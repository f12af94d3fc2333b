"""Free memory: ComfyUI's models, Holdfast's caches, Python's garbage; with figures of the result.

Models are moved off the device and come back when they are used. Outside of a node, ComfyUI is
asked to unload them between two prompts.
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import dataclass

from holdfast.nodes.host import following, models
from holdfast.nodes.host.models import forget_outputs, list_loaded
from holdfast.nodes.memory import sampling
from holdfast.nodes.memory.holding import Holding, Tick, holdings
from holdfast.nodes.memory.sampling import Sample

WAIT_S = 3.0  # for ComfyUI to react while no prompt runs
SHOWN = 8  # holders in the result


@dataclass(frozen=True, slots=True)
class Freed:
    """What was freed. Negative figures are memory allocated meanwhile."""

    models: tuple[models.Model, ...]  # that were unloaded
    ram_bytes: int  # less in RAM
    device_bytes: dict[str, int]  # less reserved by torch, by device
    pool_bytes: int  # freed by Holdfast's pools
    tpu_bytes: int  # of TPU models
    later: bool  # ComfyUI unloads its models when the prompt is over
    forgets: bool  # and forgets results of nodes then
    ram_left_bytes: int
    device_left_bytes: dict[str, int]  # still in tensors, by device
    held: tuple[Holding, ...]  # who holds the rest, the largest first
    seconds: float

    @property
    def freed_bytes(self) -> int:
        """All of it together."""
        return max(self.ram_bytes, 0) + sum(max(one, 0) for one in self.device_bytes.values())


def free(
    models: bool = True, caches: bool = True, outputs: bool = False, tick: Tick | None = None
) -> Freed:
    """Free memory, and find out who holds the rest.

    `models`: ComfyUI's and the TPU nodes' models. `caches`: free memory of Holdfast's pools, of
    torch and of the C library. `outputs`: results that ComfyUI keeps, when the prompt is over.
    """
    start_s, before = time.monotonic(), sampling.take()
    loaded = tuple(list_loaded()) if models else ()
    later = _unload() if models else False
    tpu_bytes = _unload_tpu() if models else 0
    forgets = forget_outputs(_patience_s()) if outputs else False
    gc.collect()
    pool_bytes = _empty_caches() if caches else 0
    after, found = sampling.take(), holdings(tick)
    return Freed(
        models=() if later else loaded,
        ram_bytes=before.ram_bytes - after.ram_bytes,
        device_bytes=_less_reserved(before, after),
        pool_bytes=pool_bytes,
        tpu_bytes=tpu_bytes,
        later=later,
        forgets=forgets,
        ram_left_bytes=after.ram_bytes,
        device_left_bytes={one.name: one.allocated_bytes for one in after.devices},
        held=found.rows[:SHOWN],
        seconds=time.monotonic() - start_s,
    )


def _unload() -> bool:
    """Unload ComfyUI's models; True if that happens later."""
    if models.is_in_node() or not following.has_server():
        models.unload()
        return False
    return not models.unload_between_prompts(_patience_s())


def _patience_s() -> float:
    """How long to wait: not while a prompt runs, since ComfyUI reacts only after it."""
    return 0.0 if following.running_prompt() else WAIT_S


def _unload_tpu() -> int:
    """Unload the TPU nodes' models, unless another prompt runs; returns their bytes."""
    if not models.is_in_node() and following.running_prompt():
        return 0  # waiting for its node could take minutes, and the next would load them again
    unload = getattr(sys.modules.get("holdfast.nodes.xla"), "unload", None)
    return int(unload() or 0) if unload is not None else 0


def _empty_caches() -> int:
    """Return free memory to the system; returns the bytes from Holdfast's pools."""
    from holdfast.memory import empty_cache

    freed = empty_cache()
    if "torch" in sys.modules:
        from holdfast.residency.files.freeing import trim

        trim()
    return freed


def _less_reserved(before: Sample, after: Sample) -> dict[str, int]:
    now = {one.name: one.reserved_bytes for one in after.devices}
    return {one.name: one.reserved_bytes - now.get(one.name, 0) for one in before.devices}

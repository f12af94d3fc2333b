"""Who holds memory: live tensors by their holders, among them ComfyUI's models and kept results."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

from holdfast.base.config import Config
from holdfast.memory.debug.holders import (
    NOT_LOOKED_FOR,
    Holding,
    Holdings,
    Tick,
    find_holdings,
)
from holdfast.nodes.host import models

__all__ = ["NOT_LOOKED_FOR", "Holding", "Holdings", "Tick", "holdings", "on_tpu", "shared_virtual"]


def holdings(tick: Tick | None = None, limit_s: float | None = None) -> Holdings:
    """Find the live tensors and their holders. `tick(done, total)` is called on the way.

    `limit_s` is HOLDFAST_REPORT_S by default.
    """
    limit_s = Config.load().report_s if limit_s is None else limit_s
    return find_holdings((_list_loaded, _list_kept), limit_s, tick)


def _list_loaded() -> Iterator[tuple[str, list[Any]]]:
    for patcher in models.patchers():
        yield f"ComfyUI's model {type(patcher.model).__name__}", [patcher.model]


def _list_kept() -> Iterator[tuple[str, Any]]:
    for entry in models.list_kept():
        kind = f" ({entry.kind})" if entry.kind else ""
        yield f"the kept result of node {entry.node}{kind}", entry.outputs


def shared_virtual() -> list[Any]:
    """The live allocations of shared virtual memory, largest first."""
    made = getattr(sys.modules.get("holdfast.memory.svm.interface"), "Allocation", None)
    if made is None:
        return []
    found = [one for one in gc.get_objects() if type(one) is made and not one.freed]
    return sorted(found, key=lambda one: -one.size)


def on_tpu() -> list[tuple[str, int]]:
    """The models that the TPU nodes keep: (name, bytes)."""
    ask = getattr(sys.modules.get("holdfast.nodes.xla"), "list_loaded", None)
    return [(str(name), int(nbytes or 0)) for name, nbytes in ask()] if ask is not None else []

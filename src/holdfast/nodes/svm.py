"""Nodes for shared virtual memory: discover, allocate by topology, measure, migrate, free.

A pointer is the handle of an allocation; a number, from a workflow file for example, is never taken
for an address. Migration and cleanup do not raise: they return False and the error text. A failed
allocation raises.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, cast

from holdfast.base.codec import encode
from holdfast.base.config import Config
from holdfast.base.errors import (
    BadInput,
    DoubleFree,
    ForeignPointer,
    HoldfastError,
    InUse,
    Misuse,
    Unsupported,
    UseAfterFree,
)
from holdfast.memory import svm
from holdfast.memory.svm import describe
from holdfast.nodes import host
from holdfast.nodes.host.sockets import ANYTHING
from holdfast.nodes.node import UncachedNode, boolean, class_mappings, declare, integer, link
from holdfast.nodes.refusing import only_links

CATEGORY = "RetryIX"
MIB = 1 << 20

_POINTER = {"memory_pointer": link("POINTER")}
_AFTER = {"after": link(ANYTHING)}


class _SvmNode(UncachedNode):  # a cached pointer may have been freed
    CATEGORY = CATEGORY


class SVMTologyDiscoveryNode(_SvmNode):
    """The memory domains of this machine."""

    RETURN_TYPES = ("DICT", "STRING")
    RETURN_NAMES = ("topology_data", "topology_info")
    FUNCTION = "discover_topology"
    INPUTS = declare({}, {"refresh_topology": boolean(False)})

    def discover_topology(self, refresh_topology: bool = False) -> tuple[dict[str, Any], str]:
        """(topology_data, topology_info). Does not raise: if no provider works, `topology_data`
        has the "error" and no domains.
        """
        try:
            layout = svm.provider().discover(refresh_topology)
            reports = svm.reports()
        except HoldfastError as exc:
            return _describe_failure(exc)
        data = layout.to_dict() | {"providers": [encode(report) for report in reports]}
        return data, describe.layout_text(layout, reports)


class SVMTopologyAwareAllocNode(_SvmNode):
    """Memory in the domain where it belongs."""

    RETURN_TYPES = ("POINTER", "STRING", "DICT")
    RETURN_NAMES = ("memory_pointer", "alloc_info", "memory_stats")
    FUNCTION = "alloc_memory"
    INPUTS = declare(
        {"size_mb": integer(1024, 1, 1 << 24), "set_affinity": boolean(True)},
        {"topology_data": link("DICT")},
    )
    VALIDATE_INPUTS = only_links("topology_data")

    def alloc_memory(
        self,
        size_mb: int = 1024,
        set_affinity: bool = True,
        topology_data: dict[str, Any] | None = None,
    ) -> tuple[svm.Allocation, str, dict[str, Any]]:
        """(memory_pointer, alloc_info, memory_stats). Raises BadInput, OutOfMemory, or Unsupported
        if the named provider does not work here; nothing is allocated then.
        """
        size = _size(size_mb)
        provider = svm.provider(_provider_name(topology_data))
        handle = provider.alloc(size)
        try:
            threads = _bind(handle) if set_affinity else "not bound: set_affinity is off"
            text = describe.allocation_text(handle, threads=threads)
            return handle, text, provider.statistics().to_dict()
        except BaseException:
            handle.free()  # ComfyUI keeps the error, and with it this frame
            raise


class SVMTopologyMetricsNode(_SvmNode):
    """How memory lies at the moment."""

    RETURN_TYPES = ("DICT", "STRING")
    RETURN_NAMES = ("topology_metrics", "metrics_info")
    FUNCTION = "get_metrics"
    OUTPUT_NODE = True
    INPUTS = declare({}, _POINTER | _AFTER)
    VALIDATE_INPUTS = only_links("memory_pointer")

    def get_metrics(
        self, memory_pointer: svm.Allocation | None = None, after: object = None
    ) -> tuple[dict[str, Any], str]:
        """(topology_metrics, metrics_info). If no provider works, `topology_metrics` has the
        "error". Raises ForeignPointer, or UseAfterFree for a freed pointer.
        """
        try:
            metrics = svm.metrics(memory_pointer)
        except Misuse:
            raise
        except HoldfastError as exc:
            return {"provider": None, "error": str(exc)}, _format_error(exc, _OTHER_PROVIDER)
        return metrics.to_dict(), describe.metrics_text(metrics)


class SVMMemoryMigrationNode(_SvmNode):
    """Pages from one domain to another."""

    RETURN_TYPES = ("BOOLEAN", "STRING")
    RETURN_NAMES = ("migration_success", "migration_info")
    FUNCTION = "migrate_memory"
    OUTPUT_NODE = True
    INPUTS = declare(
        {**_POINTER, "from_domain": integer(0, 0, 1023), "to_domain": integer(1, 0, 1023)}, _AFTER
    )
    VALIDATE_INPUTS = only_links("memory_pointer")

    def migrate_memory(
        self, memory_pointer: svm.Allocation, from_domain: int, to_domain: int, after: object = None
    ) -> tuple[bool, str]:
        """(migration_success, migration_info). Raises only ComfyUI's interrupt."""
        try:
            done = svm.migrate(memory_pointer, from_domain, to_domain, progress=host.progress())
        except HoldfastError as exc:
            return False, _format_pointer_error(exc, "use it where it is: every page is intact")
        return done.complete, describe.migration_text(done)


class SVMMemoryCleanupNode(_SvmNode):
    """Frees an allocation."""

    RETURN_TYPES = ("BOOLEAN", "STRING")
    RETURN_NAMES = ("cleanup_success", "cleanup_info")
    FUNCTION = "cleanup_memory"
    OUTPUT_NODE = True
    INPUTS = declare(_POINTER, _AFTER)
    VALIDATE_INPUTS = only_links("memory_pointer")

    def cleanup_memory(
        self, memory_pointer: svm.Allocation, after: object = None
    ) -> tuple[bool, str]:
        """(cleanup_success, cleanup_info). Does not raise."""
        try:
            svm.free(memory_pointer)
        except HoldfastError as exc:
            return False, _format_pointer_error(exc, "clean it up again: the memory is still there")
        return True, describe.freed_text(memory_pointer)


NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = class_mappings(
    SVMTologyDiscoveryNode,
    SVMTopologyAwareAllocNode,
    SVMTopologyMetricsNode,
    SVMMemoryMigrationNode,
    SVMMemoryCleanupNode,
)

_POINTER_ADVICE = "connect the memory_pointer of an allocation of this run"
_DOMAIN_ADVICE = "topology_info of SVM Topology Discovery lists the domains"
_OTHER_PROVIDER = "HOLDFAST_SVM_PROVIDER=simulated, which works everywhere"


def _format_error(exc: HoldfastError, advice: str) -> str:
    """The text of an error, with `advice` if it has no hint."""
    return str(exc) if exc.hint else f"{exc}\n  try: {advice}"


def _format_pointer_error(exc: HoldfastError, otherwise: str) -> str:
    """The text of an error about a pointer, with advice in terms of the workflow."""
    if isinstance(exc, (ForeignPointer, DoubleFree, UseAfterFree)):
        return str(type(exc)(exc.what, expected=exc.expected, hint=_POINTER_ADVICE))
    if isinstance(exc, InUse):
        return _format_error(exc, "run it again when that is over")
    return _format_error(exc, _DOMAIN_ADVICE if isinstance(exc, BadInput) else otherwise)


def _describe_failure(exc: HoldfastError) -> tuple[dict[str, Any], str]:
    text = _format_error(exc, _OTHER_PROVIDER)
    reports = _reports_without_choice()
    working = ", ".join(report.name for report in reports if report.status != "unavailable")
    data = {
        "provider": None,
        "domains": [],
        "simulated": False,
        "error": str(exc),
        "providers": [encode(report) for report in reports],
    }
    return data, f"{text}\nproviders that work here: {working}" if working else text


def _reports_without_choice() -> tuple[svm.Report, ...]:
    """Which providers work here, whatever provider the settings name."""
    try:
        config = dataclasses.replace(Config.load(), svm_provider=None)
        return svm.reports(config=config)
    except HoldfastError:
        return ()  # bad settings


def _size(size_mb: object) -> int:
    try:
        count = 0 if isinstance(size_mb, bool) else operator.index(cast("Any", size_mb))
    except TypeError:
        count = 0
    if count < 1:
        raise BadInput(
            f"cannot allocate {size_mb!r} MiB",
            expected="size_mb as an integer of MiB (2**20 bytes), at least 1",
        )
    return count * MIB


def _provider_name(topology_data: object) -> str | None:
    """The provider in `topology_data`; None for the automatic choice."""
    if topology_data is None:
        return None
    name = topology_data.get("provider") if isinstance(topology_data, dict) else None
    if isinstance(name, str) and name in svm.PROVIDERS:
        return name
    what = "topology_data is no topology: "
    if not isinstance(topology_data, dict):
        what += f"it is of type {type(topology_data).__name__}"
    elif isinstance(topology_data.get("error"), str):
        what = "topology_data has no provider: " + topology_data["error"].partition("\n")[0]
    else:
        what += f"its provider is {name!r}" if "provider" in topology_data else "it has no provider"
    raise BadInput(
        what,
        expected="the topology_data of an SVM Topology Discovery that found a provider, one of "
        + ", ".join(svm.PROVIDERS),
        hint="connect that output, or leave the input open",
    )


def _bind(handle: svm.Allocation) -> str | None:
    """Bind the threads of this process; returns the reason if they could not be."""
    try:
        grant = handle.provider.set_affinity(handle)
    except Unsupported as exc:
        return f"not bound: {exc.what}"
    if handle.provider.simulated:
        return "not bound: the CPUs of this memory are made up"
    name = handle.provider.name
    return None if grant else f"not bound: provider {name} knows no CPUs next to this memory"

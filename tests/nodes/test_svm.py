"""The five nodes from plain Python, from the example workflow, and beside a made-up ComfyUI."""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy
import pytest

from holdfast.base.errors import (
    BadInput,
    ForeignPointer,
    HoldfastError,
    InUse,
    OutOfMemory,
    Unsupported,
    UseAfterFree,
)
from holdfast.memory import svm
from holdfast.nodes import EXAMPLE_WORKFLOWS
from holdfast.nodes.svm import (
    NODE_CLASS_MAPPINGS,
    NODE_DISPLAY_NAME_MAPPINGS,
    SVMMemoryCleanupNode,
    SVMMemoryMigrationNode,
    SVMTologyDiscoveryNode,
    SVMTopologyAwareAllocNode,
    SVMTopologyMetricsNode,
)
from tests.needs import needs

MADE_UP = "SIMULATED: the machine is made up; nothing was measured or moved in hardware\n"
CONNECT = "  try: connect the memory_pointer of an allocation of this run"
MIB = 1 << 20


def _cannot(name: str) -> str | None:
    try:
        svm.provider(name)
    except HoldfastError as exc:
        return f"no provider {name!r}: {exc.what}"
    return None


PROVIDERS = [
    pytest.param("numa", marks=needs(_cannot("numa"))),
    pytest.param("opencl", marks=[pytest.mark.opencl, needs(_cannot("opencl"))]),
    "simulated",
    "retryix",
]


@pytest.fixture
def provider(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each provider in turn, named by the settings; all memory is given back in the end."""
    if request.param == "retryix":
        library = request.getfixturevalue("retryix_library")("whole")
        monkeypatch.setenv("HOLDFAST_RETRYIX_LIBRARY", str(library))
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", request.param)
    yield request.param
    gc.collect()
    assert svm.statistics().current_count == 0


every_provider = pytest.mark.parametrize("provider", PROVIDERS, indirect=True)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", "simulated")


@pytest.fixture
def pointer(simulated: None) -> svm.Allocation:
    return SVMTopologyAwareAllocNode().alloc_memory(size_mb=4)[0]


# ---- as the specification has them

SPECIFIED = {
    "SVMTologyDiscoveryNode": (
        "discover_topology",
        {"refresh_topology": ("optional", "BOOLEAN")},
        {"topology_data": "DICT", "topology_info": "STRING"},
    ),
    "SVMTopologyAwareAllocNode": (
        "alloc_memory",
        {
            "size_mb": ("required", "INT"),
            "set_affinity": ("required", "BOOLEAN"),
            "topology_data": ("optional", "DICT"),
        },
        {"memory_pointer": "POINTER", "alloc_info": "STRING", "memory_stats": "DICT"},
    ),
    "SVMTopologyMetricsNode": (
        "get_metrics",
        {"memory_pointer": ("optional", "POINTER"), "after": ("optional", "*")},
        {"topology_metrics": "DICT", "metrics_info": "STRING"},
    ),
    "SVMMemoryMigrationNode": (
        "migrate_memory",
        {
            "memory_pointer": ("required", "POINTER"),
            "from_domain": ("required", "INT"),
            "to_domain": ("required", "INT"),
            "after": ("optional", "*"),
        },
        {"migration_success": "BOOLEAN", "migration_info": "STRING"},
    ),
    "SVMMemoryCleanupNode": (
        "cleanup_memory",
        {"memory_pointer": ("required", "POINTER"), "after": ("optional", "*")},
        {"cleanup_success": "BOOLEAN", "cleanup_info": "STRING"},
    ),
}


def test_the_nodes_have_the_ids_methods_inputs_and_outputs_of_the_specification() -> None:
    found = {}
    for name, node in NODE_CLASS_MAPPINGS.items():
        inputs = {
            key: (part, kind)
            for part, entries in node.INPUT_TYPES().items()
            for key, (kind, _) in entries.items()
        }
        outputs = dict(zip(node.RETURN_NAMES, node.RETURN_TYPES, strict=True))
        found[name] = (node.FUNCTION, inputs, outputs)
        assert callable(getattr(node(), node.FUNCTION))
        assert node.CATEGORY == "RetryIX"
    assert found == SPECIFIED
    assert list(NODE_DISPLAY_NAME_MAPPINGS) == list(NODE_CLASS_MAPPINGS)


def test_the_defaults_are_those_of_the_specification() -> None:
    inputs = SVMTopologyAwareAllocNode.INPUT_TYPES()["required"]
    assert inputs["size_mb"][1]["default"] == 1024
    assert inputs["set_affinity"][1]["default"] is True


@pytest.mark.parametrize("node", NODE_CLASS_MAPPINGS.values())
def test_every_input_and_output_is_explained(node: Any) -> None:
    entries = [entry for part in node.INPUT_TYPES().values() for entry in part.values()]
    assert all(len(options["tooltip"]) > 10 for _, options in entries)
    assert len(node.OUTPUT_TOOLTIPS) == len(node.RETURN_TYPES)
    assert node.DESCRIPTION


@pytest.mark.parametrize("node", NODE_CLASS_MAPPINGS.values())
def test_no_result_is_ever_used_again(node: Any) -> None:
    assert math.isnan(node.IS_CHANGED(memory_pointer=None, size_mb=1))


def test_the_nodes_at_the_ends_of_the_chain_are_run_for_themselves() -> None:
    ends = {name for name, node in NODE_CLASS_MAPPINGS.items() if hasattr(node, "OUTPUT_NODE")}
    assert ends == {"SVMTopologyMetricsNode", "SVMMemoryMigrationNode", "SVMMemoryCleanupNode"}


def test_importing_the_nodes_brings_in_nothing_heavy() -> None:
    program = "import sys, holdfast.nodes; print(*{n.partition('.')[0] for n in sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert not set(done.stdout.decode().split()) & {"numpy", "torch", "pyopencl", "comfy", "rich"}


# ---- the example of the specification


@pytest.mark.slow
@every_provider
def test_the_example_of_the_specification_runs(provider: str) -> None:
    discovery = SVMTologyDiscoveryNode()
    topology, info = discovery.discover_topology()

    allocator = SVMTopologyAwareAllocNode()
    ptr, alloc_info, stats = allocator.alloc_memory(size_mb=1024)

    cleanup = SVMMemoryCleanupNode()
    success, cleanup_info = cleanup.cleanup_memory(ptr)

    assert topology["provider"] == stats["provider"] == provider
    assert f"provider {provider}: " in info
    assert f"allocated 1GiB at {int(ptr):#x} by provider {provider}\n" in alloc_info
    assert stats["current_bytes"] == 1024 * MIB
    assert success is True
    assert f"freed 1GiB at {int(ptr):#x} of provider {provider}\n" in cleanup_info


# ---- the example workflow


def workflow() -> dict[str, Any]:
    text = (EXAMPLE_WORKFLOWS / "svm_topology_workflow.json").read_text(encoding="utf-8")
    return json.loads(text)


CORE = {"PreviewAny": {"source": "*"}, "MarkdownNote": {}}  # nodes that ComfyUI has itself


def _accepts(node: dict[str, Any]) -> dict[str, str]:
    """The types of a node's inputs by name."""
    if node["type"] in CORE:
        return CORE[node["type"]]
    types = NODE_CLASS_MAPPINGS[node["type"]].INPUT_TYPES()
    return {name: entry[0] for part in types.values() for name, entry in part.items()}


def _widgets(node: dict[str, Any]) -> dict[str, Any]:
    """What stands in a node's fields, which come in the order of its inputs."""
    names = [name for name, kind in _accepts(node).items() if kind in ("INT", "BOOLEAN")]
    return dict(zip(names, node["widgets_values"], strict=True))


def _run(document: dict[str, Any], **changed: Any) -> dict[str, dict[str, Any]]:
    """Run a workflow as ComfyUI would: whatever has all that its links bring comes next.

    Of several that could run the last in the file does: only links may make the order.
    """
    links = {link[0]: link for link in document["links"]}
    waiting = [node for node in document["nodes"] if node["type"] in NODE_CLASS_MAPPINGS]
    done: dict[int, tuple[Any, ...]] = {}
    results: dict[str, dict[str, Any]] = {}
    while waiting:
        sources = {id(n): [links[i["link"]] for i in n["inputs"] if i["link"]] for n in waiting}
        node = next(n for n in reversed(waiting) if all(s[1] in done for s in sources[id(n)]))
        values = _widgets(node) | {
            entry["name"]: done[links[entry["link"]][1]][links[entry["link"]][2]]
            for entry in node["inputs"]
            if entry["link"]
        }
        values |= {name: value for name, value in changed.items() if name in values}
        cls = NODE_CLASS_MAPPINGS[node["type"]]
        done[node["id"]] = getattr(cls(), cls.FUNCTION)(**values)
        results[node["type"]] = dict(zip(cls.RETURN_NAMES, done[node["id"]], strict=True))
        waiting.remove(node)
    return results


def test_the_workflow_is_made_of_nodes_that_exist_and_links_that_fit() -> None:
    document = workflow()
    nodes = {node["id"]: node for node in document["nodes"]}
    assert {node["type"] for node in nodes.values()} == {*NODE_CLASS_MAPPINGS, *CORE}
    assert document["last_node_id"] == max(nodes)
    assert document["last_link_id"] == max(link[0] for link in document["links"])
    for number, source, output, target, entry, kind in document["links"]:
        start, end = nodes[source]["outputs"][output], nodes[target]["inputs"][entry]
        assert number in start["links"]
        assert end["link"] == number
        assert start["type"] == kind
        assert end["type"] in (kind, "*")


def test_the_workflow_has_the_inputs_and_outputs_of_its_nodes() -> None:
    for node in workflow()["nodes"]:
        accepts = _accepts(node)
        sockets = {entry["name"]: entry["type"] for entry in node["inputs"]}
        assert sockets == {k: v for k, v in accepts.items() if v not in ("INT", "BOOLEAN")}
        if node["type"] in NODE_CLASS_MAPPINGS:
            cls = NODE_CLASS_MAPPINGS[node["type"]]
            outputs = [(entry["name"], entry["type"]) for entry in node["outputs"]]
            assert outputs == list(zip(cls.RETURN_NAMES, cls.RETURN_TYPES, strict=True))
            assert len(_widgets(node)) == len(node["widgets_values"])


def test_the_boxes_of_the_workflow_do_not_lie_on_each_other() -> None:
    boxes = [(*node["pos"], *node["size"]) for node in workflow()["nodes"]]
    for index, (x, y, width, height) in enumerate(boxes):
        for left, top, w, h in boxes[index + 1 :]:
            assert x + width <= left or left + w <= x or y + height <= top or top + h <= y


@every_provider
def test_the_workflow_runs_in_the_order_of_its_links(provider: str) -> None:
    results = _run(workflow(), size_mb=8)
    assert list(results) == list(NODE_CLASS_MAPPINGS)
    pages = 8 * MIB // 4096
    discovery = results["SVMTologyDiscoveryNode"]["topology_data"]
    assert discovery["provider"] == provider
    metrics = results["SVMTopologyMetricsNode"]["topology_metrics"]
    assert sum(metrics["pages"].values()) == pages
    migration = results["SVMMemoryMigrationNode"]
    domains = [domain["id"] for domain in discovery["domains"]]
    assert migration["migration_success"] is (1 in domains)
    if {int(key): count for key, count in metrics["pages"].items()} == {1: pages}:
        # It lies where this thread may run.
        assert migration["migration_info"].startswith("nothing to move: no page was in domain 0")
    elif 1 in domains:
        moved = f"moved {pages} pages (8.4 MB) from domain 0 to domain 1 by provider {provider}"
        assert moved in migration["migration_info"]
    else:
        assert migration["migration_info"] == (
            f"{provider!r} has no domain 1\n"
            f"  expected: one of 0 ({discovery['domains'][0]['name']})\n"
            "  try: topology_info of SVM Topology Discovery lists the domains"
        )
    assert results["SVMMemoryCleanupNode"]["cleanup_success"] is True
    assert results["SVMTopologyAwareAllocNode"]["memory_pointer"].freed


def test_without_its_after_links_the_workflow_would_free_too_early(simulated: None) -> None:
    document = workflow()
    for node in document["nodes"]:
        for entry in node["inputs"]:
            entry["link"] = None if entry["name"] == "after" else entry["link"]
    with pytest.raises(UseAfterFree):
        _run(document, size_mb=1)


# ---- discovery


def test_discovery_tells_the_machine_in_figures_and_words(simulated: None) -> None:
    data, text = SVMTologyDiscoveryNode().discover_topology(refresh_topology=True)
    assert [domain["total_bytes"] for domain in data["domains"]] == [16 * 10**9] * 2 + [64 * 10**9]
    assert data["simulated"] is True
    assert data["providers"][-1] == {"name": "simulated", "status": "chosen", "reason": None}
    assert text.startswith(MADE_UP + "provider simulated: 3 domains\n")
    json.dumps(data)


def test_refreshing_is_passed_on(simulated: None, monkeypatch) -> None:
    asked = []
    provider = svm.provider()
    real = provider.discover
    monkeypatch.setattr(provider, "discover", lambda again=False: (asked.append(again), real())[1])
    SVMTologyDiscoveryNode().discover_topology(refresh_topology=True)
    SVMTologyDiscoveryNode().discover_topology()
    assert asked == [True, False]


def test_discovery_where_the_named_provider_does_not_work_says_what_does(monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", "numa")
    monkeypatch.setenv("HOLDFAST_SIMULATE", "1x1GB")
    data, text = SVMTologyDiscoveryNode().discover_topology()
    assert (data["provider"], data["domains"]) == (None, [])
    assert text == (
        "NUMA calls need a real Linux machine\n"
        "  expected: Linux, and no simulated machine in the settings\n"
        "  try: the provider 'simulated'\n"
        "providers that work here: simulated"
    )
    assert text.startswith(data["error"])
    with pytest.raises(BadInput) as caught:
        SVMTopologyAwareAllocNode().alloc_memory(1, topology_data=data)
    assert str(caught.value) == (
        "topology_data has no provider: NUMA calls need a real Linux machine\n"
        "  expected: the topology_data of an SVM Topology Discovery that found a provider, one of "
        "retryix, opencl, numa, simulated\n"
        "  try: connect that output, or leave the input open"
    )


def test_discovery_with_settings_that_cannot_be_read_says_so(monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEBUG", "perhaps")
    data, text = SVMTologyDiscoveryNode().discover_topology()
    assert data["providers"] == []
    assert text == (
        "cannot use HOLDFAST_DEBUG='perhaps'\n"
        "  expected: 1, true, yes, on, 0, false, no or off\n"
        "  try: HOLDFAST_SVM_PROVIDER=simulated, which works everywhere"
    )


# ---- allocation


def test_an_allocation_says_where_why_and_what_is_bound(simulated: None) -> None:
    pointer, text, stats = SVMTopologyAwareAllocNode().alloc_memory(size_mb=4)
    assert text == MADE_UP + (
        f"allocated 4MiB at {pointer.address:#x} by provider simulated\n"
        "  placement: bind, domain 0\n"
        "  reason: node:0 has the most free memory of those beside the CPUs: 16.0 GB\n"
        "  pages: 1024 of 4KiB: 1024 in domain 0 (recorded by the simulation)\n"
        "  threads: not bound: the CPUs of this memory are made up"
    )
    assert isinstance(pointer, svm.Allocation)
    assert int(pointer) == pointer.address
    assert (stats["current_bytes"], stats["simulated"]) == (4 * MIB, True)


def test_affinity_can_be_left_alone(simulated: None) -> None:
    _, text, _ = SVMTopologyAwareAllocNode().alloc_memory(size_mb=1, set_affinity=False)
    assert text.splitlines()[-1] == "  threads: not bound: set_affinity is off"


@needs(_cannot("numa"))
def test_threads_run_beside_the_memory_until_it_is_cleaned_up(monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", "numa")
    before = os.sched_getaffinity(0)
    pointer, text, _ = SVMTopologyAwareAllocNode().alloc_memory(size_mb=1)
    bound = set(pointer.placement.cpus) & before
    assert os.sched_getaffinity(0) == bound
    assert " bound to CPUs " in text.splitlines()[-1]
    assert SVMMemoryCleanupNode().cleanup_memory(pointer)[0]
    assert os.sched_getaffinity(0) == before


def test_memory_is_had_where_threads_cannot_be_bound(simulated: None, monkeypatch) -> None:
    def refuse(_: svm.Allocation) -> None:
        raise Unsupported("cannot run on CPUs [9]")

    monkeypatch.setattr(svm.provider(), "set_affinity", refuse)
    pointer, text, _ = SVMTopologyAwareAllocNode().alloc_memory(size_mb=1)
    assert not pointer.freed
    assert text.splitlines()[-1] == "  threads: not bound: cannot run on CPUs [9]"


def test_the_topology_decides_the_provider(monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", "numa")
    pointer, _, _ = SVMTopologyAwareAllocNode().alloc_memory(
        1, topology_data={"provider": "simulated"}
    )
    assert pointer.provider.name == "simulated"


@pytest.mark.parametrize(
    ("topology", "what"),
    [
        ("numa", "topology_data is no topology: it is of type str"),
        ({}, "topology_data is no topology: it has no provider"),
        ({"provider": "nvram"}, "topology_data is no topology: its provider is 'nvram'"),
        ({"provider": ["numa"]}, "topology_data is no topology: its provider is ['numa']"),
    ],
)
def test_what_is_no_topology_is_refused(topology: Any, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        SVMTopologyAwareAllocNode().alloc_memory(1, topology_data=topology)
    assert caught.value.what == what


@pytest.mark.parametrize("size", [0, -4, 1.5, True, "64", None])
def test_a_size_that_is_none_is_refused(simulated: None, size: Any) -> None:
    with pytest.raises(BadInput) as caught:
        SVMTopologyAwareAllocNode().alloc_memory(size_mb=size)
    assert str(caught.value) == (
        f"cannot allocate {size!r} MiB\n"
        "  expected: size_mb as an integer of MiB (2**20 bytes), at least 1"
    )
    assert svm.statistics().total_count == 0


def test_whole_numbers_of_numpy_are_sizes_and_domains(simulated: None) -> None:
    size: Any = numpy.int64(2)
    source: Any = numpy.uint8(0)
    target: Any = numpy.int32(1)
    pointer, _, stats = SVMTopologyAwareAllocNode().alloc_memory(size_mb=size)
    assert (pointer.size, stats["current_bytes"]) == (2 * MIB, 2 * MIB)
    assert SVMMemoryMigrationNode().migrate_memory(pointer, source, target)[0]
    assert pointer.where().pages == {1: 512}


def test_an_allocation_that_cannot_be_described_is_given_back(simulated: None, monkeypatch) -> None:
    def broken() -> svm.Statistics:
        raise Unsupported("the library does not answer")

    provider = svm.provider()
    with monkeypatch.context() as patched:
        patched.setattr(provider, "statistics", broken)
        with pytest.raises(Unsupported) as caught:
            SVMTopologyAwareAllocNode().alloc_memory(size_mb=1)
    assert provider.statistics().current_count == 0
    assert caught.value.what == "the library does not answer"


def test_more_than_there_is_raises_and_leaves_nothing(simulated: None) -> None:
    with pytest.raises(OutOfMemory) as caught:
        SVMTopologyAwareAllocNode().alloc_memory(size_mb=1 << 24)
    assert caught.value.hint == "a smaller size, another domain, or freeing something first"
    assert svm.statistics().current_bytes == 0


# ---- metrics, migration, cleanup


def test_metrics_are_of_one_allocation_or_of_all(pointer: svm.Allocation) -> None:
    other, _, _ = SVMTopologyAwareAllocNode().alloc_memory(size_mb=1)
    one, text = SVMTopologyMetricsNode().get_metrics(pointer)
    everything, _ = SVMTopologyMetricsNode().get_metrics()
    assert (one["pages"], everything["pages"]) == ({0: 1024}, {0: 1024, 1: 256})
    assert one["local_ratio"] == 1.0
    assert "  local: 100% (1024 pages local, 0 remote) for CPUs 0-3\n" in text
    assert not other.freed


def test_metrics_without_a_provider_say_so(monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_SVM_PROVIDER", "nvram")
    metrics, text = SVMTopologyMetricsNode().get_metrics()
    assert metrics["provider"] is None
    assert text == (
        "unknown provider 'nvram'\n"
        "  expected: one of retryix, opencl, numa, simulated\n"
        "  try: HOLDFAST_SVM_PROVIDER=simulated, which works everywhere"
    )


def test_migration_says_what_moved(pointer: svm.Allocation) -> None:
    assert SVMMemoryMigrationNode().migrate_memory(pointer, 0, 1, after="anything") == (
        True,
        MADE_UP + "moved 1024 pages (4.2 MB) from domain 0 to domain 1 by provider simulated\n"
        "  pages now: 1024 of 4KiB: 1024 in domain 1 (recorded by the simulation)",
    )


def test_migration_to_nowhere_is_false_with_advice(pointer: svm.Allocation) -> None:
    assert SVMMemoryMigrationNode().migrate_memory(pointer, 0, 7) == (
        False,
        "'simulated' has no domain 7\n"
        "  expected: one of 0 (node:0), 1 (node:1), 2 (node:2)\n"
        "  try: topology_info of SVM Topology Discovery lists the domains",
    )
    assert pointer.where().pages == {0: 1024}


def test_cleaning_up_twice_is_false_with_advice(pointer: svm.Allocation) -> None:
    shown = repr(pointer)
    assert SVMMemoryCleanupNode().cleanup_memory(pointer) == (
        True,
        MADE_UP + f"freed 4MiB at {pointer.address:#x} of provider simulated\n"
        "  in use now: 0 B in 0 allocations; peak 4.2 MB, total 4.2 MB",
    )
    assert SVMMemoryCleanupNode().cleanup_memory(pointer) == (
        False,
        f"{shown[:-1]}, freed> was freed before\n"
        "  expected: an allocation that is not freed yet\n" + CONNECT,
    )
    with pytest.raises(UseAfterFree):
        SVMTopologyMetricsNode().get_metrics(pointer)
    assert SVMMemoryMigrationNode().migrate_memory(pointer, 0, 1) == (
        False,
        f"{shown[:-1]}, freed> was freed and cannot be used\n"
        "  expected: an allocation that is not freed yet\n" + CONNECT,
    )


def test_memory_is_cleaned_up_also_where_the_library_cannot_count(
    pointer: svm.Allocation, monkeypatch
) -> None:
    def broken() -> svm.Statistics:
        raise Unsupported("the library does not answer", expected="JSON")

    with monkeypatch.context() as patched:
        patched.setattr(pointer.provider, "statistics", broken)
        assert SVMMemoryCleanupNode().cleanup_memory(pointer) == (
            True,
            MADE_UP + f"freed 4MiB at {pointer.address:#x} of provider simulated\n"
            "  in use now: unknown: the library does not answer",
        )
    assert pointer.freed


@pytest.mark.parametrize(
    ("error", "migration", "cleanup"),
    [
        (Unsupported("no"), "use it where it is: every page is intact",
         "clean it up again: the memory is still there"),
        (InUse("busy"), "run it again when that is over", "run it again when that is over"),
        (InUse("looked at", hint="look away"), "look away", "look away"),
        (OutOfMemory("full", hint="free some"), "free some", "free some"),
        (ForeignPointer("no pointer", hint="handle.free()"),
         "connect the memory_pointer of an allocation of this run",
         "connect the memory_pointer of an allocation of this run"),
    ],
    ids=["refused", "busy", "looked at", "full", "foreign"],
)  # fmt: skip
def test_the_advice_fits_the_error(
    pointer: svm.Allocation, monkeypatch, error: HoldfastError, migration: str, cleanup: str
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(pointer.provider, "migrate", fail)
        patched.setattr(pointer.provider, "free", fail)
        moved = SVMMemoryMigrationNode().migrate_memory(pointer, 0, 1)
        cleaned = SVMMemoryCleanupNode().cleanup_memory(pointer)
    assert moved == (False, f"{error.what}\n  try: {migration}")
    assert cleaned == (False, f"{error.what}\n  try: {cleanup}")


def test_a_forged_pointer_is_refused_like_any_other_stranger() -> None:
    forged = svm.Allocation.__new__(svm.Allocation)
    cleaned, text = SVMMemoryCleanupNode().cleanup_memory(forged)
    moved, why = SVMMemoryMigrationNode().migrate_memory(forged, 0, 1)
    assert (cleaned, moved) == (False, False)
    for answer in (text, why):
        assert "is no allocation of this process\n" in answer
        assert answer.endswith("\n" + CONNECT)
    with pytest.raises(ForeignPointer):
        SVMTopologyMetricsNode().get_metrics(forged)


def test_memory_that_somebody_looks_at_is_not_cleaned_up(pointer: svm.Allocation) -> None:
    view = pointer.view()
    cleaned, text = SVMMemoryCleanupNode().cleanup_memory(pointer)
    assert not cleaned
    assert "1 view uses it" in text
    view[0] = 7  # it is still there
    del view
    assert SVMMemoryCleanupNode().cleanup_memory(pointer)[0]


@pytest.mark.parametrize("number", [0, 140000000000000, "0x7f0000000000", None])
def test_a_number_is_never_taken_for_an_address(pointer: svm.Allocation, number: Any) -> None:
    cleaned, text = SVMMemoryCleanupNode().cleanup_memory(number)
    moved, why = SVMMemoryMigrationNode().migrate_memory(number, 0, 1)
    shown = f"{number:#x}" if isinstance(number, int) else repr(number)
    assert (cleaned, moved) == (False, False)
    for answer in (text, why):
        assert answer.startswith(f"{shown} is no allocation of this process\n  expected: the ")
        assert answer.endswith("\n" + CONNECT)
    if number is not None:
        with pytest.raises(ForeignPointer):
            SVMTopologyMetricsNode().get_metrics(number)


def test_the_address_of_an_allocation_does_not_free_it(pointer: svm.Allocation) -> None:
    assert SVMMemoryCleanupNode().cleanup_memory(int(pointer))[0] is False  # type: ignore[arg-type]
    assert not pointer.freed


# ---- ComfyUI


class Interrupted(Exception):
    """What ComfyUI raises."""


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A ComfyUI with a progress bar, and a button that is pressed when `stop` is set."""
    seen: dict[str, Any] = {"steps": [], "bars": [], "stop": False}

    class ProgressBar:
        def __init__(self, total: int) -> None:
            seen["bars"].append(total)

        def update_absolute(self, value: int, total: int | None = None) -> None:
            seen["steps"].append((value, total))

    def throw() -> None:
        if seen["stop"]:
            raise Interrupted

    utils, management = ModuleType("comfy.utils"), ModuleType("comfy.model_management")
    utils.ProgressBar = ProgressBar  # type: ignore[attr-defined]
    management.throw_exception_if_processing_interrupted = throw  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comfy.utils", utils)
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)
    return seen


def test_progress_shows_in_comfyui(comfy: dict[str, Any], simulated: None) -> None:
    pointer, _, _ = SVMTopologyAwareAllocNode().alloc_memory(size_mb=40)
    assert SVMMemoryMigrationNode().migrate_memory(pointer, 0, 1)[0]
    assert comfy["bars"] == [40 * MIB]
    assert comfy["steps"] == [(done * MIB, 40 * MIB) for done in (16, 32, 40)]


def test_its_stop_button_gets_through_and_every_page_is_whole(
    comfy: dict[str, Any], simulated: None
) -> None:
    pointer, _, _ = SVMTopologyAwareAllocNode().alloc_memory(size_mb=40)
    comfy["stop"] = True
    with pytest.raises(Interrupted):
        SVMMemoryMigrationNode().migrate_memory(pointer, 0, 1)
    assert pointer.where().pages == {0: 6144, 1: 4096}
    assert SVMMemoryCleanupNode().cleanup_memory(pointer)[0]

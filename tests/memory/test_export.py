from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import BadInput
from holdfast.memory.profile import export
from holdfast.memory.profile.recording import Event, Frame, Kind, MemoryPlace, Recording
from holdfast.memory.profile.report import MemoryShare, Report
from tests.memory import samples
from tests.memory.samples import MS

EXPECTED = (
    "\n  expected: the pickle that torch.cuda.memory._dump_snapshot writes, or the dictionary in it"
)


def _snapshot(made: Recording) -> dict[str, Any]:
    return pickle.loads(export.torch_snapshot(made))


# ---- torch


@pytest.mark.parametrize("made", [samples.few(), samples.unet(2), Recording()], ids=len)
def test_torchs_own_functions_read_the_snapshot(made: Recording) -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    document = _snapshot(made)
    assert "total_reserved" in viz.segsum(document)
    assert viz.trace(document).count("Device") == sum(map(bool, document["device_traces"]))
    assert "MemoryViz" in viz.trace_plot(document)
    assert "MemoryViz" in viz.segment_plot(document)


@pytest.mark.slow
def test_torchs_own_command_reads_the_snapshot(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "a.pickle").write_bytes(export.torch_snapshot(samples.unet(2)))
    tool = [sys.executable, "-m", "torch.cuda._memory_viz"]
    for action in (["trace_plot", "a.pickle", "-o", "a.html"], ["stats", "a.pickle"]):
        done = subprocess.run([*tool, *action], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.html").stat().st_size > 10_000


def test_a_snapshot_holds_the_trace_and_the_segments_that_are_left() -> None:
    document = _snapshot(samples.few())
    device, host = document["device_traces"]
    assert [(e["action"], e["addr"], e["size"]) for e in device] == [
        ("segment_alloc", 0x1000, 4096),
        ("alloc", 0x1000, 100),
    ]
    assert [(e["action"], e["size"]) for e in host] == [
        ("alloc", 30),
        ("alloc", 20),
        ("free_requested", 30),
        ("free_completed", 30),
        ("free_requested", 20),
        ("free_completed", 20),
    ]
    assert host[0]["time_us"] == 1_000_000 * 10**6 + 20_000
    assert [f["name"] for f in host[0]["frames"]] == ["linear", "forward", "<module>", "vae"]
    (segment,) = document["segments"]
    assert (segment["device"], segment["total_size"], segment["allocated_size"]) == (0, 4096, 100)
    assert [(b["state"], b["size"]) for b in segment["blocks"]] == [
        ("active_allocated", 100),
        ("inactive", 3996),
    ]


def test_blocks_outside_every_segment_get_segments_around_them() -> None:
    made = Recording(places_table=[MemoryPlace("numpy", "cpu")])
    for address, size in ((0, 100), (150, 50), (10 << 20, 8)):
        made.add(Event(1, Kind.ALLOC, address, size, 0, 0, 0))
    found = [(s["address"], s["total_size"], len(s["blocks"])) for s in _snapshot(made)["segments"]]
    assert found == [(0, 200, 3), (10 << 20, 8, 1)]


@pytest.mark.parametrize("made", [samples.few(), samples.unet(2), samples.many(2000)], ids=len)
def test_a_snapshot_comes_back_as_the_same_blocks(made: Recording) -> None:
    ours, back = Report(made), Report(export.from_torch_snapshot(export.torch_snapshot(made)))
    assert (back.peak_bytes, back.end_bytes) == (ours.peak_bytes, ours.end_bytes)
    assert back.total_bytes == ours.total_bytes
    assert back.by_location() == ours.by_location()
    assert back.by_tag() == ours.by_tag()
    assert back.allocated_by_location() == ours.allocated_by_location()


def _torch_made() -> dict[str, Any]:
    """As torch writes it; the trace began late, so that older blocks are not in it."""
    frames = [{"filename": "/me/a.py", "line": 4, "name": "f"}]
    return {
        "segments": [
            {
                "device": 0,
                "address": 0x1000,
                "total_size": 2048,
                "blocks": [
                    {"size": 512, "state": "active_allocated", "frames": frames},
                    {"size": 512, "state": "active_pending_free", "frames": []},
                    {"size": 1024, "state": "inactive"},
                ],
            }
        ],
        "device_traces": [
            [
                {"action": "free_requested", "addr": 0x9000, "size": 256, "time_us": 10},
                {"action": "free_completed", "addr": 0x9000, "size": 256, "time_us": 11},
                {"action": "alloc", "addr": 0x1200, "size": 512, "time_us": 12, "frames": frames},
                {"action": "oom", "addr": 0, "size": 9999, "device_free": 3, "time_us": 13},
                {"action": "snapshot", "addr": 0, "size": 0, "time_us": 14},
            ]
        ],
    }


def test_what_was_there_before_the_trace_begins_with_the_recording() -> None:
    made = export.from_torch_snapshot(_torch_made())
    assert [event[:4] for event in made.events()] == [
        (0, Kind.RESERVE, 0x1000, 2048),
        (0, Kind.ALLOC, 0x1000, 512),
        (0, Kind.ALLOC, 0x9000, 256),
        (1000, Kind.FREE, 0x9000, 256),
        (2000, Kind.ALLOC, 0x1200, 512),
    ]
    assert made.notes == ["cuda:0 ran out of memory for 9999 bytes"]
    assert made.places_table == [MemoryPlace("torch", "cuda:0")]
    assert Report(made).left_by_location() == [MemoryShare("/me/a.py:4 in f", 1024, 2)]


def test_a_pickle_that_would_run_something_is_refused_and_does_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(BadInput) as caught:
        export.from_torch_snapshot(pickle.dumps({"segments": Evil()}))
    assert str(caught.value) == (
        f"this is not a torch memory snapshot: it holds an object of posix.mkdir{EXPECTED}"
    )
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("snapshot", "what"),
    [
        (pickle.dumps([1, 2]), "this is not a torch memory snapshot"),
        ({"segments": []}, "this is not a torch memory snapshot"),
        (b"\x80\x04nothing", "this is not a torch memory snapshot: "),
        (
            {"segments": [{"device": 0}], "device_traces": []},
            "this torch memory snapshot is broken: KeyError 'address'",
        ),
    ],
)
def test_what_is_no_snapshot_is_refused(snapshot: Any, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        export.from_torch_snapshot(snapshot)
    assert str(caught.value).startswith(what)
    assert str(caught.value).endswith(EXPECTED)


# ---- Perfetto


def test_the_trace_has_counters_of_every_place_and_of_resident_memory() -> None:
    rows = json.loads(export.perfetto(samples.few()))["traceEvents"]
    counters: dict[str, list[tuple[float, int]]] = {}
    for row in rows:
        if row["ph"] == "C":
            counters.setdefault(row["name"], []).append((row["ts"], row["args"]["bytes"]))
    assert counters == {
        "torch cpu": [(5000, 0), (20_000, 30), (30_000, 50), (40_000, 20), (50_000, 0)],
        "pool cuda:0 (weights)": [(5000, 0), (10_000, 100)],
        "rss": [(0, 400), (30_000, 900), (50_000, 700)],
    }


def test_blocks_are_pairs_of_begin_and_end() -> None:
    rows = json.loads(export.perfetto(samples.few()))["traceEvents"]
    begins = {row["id"]: row for row in rows if row["ph"] == "b"}
    ends = {row["id"]: row for row in rows if row["ph"] == "e"}
    spans = {(begins[i]["args"]["bytes"], begins[i]["ts"], ends[i]["ts"]) for i in begins}
    assert spans == {(100, 10_000, 60_000), (30, 20_000, 40_000), (20, 30_000, 50_000)}
    assert begins.keys() == ends.keys()
    assert begins[1]["args"]["tag"] == "vae"


# ---- collapsed stacks


def test_stacks_are_lines_from_the_root_to_the_leaf() -> None:
    root = "<module> (/home/me/few.py"
    torch = "linear (/usr/lib/python3/site-packages/torch/nn/functional.py:7)"
    load = f"{root}:2);load (/home/me/few.py:20) 100\n"
    forward = f"{root}:3);forward (/home/me/few.py:12);{torch} 50\n"
    assert export.collapse_stacks(samples.few()) == load + forward
    assert export.collapse_stacks(samples.few(), at="total") == load + forward
    assert export.collapse_stacks(samples.few(), at="end") == load


def test_a_separator_in_a_name_is_no_separator() -> None:
    made = Recording(places_table=[MemoryPlace("pool", "cpu")])
    made.stacks_table.append((Frame("a;b\n.py", 1, "f"),))
    made.add(Event(0, Kind.ALLOC, 0, 5, 1, 0, 0))
    made.add(Event(1 * MS, Kind.ALLOC, 9, 6, 0, 0, 0))
    assert export.collapse_stacks(made) == "(no stack recorded) 6\nf (a_b_.py:1) 5\n"


def test_another_moment_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        export.collapse_stacks(samples.few(), at="noon")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "cannot collapse stacks at 'noon'\n"
        '  expected: "peak", "total" or "end"'
    )  # fmt: skip

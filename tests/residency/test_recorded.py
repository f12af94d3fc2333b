from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.base.errors import BadInput, Misuse
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.managed.group import Group
from holdfast.residency.managed.manage import manage, unmanage
from holdfast.residency.managed.managed import Managed
from holdfast.residency.recording import page
from holdfast.residency.recording.journal import STALL_MS, THERE_BEFORE, Entry, Journal
from holdfast.residency.recording.recording import ResidencyRecording, recording
from holdfast.residency.recording.summary import LINK_BUSY, group_by_kind

WIDE, LAYERS, ROWS = 96, 12, 24
WEIGHTS = LAYERS * (WIDE * WIDE + WIDE) * 4


class Net(nn.Module):
    def __init__(self, wide: int = WIDE) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(wide, wide) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def slow_link() -> Simulated:
    """So slow that every layer waits."""
    return Simulated(link_gb_s=0.4, compute_gflops=100.0, memory_gb_s=20.0)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().requires_grad_(False)


@pytest.fixture
def device() -> Simulated:
    return slow_link()


@pytest.fixture
def managed(net: Net, device: Simulated) -> Iterator[Managed]:
    yield manage(net, WEIGHTS // 2, device, pack=False)
    unmanage(net)


INPUT = torch.linspace(-1, 1, ROWS * WIDE).reshape(ROWS, WIDE)


def _recorded(managed: Managed, passes: int) -> ResidencyRecording:
    with managed.recording() as recorded:
        for _ in range(passes):
            managed.module(INPUT)
    return recorded


def test_the_link_in_the_summary_is_what_the_device_counted(
    managed: Managed, device: Simulated
) -> None:
    found = _recorded(managed, 5).summary()
    assert found.passes == 5
    assert found.link_bytes == device.copied_bytes
    assert found.link_busy_ms == pytest.approx(device.link_busy_ms)
    assert 0.8 < found.link_share <= 1.0
    assert found.link_gb_s is not None
    assert found.link_gb_s < 0.4


def test_only_what_was_copied_while_recording_counts(managed: Managed, device: Simulated) -> None:
    for _ in range(4):
        managed.module(INPUT)
    device.synchronize()
    bytes_before, busy_before = device.copied_bytes, device.link_busy_ms
    found = _recorded(managed, 3).summary()
    assert found.link_bytes == device.copied_bytes - bytes_before > 0
    assert found.link_busy_ms == pytest.approx(device.link_busy_ms - busy_before)


def test_what_is_not_stalled_is_computed(managed: Managed) -> None:
    """A pass of the resident module takes as long as one that streams, without its stalls."""
    for _ in range(4):
        managed.module(INPUT)
    found = _recorded(managed, 3).summary()
    resident, module = slow_link(), Net().requires_grad_(False)
    with resident.computing():
        for _ in range(3):
            module(INPUT)
    computed_ms = found.pass_ms - found.stall_ms
    assert computed_ms == pytest.approx(resident.now_ms, abs=3 * LAYERS * STALL_MS)
    assert found.stall_ms > 2 * resident.now_ms
    assert found.stalls_by_reason[0].name == LINK_BUSY


def test_recording_changes_no_result(net: Net, device: Simulated) -> None:
    expected = net(INPUT)
    managed = manage(net, WEIGHTS // 2, device, pack=False)
    with managed.recording():
        assert all(torch.equal(net(INPUT), expected) for _ in range(4))
    assert torch.equal(net(INPUT), expected)
    unmanage(net)


def test_every_streamed_copy_has_its_stay_and_every_stay_its_copy(managed: Managed) -> None:
    kinds = group_by_kind(_recorded(managed, 5).entries)
    kept = {e.name for e in kinds["keep"]}
    copied = [(e.name, e.end_ms) for e in kinds["copy"]]
    stayed = [(e.name, e.start_ms) for e in kinds["stay"]]
    assert sorted(stayed) == sorted(c for c in copied if c in stayed)
    missing = [c for c in copied if c not in stayed]
    assert {name for name, _ in missing} <= kept
    assert len(missing) == len(kinds["keep"])


def test_at_no_time_was_more_there_than_the_budget(managed: Managed) -> None:
    recorded = _recorded(managed, 5)
    changes = [
        (at_ms, nbytes)
        for stay in page.find_stays(recorded.entries)
        if stay.start_ms < stay.end_ms
        for at_ms, nbytes in ((stay.start_ms, stay.nbytes), (stay.end_ms, -stay.nbytes))
    ]
    total = most = 0
    for _, change in sorted(changes):  # what leaves goes first
        total += change
        most = max(most, total)
    assert WEIGHTS // 4 < most <= WEIGHTS // 2
    assert total == 0


def test_what_stayed_from_before_is_in_the_recording(managed: Managed) -> None:
    for _ in range(4):
        managed.module(INPUT)
    recorded = _recorded(managed, 1)
    there = {e.name: e.nbytes for e in recorded.entries if e.reason == THERE_BEFORE}
    assert there == managed.kept_bytes()
    assert sum(there.values()) > WEIGHTS // 8
    assert recorded.summary().kept_bytes == 0


def test_weights_are_in_the_order_of_their_use(managed: Managed) -> None:
    recorded = _recorded(managed, 1)
    assert recorded.order == [("Net", name) for name in managed.names()]
    blocks = [name for _, name in recorded.order if name.endswith("weight")]
    assert blocks == [f"blocks.{i}.weight" for i in range(LAYERS)]


def test_the_traced_pass_loads_on_demand_and_says_so(managed: Managed) -> None:
    kinds = group_by_kind(_recorded(managed, 2).entries)
    assert [e.reason for e in kinds["pass"]] == ["traced", ""]
    assert [e.name for e in kinds["demand"]] == [f"blocks.{i}" for i in range(LAYERS)]
    assert {e.reason for e in kinds["stall"] if e.start_ms < kinds["pass"][0].end_ms} == {
        "loaded on demand"
    }


def test_evictions_tell_their_reason_and_bytes(managed: Managed) -> None:
    for _ in range(4):
        managed.module(INPUT)
    kept_bytes = sum(managed.kept_bytes().values())
    with managed.recording() as recorded:
        managed.set_budget(WEIGHTS // 4)
        managed.module(INPUT)
    (share,) = recorded.summary().evictions_by_reason
    assert (share.name, share.nbytes) == ("the budget shrank", kept_bytes)


def test_a_pass_that_broke_off_is_recorded(managed: Managed) -> None:
    with managed.recording() as recorded, pytest.raises(RuntimeError, match="shapes"):
        managed.module(INPUT[:, :5])
    reasons = [e.reason for e in recorded.entries if e.kind == "pass"]
    assert reasons == ["broken off: RuntimeError"]


def test_packed_weights_are_decoded_in_their_own_lane(device: Simulated) -> None:
    torch.manual_seed(0)
    net = Net(384).requires_grad_(False).to(torch.bfloat16)
    managed = manage(net, LAYERS * 384 * 384, device, pack=True)  # half of it
    with managed.recording() as recorded:
        for _ in range(4):
            net(torch.ones(4, 384, dtype=torch.bfloat16))
    found = recorded.summary()
    assert found.decodes > LAYERS
    assert 0 < found.decode_busy_ms < found.link_busy_ms
    assert found.link_bytes == device.copied_bytes
    unmanage(net)


def test_modules_of_one_group_are_told_apart(device: Simulated) -> None:
    torch.manual_seed(0)
    group = Group(device, WEIGHTS)
    nets = [Net().requires_grad_(False) for _ in range(2)]
    for net in nets:
        manage(net, device=device, group=group, pack=False)
    with recording(group, "two") as recorded:
        for _ in range(2):
            for net in nets:
                net(INPUT)
    assert {e.module for e in recorded.entries} == {"Net", "Net 2"}
    assert [e.module for e in group_by_kind(recorded.entries)["pass"]] == ["Net", "Net 2"] * 2
    assert len(recorded.order) == len(set(recorded.order)) == 4 * LAYERS
    for net in nets:
        unmanage(net)


def test_one_recording_at_a_time(managed: Managed) -> None:
    with managed.recording(), pytest.raises(Misuse) as caught, managed.recording():
        pass
    assert str(caught.value) == (
        "cannot record the residency of a group twice at once\n"
        "  expected: one recording at a time\n"
        "  try: end the block of the other recording first"
    )
    assert _recorded(managed, 1).summary().passes == 1


def test_nothing_is_noted_outside_of_a_recording(managed: Managed, device: Simulated) -> None:
    recorded = _recorded(managed, 1)
    count = len(recorded.entries)
    managed.module(INPUT)
    assert device.log is None
    assert len(recorded.entries) == count


def test_a_mark_behind_a_wait_has_the_time_of_the_wait(device: Simulated) -> None:
    journal = Journal(device)
    journal.start()
    target, source = device.empty(400_000), torch.zeros(400_000, dtype=torch.uint8)
    with device.computing(), journal.labelled("a"):
        journal.wait("a", device.copy([(target, source)], []))
        journal.note_stay("a", 400_000)
        torch.ones(50_000)
    journal.stop()
    (copy, stall, stay) = sorted(journal.entries(), key=lambda e: e.kind)
    assert (copy.start_ms, copy.end_ms) == pytest.approx((0.0, 1.008))
    assert (stall.start_ms, stall.end_ms) == pytest.approx((0.0, 1.008))
    assert (stay.start_ms, stay.end_ms) == pytest.approx((1.008, 1.008))
    assert device.now_ms > 1.008


class Strict(Simulated):
    """Like CUDA events: only marks made with `timed` have a time."""

    def __init__(self) -> None:
        super().__init__(link_gb_s=0.4, compute_gflops=100.0, memory_gb_s=20.0)
        self._timed: dict[int, Any] = {}

    def mark(self, timed: bool = False) -> Any:
        mark = super().mark(timed)
        if timed:
            self._timed[id(mark)] = mark
        return mark

    def copy(self, pairs: Any, after: Any) -> Any:
        return self._done(super().copy(pairs, after))

    def decode(self, parts: Any) -> Any:
        return self._done(super().decode(parts))

    def _done(self, mark: Any) -> Any:
        if self.log is not None:
            self._timed |= {id(mark): mark, id(mark.start): mark.start}
        return mark

    def between_ms(self, start: Any, end: Any) -> float:
        assert id(start) in self._timed
        assert id(end) in self._timed
        assert None not in (start.at_ms, end.at_ms)
        return super().between_ms(start, end)


@pytest.mark.parametrize("before", range(5))
def test_only_marks_that_have_a_time_are_asked_for_it(net: Net, before: int) -> None:
    managed = manage(net, WEIGHTS // 2, Strict(), pack=False)
    for _ in range(before):
        net(INPUT)
    found = _recorded(managed, 3).summary()
    assert found.passes == 3
    assert found.copies > 0
    unmanage(net)


# ---- files


RECORDED = ResidencyRecording(
    "a run",
    [
        Entry("keep", "a.weight", 4, 0.0, 0.0, THERE_BEFORE, "M"),
        Entry("pass", "forward", 0, 0.0, 3.0, "", "M"),
        Entry("copy", "b.weight", 9, 0.5, 1.5, "", "M"),
        Entry("stay", "b.weight", 9, 1.5, 2.0, "", "M"),
        Entry("evict", "a.weight", 4, 2.5, 2.5, "why", "M"),
    ],
    [("M", "a.weight"), ("M", "b.weight")],
)


def test_json_comes_back_as_it_went() -> None:
    assert ResidencyRecording.from_json(RECORDED.to_json()) == RECORDED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "something else"}',
        RECORDED.to_json().replace('"kind":"copy"', '"kind":"fly"'),
        RECORDED.to_json().replace('"nbytes"', '"size"'),
    ],
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        ResidencyRecording.from_json(text)
    assert str(caught.value) == (
        "cannot read a residency recording: the text is not one\n"
        "  expected: JSON of the format 'holdfast residency 1', as to_json writes it"
    )


def test_the_trace_for_perfetto() -> None:
    rows = json.loads(RECORDED.perfetto())["traceEvents"]
    copies = [row for row in rows if row["ph"] == "X" and row["cat"] == "copy"]
    args = {"bytes": 9, "reason": "", "module": "M"}
    lane = {"ph": "X", "pid": 1, "tid": 3, "cat": "copy", "name": "b.weight"}
    assert copies == [{**lane, "ts": 500.0, "dur": 1000.0, "args": args}]
    assert [row["name"] for row in rows if row["ph"] == "i"] == ["keep a.weight", "evict a.weight"]
    counted = [(r["name"], r["ts"], r["args"]["bytes"]) for r in rows if r["ph"] == "C"]
    assert counted == [
        ("weights kept", 0.0, 4),
        ("weights kept", 2500.0, 0),
        ("weights streamed", 1500.0, 9),
        ("weights streamed", 2000.0, 0),
    ]


def test_the_name_of_the_file_says_what_is_written(tmp_path: Path) -> None:
    assert RECORDED.save(tmp_path / "a.html").read_text().startswith("<!DOCTYPE html>")
    assert RECORDED.save(tmp_path / "a.json").read_text() == RECORDED.to_json()
    assert RECORDED.save(str(tmp_path / "a.perfetto.json")).read_text() == RECORDED.perfetto()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    with pytest.raises(BadInput) as caught:
        RECORDED.save(path)
    assert str(caught.value) == (
        f"cannot tell from {str(path)!r} what to write\n"
        "  expected: a name that ends in .html, .perfetto.json or .json"
    )


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    path = tmp_path / "no" / "a.html"
    with pytest.raises(BadInput) as caught:
        RECORDED.save(path)
    assert str(caught.value) == (
        f"cannot write {str(path)!r}: No such file or directory\n"
        "  expected: a path in a folder that exists"
    )

from __future__ import annotations

import json

from holdfast.memory.profile.diff import Amount, diff
from holdfast.memory.profile.recording import Event, Kind, Recording
from tests.memory import samples
from tests.memory.samples import MS

LOAD = "/home/me/few.py:20 in load"
FORWARD = "/home/me/few.py:12 in forward"


def _grown() -> Recording:
    """`few` with 70 bytes more of one line, which are never freed."""
    made = samples.few()
    made.title = "grown.py"
    made.add(Event(55 * MS, Kind.ALLOC, 0xB000, 70, 1, 0, 1))
    return made


def test_every_line_has_its_figures_before_and_after() -> None:
    found = diff(samples.few(), _grown())
    assert {line.name: line[1:] for line in found.lines} == {
        FORWARD: (Amount(50, 70), Amount(0, 70), Amount(50, 120), Amount(2, 3)),
        LOAD: (Amount(100, 100), Amount(100, 100), Amount(100, 100), Amount(1, 1)),
    }
    assert found.lines[0].name == FORWARD


def test_a_line_that_is_in_one_recording_alone_has_nothing_in_the_other() -> None:
    found = diff(Recording(), samples.few())
    assert [line.total_bytes for line in found.lines] == [Amount(0, 100), Amount(0, 50)]
    assert diff(samples.few(), Recording()).peak_bytes.change == -150


def test_the_summary_lists_what_changed() -> None:
    assert (
        diff(samples.few(), _grown()).summary()
        == """\
before    few.py
after     grown.py
peak      150 B → 170 B (+20 B)
at end    100 B → 170 B (+70 B)
in all    150 B → 220 B (+70 B)

at the peak, by source line
  50 B → 70 B (+20 B)                   /home/me/few.py:12 in forward

at the end, by source line
  0 B → 70 B (+70 B)                    /home/me/few.py:12 in forward

allocated in all, by source line
  50 B → 120 B (+70 B)                  /home/me/few.py:12 in forward"""
    )


def test_two_equal_recordings_differ_in_nothing() -> None:
    assert (
        diff(samples.few(), samples.few()).summary()
        == """\
before    few.py
after     few.py
peak      150 B → 150 B (no change)
at end    100 B → 100 B (no change)
in all    150 B → 150 B (no change)"""
    )


def test_the_document_holds_every_line() -> None:
    document = json.loads(json.dumps(diff(samples.few(), _grown()).to_dict()))
    assert document["peak_bytes"] == {"before": 150, "after": 170}
    assert document["lines"][0] == {
        "name": FORWARD,
        "peak_bytes": {"before": 50, "after": 70},
        "end_bytes": {"before": 0, "after": 70},
        "total_bytes": {"before": 50, "after": 120},
        "total_blocks": {"before": 2, "after": 3},
    }

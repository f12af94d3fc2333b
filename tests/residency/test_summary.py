from __future__ import annotations

import pytest

from holdfast.residency.recording.journal import NOT_ARRIVED, THERE_BEFORE, Entry
from holdfast.residency.recording.summary import (
    LINK_BUSY,
    NO_PLACE,
    SummaryRow,
    covered_ms,
    explain_stalls,
    find_layer,
    find_span,
    format_ms,
    summarize,
)

MB = 10**6


def entries() -> list[Entry]:
    """Two passes of 10 ms: one waits for the link and for a place, one decodes."""
    return [
        Entry("keep", "blocks.0.weight", 5 * MB, 0.0, 0.0, THERE_BEFORE),
        Entry("keep", "blocks.1.weight", 6 * MB, 1.0, 1.0),
        Entry("pass", "forward", 0, 0.0, 10.0),
        Entry("pass", "forward", 0, 10.0, 20.0),
        Entry("copy", "blocks.2.weight", 40 * MB, 0.0, 4.0),
        Entry("stall", "blocks.2.weight", 0, 1.0, 4.0, NOT_ARRIVED),
        Entry("copy", "blocks.3.weight", 10 * MB, 8.0, 9.0),
        Entry("stall", "blocks.3.weight", 0, 6.0, 9.0, NOT_ARRIVED),
        Entry("copy", "blocks.2.weight", 20 * MB, 10.0, 12.0),
        Entry("decode", "blocks.2.weight", 30 * MB, 12.0, 13.0),
        Entry("demand", "proj_out", 7 * MB, 14.0, 14.0),
        Entry("stall", "proj_out.weight", 0, 14.0, 14.5, "loaded on demand"),
        Entry("evict", "blocks.0.weight", 5 * MB, 16.0, 16.0, "the budget shrank"),
        Entry("evict", "blocks.1.weight", 6 * MB, 16.0, 16.0, "the budget shrank"),
        Entry("evict", "Net", 0, 18.0, 18.0, "layers came out of turn: traced again"),
    ]


def test_numbers_of_the_link_and_the_decoder_are_added_up() -> None:
    found = summarize(entries())
    assert (found.span_ms, found.passes, found.pass_ms) == (20.0, 2, 20.0)
    assert (found.copies, found.link_busy_ms, found.link_bytes) == (3, 7.0, 70 * MB)
    assert found.link_share == pytest.approx(0.35)
    assert found.link_gb_s == pytest.approx(10.0)
    assert (found.decodes, found.decode_busy_ms, found.decoded_bytes) == (1, 1.0, 30 * MB)
    assert (found.kept_bytes, found.demand_loads, found.demand_bytes) == (6 * MB, 1, 7 * MB)


def test_stalls_are_added_up_by_layer_and_by_reason() -> None:
    found = summarize(entries())
    assert (found.stalls, found.stall_ms, found.stall_share) == (3, 6.5, 0.325)
    assert found.stalls_by_layer == (
        SummaryRow("blocks.2", 1, 3.0),
        SummaryRow("blocks.3", 1, 3.0),
        SummaryRow("proj_out", 1, 0.5),
    )
    assert found.stalls_by_reason == (
        SummaryRow(LINK_BUSY, 1, 3.0),
        SummaryRow(NO_PLACE, 1, 3.0),
        SummaryRow("loaded on demand", 1, 0.5),
    )


def test_evictions_are_added_up_by_reason() -> None:
    found = summarize(entries())
    assert found.evictions == 3
    assert found.evictions_by_reason == (
        SummaryRow("the budget shrank", 2, 0.0, 11 * MB),
        SummaryRow("layers came out of turn: traced again", 1),
    )


def test_the_summary_in_words() -> None:
    assert str(summarize(entries())) == (
        "recorded  20.0 ms, 2 passes\n"
        "link      busy 35 % of the time, 70.0 MB in 3 copies, 10.0 GB/s while busy\n"
        "decoder   busy 1.0 ms, 30.0 MB unpacked\n"
        "stalls    6.5 ms in 3, 32 % of the passes\n"
        "kept      6.0 MB loaded to stay\n"
        "demand    1 load of 7.0 MB\n"
        "\n"
        "stalls, by reason\n"
        "     3.0 ms       1 ×  the link was busy\n"
        "     3.0 ms       1 ×  the link was idle: no free room on the device\n"
        "    0.50 ms       1 ×  loaded on demand\n"
        "\n"
        "stalls, by layer\n"
        "     3.0 ms       1 ×  blocks.2\n"
        "     3.0 ms       1 ×  blocks.3\n"
        "    0.50 ms       1 ×  proj_out\n"
        "\n"
        "evictions, by reason\n"
        "    11.0 MB       2 ×  the budget shrank\n"
        "        0 B       1 ×  layers came out of turn: traced again"
    )


def test_tables_in_words_end_with_what_is_left() -> None:
    stalls = [Entry("stall", f"blocks.{i}.weight", 0, i, i + 0.5, "why") for i in range(12)]
    assert str(summarize(stalls)).endswith("    1.0 ms       2 ×  in 2 more")


def test_nothing_recorded_is_told_too() -> None:
    found = summarize([])
    assert (found.span_ms, found.link_share, found.link_gb_s, found.stall_share) == (0, 0, None, 0)
    assert str(found) == (
        "recorded  0.00 ms, 0 passes\n"
        "link      busy 0 % of the time, 0 B in 0 copies\n"
        "stalls    0.00 ms in 0, 0 % of the passes"
    )


def test_layers_of_several_modules_are_told_apart() -> None:
    stalls = [Entry("stall", "a.0.weight", 0, i, i + 1, "why", f"M{i}") for i in range(2)]
    assert [share.name for share in summarize(stalls).stalls_by_layer] == ["M0: a.0", "M1: a.0"]


def test_a_stall_waits_for_the_copies_of_others_as_well() -> None:
    made = [
        Entry("copy", "a.weight", MB, 0.0, 9.0),
        Entry("copy", "b.weight", MB, 9.0, 10.0),
        Entry("stall", "b.weight", 0, 2.0, 10.0, NOT_ARRIVED),
    ]
    assert [stall.reason for stall in explain_stalls(made)] == [LINK_BUSY]


def test_the_decoding_of_other_weights_is_no_reason() -> None:
    made = [
        Entry("copy", "b.weight", MB, 9.0, 10.0),
        Entry("decode", "a.weight", MB, 2.0, 9.0),
        Entry("stall", "b.weight", 0, 2.0, 10.0, NOT_ARRIVED),
    ]
    assert [stall.reason for stall in explain_stalls(made)] == [NO_PLACE]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blocks.3.attn.to_q.weight", "blocks.3"),
        ("model.layers.4.mlp.1.weight", "model.layers.4"),
        ("proj_out.weight", "proj_out"),
        ("gate", "gate"),
        ("", ""),
    ],
)
def test_the_layer_of_a_weight(name: str, expected: str) -> None:
    assert find_layer(name) == expected


def test_times_that_overlap_count_once() -> None:
    times = [(0.0, 4.0), (1.0, 2.0), (3.0, 5.0), (8.0, 9.0)]
    made = [Entry("copy", "a", 0, start, end) for start, end in times]
    assert covered_ms(made) == 6.0
    assert find_span(made) == (0.0, 9.0)


@pytest.mark.parametrize(
    ("ms", "expected"), [(0.123, "0.12 ms"), (43.06, "43.1 ms"), (12_340.0, "12.34 s")]
)
def test_milliseconds_for_people(ms: float, expected: str) -> None:
    assert format_ms(ms) == expected

from __future__ import annotations

import pytest
from rich.console import Console

from holdfast.dashboard.tui import charts, once, rows, tables, words
from holdfast.dashboard.tui.history import process_sample
from holdfast.dashboard.tui.machine import curves, machine_lines
from holdfast.dashboard.tui.session import Session
from tests.dashboard.tui.made_up import GB, machine, node, process, run, snapshot


@pytest.mark.parametrize(
    ("left_s", "text"),
    [(None, "–"), (0.84, "0.8s"), (53.2, "53s"), (250.0, "4m10s"), (7800.0, "2h10m")],
)
def test_time_takes_few_characters(left_s: float | None, text: str) -> None:
    assert words.seconds(left_s) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "──────────"),
        (0.0, "──────────"),
        (0.5, "━━━━━─────"),
        (0.99, "━━━━━━━━━─"),
        (2.0, "━" * 10),
    ],
)
def test_a_bar_is_full_only_when_it_is(share: float | None, text: str) -> None:
    assert words.bar(share, 10).plain == text


def test_a_curve_goes_from_the_least_to_the_most_and_has_gaps() -> None:
    assert words.curve([None, 1.0, 8.0, 4.5], "red").plain == " ▁█▅"
    assert words.between([None, 10**9, 3 * 10**9]) == "1.0 GB to 3.0 GB"
    assert words.curve([5.0, 5.0], "red").plain == "▄▄"
    assert words.between([]) == "–"


@pytest.mark.parametrize("width", [15, 24, 40])
def test_a_stage_with_its_bar_and_time_left_fits_its_column(width: int) -> None:
    text = words.stage(run(), width).plain
    assert len(text) <= width
    assert text.startswith("denoise")
    assert text.endswith(" 12s")


def test_a_node_of_comfyui_is_a_stage() -> None:
    assert words.stage(node(), 40).plain.startswith("runs node ━")
    assert words.stage(node(), 20).plain.startswith("node ━")
    lines = tables.run_lines(process(run=node()), 100, 1000.0)
    assert lines[0].plain == "sd15: runs node KSampler"
    assert lines[1].plain.endswith(" 5 of 20, 4.0s in this stage, 12s left; began 10s ago")


def test_text_of_a_process_cannot_steer_the_terminal() -> None:
    assert words.short("a\x1b[2Jb\n", 80) == "a\ufffd[2Jb\ufffd"
    session = Session()
    session.add(snapshot(1000.0, process(name="[red]x\x1b[2J")))
    width = rows.widths(120)
    cells = rows.cells(next(iter(session.watched.values())), width)
    assert cells[1].plain == "[red]x\ufffd[2J"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_about_the_machine_is_wider_than_asked_for(width: int) -> None:
    session = Session()
    for at in range(5):
        session.add(snapshot(1000.0 + at, process(), of=machine(nodes=3, gpus=2, ram_used=at * GB)))
    lines = [*machine_lines(machine(nodes=3, gpus=2), width), *curves(session, width)]
    assert max(line.cell_len for line in lines) <= width


def test_the_machine_in_lines() -> None:
    lines = [" ".join(line.plain.split()) for line in machine_lines(machine(), 100)]
    assert [line.partition(" ━")[0] for line in lines] == ["RAM", "node 0", "node 1", "gpu 0"]
    assert lines[0].endswith("12.0 GB of 64.0 GB, 19 %")
    assert lines[1].endswith("6.0 GB of 32.0 GB, 19 % 16 CPUs")
    assert lines[3].endswith("18.0 GB of 24.0 GB, 75 % 87 % busy, link 25.2 GB/s, Card 9000")


@pytest.mark.parametrize("room", [60, 80, 120, 160])
def test_the_columns_fill_the_room_and_never_more_from_80_on(room: int) -> None:
    found = rows.widths(room)
    taken = sum(found.values()) + 2 * len(found)
    assert taken <= max(room, 76)
    assert room - taken < 8


def test_a_chart_shows_every_peak_and_says_where_its_axis_begins() -> None:
    counts = [100, 100, 900, 100, 100, 100]
    samples = [process_sample(at, process(rss_bytes=c)) for at, c in enumerate(counts)]
    title, *lines = (line.plain for line in charts.chart("RSS", samples, "ram_bytes", 17, 2, ""))
    assert title == "RSS: 100 B now, 900 B at most in 5.0s"
    assert lines == ["    900 B   █   ", "      0 B ▂▂█▂▂▂"]
    near = [process_sample(at, process(rss_bytes=c)) for at, c in enumerate([800, 1000])]
    assert charts.chart("RSS", near, "ram_bytes", 30, 2, "")[-1].plain.startswith("    780 B")


def test_what_is_known_of_leaks_is_a_sentence() -> None:
    from holdfast.dashboard.snapshot.snapshot import LeakState

    said = [
        tables.leak_sentence(state, 1000.0)
        for state in (
            LeakState(False, None, None, None),
            LeakState(True, None, None, None),
            LeakState(True, 995.0, 0, 0),
            LeakState(True, 995.0, 1, 2 * 10**6),
        )
    ]
    assert said == [
        "Leaks cannot be found: blocks are not being recorded.",
        "Blocks are being recorded; leaks were not looked for yet.",
        "No leak was found 5.0 s ago.",
        "1 block leaked, 2.0 MB together, by a look 5.0 s ago.",
    ]


def test_once_prints_the_machine_and_all_of_a_process() -> None:
    session = Session()
    session.add(snapshot(1000.0, process()))
    console = Console(width=120)
    with console.capture() as captured:
        once.print_once(session, "pid", True, console)
    text = captured.get()
    for part in (
        "workshop",
        "4711",
        "run flux-dev",
        "flux-dev: denoises",
        "“a red fox”",
        "latents",
    ):
        assert part in text
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "scratch 2.0 GB 4.0 GB 2.0 GB 3.0 GB 75 % 50 % 12 cpu" in lines
    assert "transformer runs 23.0 GB 6.0 GB 17.0 GB 6.0 GB 812.5 ms 7 cuda:0" in lines


def test_once_says_how_to_get_a_process_where_there_is_none() -> None:
    session = Session()
    session.add(snapshot(1000.0))
    console = Console(width=120)
    with console.capture() as captured:
        once.print_once(session, "pid", False, console)
    assert captured.get().endswith(
        "\nNo process of Holdfast is running here that can be watched.\n"
        '  try: holdfast run tiny-flux --prompt "a handwritten seven", in another terminal\n'
        "A script can be watched once it has made a memory pool or manages a model.\n"
    )

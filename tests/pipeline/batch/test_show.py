from __future__ import annotations

import io

from rich.console import Console

from holdfast.pipeline.batch.show import Bars, Lines, shorten
from holdfast.pipeline.run.progress import Event
from tests.pipeline.batch.fakes import jobs


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_file_gets_a_line_every_ten_seconds_at_most() -> None:
    stream, clock = io.StringIO(), Clock()
    show = Lines(stream, clock)
    (job,) = jobs("a cat")
    show.begin(10, 2)
    show.step(0, None, Event("load", 0, None, "vae"))
    show.step(0, job, Event("denoise", 1, 4))
    clock.now_s += 4
    show.finished(job, "a.png")
    clock.now_s += 8
    show.step(0, job, Event("denoise", 3, 4))
    show.note("worker 1 died\x1b[31m")
    assert stream.getvalue().splitlines() == [
        "holdfast: 8 of 10 to do",
        "holdfast: loading the model: vae",
        "holdfast: 3/10 done, 12 s each, 84 s left; line 1, step 3/4",
        "holdfast: worker 1 died [31m",
    ]


def test_a_terminal_gets_a_bar_for_the_batch_and_one_for_each_worker() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    (job,) = jobs("four [bold]x[/bold] \x1b[2J")
    with Bars(console) as show:
        show.begin(3, 1)
        show.step(0, job, Event("denoise", 2, 4))
        show.step(99, job, Event("denoise", 2, 4))
        show.finished(job, "a.png")
        show.note("a [red]note[/red]")
    text = stream.getvalue()
    assert "2/3 done" in text
    assert "four [bold]x[/bold]" in text
    assert "step 2/4" in text
    assert "holdfast: a [red]note[/red]" in text
    assert "\x1b[2J" not in text


def test_a_long_prompt_is_cut() -> None:
    assert shorten("x" * 100) == "x" * 43 + "…"

"""Progress on standard error. Nothing is shown where that is no terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.base.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from holdfast.pipeline.run.progress import Event, Listener

_NAMES = {"load": "load", "text": "read prompt", "denoise": "denoise", "decode": "decode"}


@contextlib.contextmanager
def show_status(text: str) -> Iterator[Callable[[str], object]]:
    """Show a line of text with a spinner; yields a function that changes the text."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(text) as status:
        yield status.update


@contextlib.contextmanager
def show_bar(*columns: ProgressColumn, wanted: bool = True) -> Iterator[Progress]:
    """Progress bars with these columns, removed at the end of the block."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = not (wanted and console.is_terminal)
    with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
        yield bars


@contextlib.contextmanager
def show_stages(wanted: bool = True) -> Iterator[Listener]:
    """A bar for each stage of a pipeline, with the time left; yields a listener for events."""
    from rich.markup import escape
    from rich.progress import BarColumn, Task, TextColumn
    from rich.table import Column

    class TimesColumn(TextColumn):
        """Steps and times, never cut: the bar shrinks first."""

        def __init__(self) -> None:
            super().__init__("", table_column=Column(no_wrap=True, min_width=30))

        def render(self, task: Task) -> Any:
            return super().render(task).append(_times(task))

    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        TimesColumn(),
        TextColumn("{task.fields[label]}", table_column=Column(no_wrap=True)),
    )
    with show_bar(*columns, wanted=wanted) as bars:
        tasks: dict[str, Any] = {}

        def show(event: Event) -> None:
            if event.stage not in tasks:
                tasks[event.stage] = bars.add_task(
                    _NAMES[event.stage], total=None, label="", in_bytes=False
                )
            in_bytes = event.total_bytes is not None
            bars.update(
                tasks[event.stage],
                completed=(event.done_bytes or 0) if in_bytes else event.done,
                total=event.total_bytes if in_bytes else event.total,
                label=escape(event.label or ""),
                in_bytes=in_bytes,
            )

        yield show


def _times(task: Any) -> str:
    """ "12 of 20, 3 s, 2 s left", without unknown parts."""
    form = format_bytes if task.fields["in_bytes"] else "{:g}".format
    parts = [f"{form(task.completed)} of {form(task.total)}"] if task.total else []
    taken = task.finished_time if task.finished else task.elapsed
    if taken is not None:
        parts.append(format_seconds(taken))
    if task.total and task.time_remaining is not None and not task.finished:
        parts.append(f"{format_seconds(task.time_remaining)} left")
    return ", ".join(parts)

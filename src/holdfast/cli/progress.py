"""Progress of long work on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from holdfast.base.units import format_bytes, format_seconds
from holdfast.pipeline.progress import Event, Listener

_NAMES = {"load": "load", "text": "read prompt", "denoise": "denoise", "decode": "decode"}


@contextlib.contextmanager
def shown(wanted: bool = True) -> Iterator[Listener]:
    """A listener that shows a bar for each stage, with the time left, on standard error.

    Where that is no terminal, or not wanted, nothing is shown. The bars are gone when the block is
    left.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, Task, TextColumn
    from rich.table import Column

    class Words(TextColumn):
        """How far it is and how long it takes, never cut: the bar gives way first."""

        def __init__(self) -> None:
            super().__init__("", table_column=Column(no_wrap=True, min_width=30))

        def render(self, task: Task) -> Any:
            return super().render(task).append(_times(task))

    console = Console(stderr=True)
    columns: list[Any] = [
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        Words(),
        TextColumn("{task.fields[label]}", table_column=Column(no_wrap=True)),
    ]
    with Progress(
        *columns, console=console, transient=True, disable=not (wanted and console.is_terminal)
    ) as bars:
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
    """ "12 of 20, 3 s, 2 s left"; what is not known is left out."""
    words = format_bytes if task.fields["in_bytes"] else "{:g}".format
    parts = [f"{words(task.completed)} of {words(task.total)}"] if task.total else []
    taken = task.finished_time if task.finished else task.elapsed
    if taken is not None:
        parts.append(format_seconds(taken))
    if task.total and task.time_remaining is not None and not task.finished:
        parts.append(f"{format_seconds(task.time_remaining)} left")
    return ", ".join(parts)

"""Progress of long work on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from holdfast.pipeline.progress import Event, Listener

_NAMES = {"load": "load", "text": "read prompt", "denoise": "denoise", "decode": "decode"}


@contextlib.contextmanager
def shown() -> Iterator[Listener]:
    """A listener that shows a bar for each stage, with the time left, on standard error.

    Where that is no terminal nothing is shown. The bars are gone when the block is left.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    console = Console(stderr=True)
    columns: list[Any] = [
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        TimeLeft(),
        TextColumn("left"),
        TextColumn("{task.fields[label]}"),
    ]
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        tasks: dict[str, Any] = {}

        def show(event: Event) -> None:
            if event.stage not in tasks:
                tasks[event.stage] = bars.add_task(_NAMES[event.stage], total=None, label="")
            bars.update(
                tasks[event.stage],
                completed=event.done,
                total=event.total,
                label=escape(event.label or ""),
            )

        yield show

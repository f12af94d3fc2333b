"""Text and tables on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 160  # where the output is no terminal


def align(rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """A line for each row, with columns as wide as their longest cell."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        indent + "  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def as_json(value: Any) -> str:
    """The value as JSON, indented."""
    return json.dumps(value, indent=2)


def output_console() -> Console:
    """A rich console on standard output."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)

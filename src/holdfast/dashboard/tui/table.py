"""Textual widgets that are updated often and keep what did not change.

The selected row stays selected when the order changes. Layout runs only when heights change.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.widgets import DataTable, Static

Row = tuple[str, Sequence[Text]]  # a key, and its cells


class SteadyText(Static):
    """Text lines or Rich tables."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id, markup=False)
        self._shape: object = None

    def put(self, parts: Sequence[RenderableType]) -> None:
        """Show these, one below the other."""
        shape = [self._height(part) for part in parts]
        self.update(Group(*parts), layout=shape != self._shape)
        self._shape = shape

    def _height(self, part: RenderableType) -> int:
        if isinstance(part, Table):
            return part.row_count
        return part.cell_len // max(self.size.width, 1) if isinstance(part, Text) else 0


class SteadyTable(DataTable[Text]):
    """A table with rows by key."""

    DEFAULT_CSS = "SteadyTable { height: 1fr; background: transparent; }"

    def __init__(self, id: str) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False)
        self._shape: object = None
        self._shown: list[Row] = []

    @property
    def chosen(self) -> str | None:
        """The key of the selected row."""
        at = self.cursor_row
        return self._shown[at][0] if 0 <= at < len(self._shown) else None

    def put(
        self,
        headings: Sequence[Text],
        rows: Sequence[Row],
        keys: Sequence[str] = (),
        widths: Sequence[int] | None = None,
    ) -> None:
        """Show these rows; `keys` are column keys, `widths` fixed column widths."""
        names = tuple(keys) or tuple(str(at) for at in range(len(headings)))
        shape = (tuple(map(str, headings)), tuple(widths or ()), tuple(name for name, _ in rows))
        if shape == self._shape:
            self._update(names, rows, fixed=widths is not None)
        else:
            self._build(names, headings, rows, widths)
        self._shape, self._shown = shape, list(rows)

    def _update(self, names: Sequence[str], rows: Sequence[Row], fixed: bool) -> None:
        for (key, cells), (_, before) in zip(rows, self._shown, strict=True):
            for name, cell, old in zip(names, cells, before, strict=True):
                if cell != old or cell.spans != old.spans:
                    self.update_cell(key, name, cell, update_width=not fixed)

    def _build(
        self,
        names: Sequence[str],
        headings: Sequence[Text],
        rows: Sequence[Row],
        widths: Sequence[int] | None,
    ) -> None:
        chosen, scrolled = self.chosen, self.scroll_offset
        with self.prevent(DataTable.RowHighlighted):
            self.clear(columns=True)
            for at, (name, heading) in enumerate(zip(names, headings, strict=True)):
                self.add_column(heading, key=name, width=widths[at] if widths else None)
            for key, cells in rows:
                self.add_row(*cells, key=key)
            at = next((at for at, (key, _) in enumerate(rows) if key == chosen), 0)
            self.move_cursor(row=at, scroll=False)
            self.scroll_to(*scrolled, animate=False)

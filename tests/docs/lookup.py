"""Finds figures of a page in the results that they come from.

Covers: a figure by itself, by its value and unit at the precision it is shown with; the figures of
a table together: those of a column are called the same in the file but for one word, and that word
is the same for a whole row.
Promise: what is not found is told; nothing is changed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from tests.docs.figures import UNITS, Figure
from tests.docs.results import Value, results

# How the values of a column are called: the file, the unit, what stands before and after the word
# that changes from row to row.
Pattern = tuple[str, float | None, tuple[str, ...], tuple[str, ...]]
Fit = dict[Figure, set[str]]  # cell -> the words that lead to it
Shape = tuple[int, int]
_SCALES = {
    "time": (1e-6, 1e-3, 1.0),
    "bytes": (1.0, 1e6, 1e9),
    "rate": (1e9,),
    "ratio": (1.0,),
    None: (1.0,),
}


def not_found(found: Iterable[Figure]) -> list[Figure]:
    """Figures that are not in their results, in their order."""
    tables: dict[int, list[Figure]] = defaultdict(list)
    missing = []
    for figure in found:
        if figure.table is not None and figure.results:
            tables[figure.table].append(figure)
        elif not any(candidates(figure, file) for file in figure.section):
            missing.append(figure)
    for cells in tables.values():
        missing += _not_in_table(cells)
    return sorted(missing, key=lambda figure: figure.start)


def candidates(figure: Figure, file: str) -> list[tuple[float, Value]]:
    """Values of a file that the figure may show, and how much one of the shown number is."""
    room = 0.5 * figure.step * (1 + 1e-6)
    return [
        (one, value)
        for kind, one in dict.fromkeys(_kinds(figure))
        for value in results(file).between(
            kind, (figure.value - room) * one, (figure.value + room) * one
        )
    ]


def _kinds(figure: Figure) -> Iterator[tuple[str | None, float]]:
    """What a figure may measure: what its unit says; without one, what a unit near it says."""
    if figure.unit is not None:
        kind, one = UNITS[figure.unit]
        yield kind, one
        if kind == "ratio":  # files seldom say that a number is one
            yield None, one
    elif figure.table is not None:
        yield from ((kind, one) for kind, ones in _SCALES.items() for one in ones)
    else:
        yield from (UNITS[unit] for unit in figure.near)
        yield None, 1.0
        if figure.step < 1:
            yield "ratio", 1.0


def _not_in_table(cells: list[Figure]) -> list[Figure]:
    """Cells that do not fit together with most of their table."""
    columns: dict[int, list[Figure]] = defaultdict(list)
    for cell in cells:
        columns[cell.column].append(cell)
    ordered = sorted(columns.values(), key=len, reverse=True)
    fits = [_fits(column) for column in ordered]
    most = max((len(fit) for fit in fits[0].values()), default=0)
    best = cells
    for pattern, fit in list(fits[0].items()):
        if len(fit) == most:
            missing = _left_over(ordered, [{pattern: fit}, *fits[1:]])
            best = min(best, missing, key=len)
    return best


def _left_over(columns: list[list[Figure]], fits: list[dict[Pattern, Fit]]) -> list[Figure]:
    """What is left when each column takes the pattern that agrees best with those before it."""
    words: dict[tuple[int, Shape], set[str]] = {}
    alone = Counter(cell.row for column in columns for cell in column)
    missing = []
    for column, patterns in zip(columns, fits, strict=True):
        taken, fit = _best(patterns, words)
        for cell in column:
            agreed = fit.get(cell, set()) & words.get((cell.row, _shape(taken)), _Any())
            if agreed:
                words[cell.row, _shape(taken)] = agreed
            elif not (alone[cell.row] == 1 and _nearly(cell, taken)):
                missing.append(cell)
    return missing


class _Any(set[str]):
    """Every word: what is known of a row before a column has been looked at."""

    def __rand__(self, other: set[str]) -> set[str]:
        return other


def _best(
    patterns: dict[Pattern, Fit], words: dict[tuple[int, Shape], set[str]]
) -> tuple[Pattern | None, Fit]:
    def agreeing(pattern: Pattern) -> int:
        shape = _shape(pattern)
        return sum(
            bool(found & words.get((cell.row, shape), _Any()))
            for cell, found in patterns[pattern].items()
        )

    taken = max(patterns, key=agreeing, default=None)
    return taken, patterns[taken] if taken is not None else {}


def _fits(column: list[Figure]) -> dict[Pattern, Fit]:
    """Every way to call the values of a column: for each the cells it finds, with their words.

    Ratios count where the file itself has less than half of the column.
    """
    plain: dict[Pattern, Fit] = defaultdict(lambda: defaultdict(set))
    ratios: dict[Pattern, Fit] = defaultdict(lambda: defaultdict(set))
    for cell in column:
        for file in cell.results:
            for one, value in candidates(cell, file):
                found = ratios if value.derived else plain
                for place, word in enumerate(value.path):
                    scale = None if cell.unit else one
                    pattern = (file, scale, value.path[:place], value.path[place + 1 :])
                    found[pattern][cell].add(word)
    most = max((len(fit) for fit in plain.values()), default=0)
    return plain if 2 * most > len(column) else {**plain, **ratios}


def _shape(pattern: Pattern | None) -> Shape:
    return (0, 0) if pattern is None else (len(pattern[2]), len(pattern[3]))


def _nearly(cell: Figure, pattern: Pattern | None) -> bool:
    """Whether a cell is called as its column but for one word more, as peers without a setting."""
    if pattern is None:
        return False
    file, scale, before, after = pattern
    return any(
        scale in (None, one)
        and len(value.path) == len(before) + 1 + len(after)
        and value.path[-1:] == (*before, *after)[-1:]
        and sum(a != b for a, b in _without(value.path, before, after)) == 1
        for one, value in candidates(cell, file)
    )


def _without(
    path: tuple[str, ...], before: tuple[str, ...], after: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """The words of a path beside those of a pattern, without the one that changes."""
    place = len(before)
    return zip((*path[:place], *path[place + 1 :]), (*before, *after), strict=True)

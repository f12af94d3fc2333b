"""Which tests come first: those of the real ComfyUI, then all others, then those that start JAX.

Processes that fork must not have started JAX, so nothing comes behind its tests. ComfyUI's take
one worker for minutes, so that the others should begin at the same time.
`--within S` leaves out what has not begun after S seconds (with workers).
`--shuffle SEED` puts files, and tests inside a file, into a random order; JAX's stay last.
"""

from __future__ import annotations

import random
import re
from fnmatch import fnmatchcase, translate
from pathlib import Path

import pytest

from tests.harness.scheduling import TOGETHER, file_of

_EXHAUSTIVE = Path(__file__).with_name("exhaustive.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast")
    group.addoption("--shuffle", type=int, metavar="SEED", help="run tests in a random order")
    group.addoption("--within", type=float, metavar="S", help="begin no file after S seconds")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_xla(item.nodeid):
            item.add_marker(pytest.mark.xla)
    _mark_exhaustive(config, items)
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(file_of(item.nodeid), []).append(item)
    seed = config.getoption("--shuffle")
    names = list(files)
    if seed is not None:
        draw = random.Random(seed)
        draw.shuffle(names)
        for name in names:
            _shuffle(files[name], draw)
    names.sort(key=_turn)
    items[:] = [item for name in names for item in files[name]]


def _mark_exhaustive(config: pytest.Config, items: list[pytest.Item]) -> None:
    patterns = [line for line in _EXHAUSTIVE.read_text().splitlines() if line[:1] not in ("", "#")]
    unused = set(patterns)
    any_pattern = re.compile("|".join(map(translate, patterns)))
    for item in items:
        if any_pattern.match(item.nodeid):
            item.add_marker(pytest.mark.exhaustive)
            unused -= {pattern for pattern in unused if fnmatchcase(item.nodeid, pattern)}
    if unused and config.args == config.getini("testpaths"):
        names = "\n  ".join(sorted(unused))
        raise pytest.UsageError(f"no test is named like this, in {_EXHAUSTIVE.name}:\n  {names}")


def is_xla(nodeid: str) -> bool:
    """Whether a test starts JAX in its process."""
    file = nodeid.partition("::")[0]
    return "xla" in file or file.endswith("test_port.py")


def _turn(file: str) -> int:
    return 2 if is_xla(file) else 0 if file == TOGETHER else 1


def _shuffle(items: list[pytest.Item], draw: random.Random) -> None:
    """Shuffle tests; those of one class or one file stay together."""
    groups: dict[object, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(item.parent, []).append(item)
    order = list(groups.values())
    draw.shuffle(order)
    for group in order:
        draw.shuffle(group)
    items[:] = [item for group in order for item in group]

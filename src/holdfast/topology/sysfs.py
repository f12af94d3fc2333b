"""Reads small files of sysfs and procfs. A missing or malformed file gives None, never raises."""

from __future__ import annotations

import re
from pathlib import Path


def read(path: Path) -> str | None:
    """The stripped text of a file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path, base: int = 10) -> int | None:
    text = read(path)
    try:
        return int(text, base) if text is not None else None
    except ValueError:
        return None


def read_natural(path: Path) -> int | None:
    """The integer in a file; the kernel writes a negative one for "unknown"."""
    value = read_int(path)
    return value if value is not None and value >= 0 else None


def read_list(path: Path) -> tuple[int, ...] | None:
    """The integers in a file with a list such as "0-3,8"."""
    text = read(path)
    return parse_list(text) if text is not None else None


def parse_list(text: str) -> tuple[int, ...] | None:
    """The integers in "0-3,8"; None if the text is no such list."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        numbers.extend(range(first, last + 1))
    return tuple(numbers)


def read_size(path: Path) -> int | None:
    """The bytes in a size such as "48K" or "260M"."""
    match = re.fullmatch(r"(\d+)([KMG]?)", read(path) or "")
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]] if match else None


def read_table(path: Path) -> dict[str, str]:
    """The "name: value" lines of a file."""
    lines = (read(path) or "").splitlines()
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def read_memory(path: Path) -> dict[str, int]:
    """The sizes in a meminfo file of the machine or of a node, in bytes."""
    lines = re.findall(r"([\w()]+):\s+(\d+) kB", read(path) or "")
    return {name: int(number) * 1024 for name, number in lines}


def children(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """(number, path) of the entries whose name matches `pattern`; the number is group 1."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    found = ((re.fullmatch(pattern, name), name) for name in names)
    return sorted((int(match[1]), folder / name) for match, name in found if match)

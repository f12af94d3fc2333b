"""What a process is called, when it began, how much RAM it has, as anybody can read it.

Covers: a command line in a few words.  Promise: reads /proc, or asks psutil where there is none;
unknown is "" and None.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path

MOST = 80  # letters
ON_LINUX = sys.platform == "linux"
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def in_words(command: Sequence[str]) -> str:
    """A command line without paths and without Python's own part: "train.py --steps 20"."""
    words = [word for word in command if word]
    if not words:
        return ""
    if "--multiprocessing-fork" in words:
        return "python (multiprocessing)"
    name = _base(words[0])
    if name.startswith(("python", "pypy")):
        words = _without_python(words)
    else:
        words[0] = name
    text = " ".join(" ".join(words).split())
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"


def _without_python(words: list[str]) -> list[str]:
    at = 1
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "-m":
            return words[at + 1 :]
        if words[at] in ("-c", "-"):
            return ["python", words[at]]
        at += 2 if words[at] in _WITH_VALUE else 1
    if at >= len(words):
        return ["python"]
    return [_base(words[at]), *words[at + 1 :]]


def _base(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def own_name() -> str:
    """What this process is called: one that Python started for another, after both.

    ComfyUI's script is called main.py, as many are; it is called by its own name.
    """
    started = sys.modules.get("multiprocessing.process")
    if started is not None and started.parent_process() is not None:
        whose = in_words(sys.argv) or "python"
        return f"{whose} ({started.current_process().name})"
    name = in_words(sys.orig_argv) or "python"
    return _in_comfyui(name) if "comfy.model_management" in sys.modules else name


def _in_comfyui(name: str) -> str:
    script, _, options = name.partition(" ")
    return f"ComfyUI {options}".rstrip() if script == "main.py" else name


def name_of(pid: int) -> str:
    """What another process is called; "" where that is not known."""
    if ON_LINUX:
        try:
            content = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return ""
        return in_words(content.decode(errors="replace").split("\0"))
    import psutil

    try:
        return in_words(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def began_s(pid: int) -> float | None:
    """When a process began, in seconds since 1970."""
    if ON_LINUX:
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            boot_s = _boot_s()
        except (OSError, ValueError):
            return None
        ticks = int(text.rpartition(")")[2].split()[19])  # behind the name, which may hold spaces
        return boot_s + ticks / os.sysconf("SC_CLK_TCK")
    import psutil

    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def rss_bytes(pid: int) -> int:
    """Memory of a process that is in RAM, on Linux; 0 for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
    except OSError:
        return 0
    return int(fields[1]) * mmap.PAGESIZE


def _boot_s() -> float:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    raise ValueError("/proc/stat does not say when the system began")

"""Name, start time and RSS of any process, from /proc or psutil. Unknown is "" and None."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path

MOST = 80  # characters
ON_LINUX = sys.platform == "linux"
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def shorten_command(command: Sequence[str]) -> str:
    """A command line without paths and Python's own options: "train.py --steps 20"."""
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
    """The name of this process; a multiprocessing child is named after its parent as well.

    ComfyUI's main.py is shown as "ComfyUI".
    """
    started = sys.modules.get("multiprocessing.process")
    if started is not None and started.parent_process() is not None:
        whose = shorten_command(sys.argv) or "python"
        return f"{whose} ({started.current_process().name})"
    name = shorten_command(sys.orig_argv) or "python"
    script, _, options = name.partition(" ")
    is_comfyui = script == "main.py" and "comfy.model_management" in sys.modules
    return f"ComfyUI {options}".rstrip() if is_comfyui else name


def name_of(pid: int) -> str:
    """The name of another process; "" if unknown."""
    if ON_LINUX:
        try:
            content = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return ""
        return shorten_command(content.decode(errors="replace").split("\0"))
    import psutil

    try:
        return shorten_command(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def began_s(pid: int) -> float | None:
    """Start time of a process, in seconds since 1970."""
    if ON_LINUX:
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            boot_s = _boot_s()
        except (OSError, ValueError):
            return None
        ticks = int(text.rpartition(")")[2].split()[19])  # after the name, which may contain spaces
        return boot_s + ticks / os.sysconf("SC_CLK_TCK")
    import psutil

    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def rss_bytes(pid: int) -> int:
    """Resident memory of a process on Linux; 0 if it has ended."""
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

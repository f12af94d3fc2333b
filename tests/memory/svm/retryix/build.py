"""Compile the library of the tests, in the variants that go wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from holdfast.base.errors import Unsupported
from holdfast.memory import svm
from holdfast.memory.core import native_build

SOURCE = Path(__file__).with_name("library.c")
HEADER = Path(svm.__file__).with_name("retryix.h")


def text(name: str, content: str) -> str:
    """The definition of a C string, in bytes that no character set can change."""
    return f'{name}="' + "".join(f"\\{byte:03o}" for byte in content.encode("latin-1")) + '"'


def topology(content: str) -> list[str]:
    """What makes a variant that says this for its topology."""
    return [text("TOPOLOGY_TEXT", content)]


def metrics(content: str) -> list[str]:
    """What makes a variant that says this for its metrics."""
    return [text("METRICS_TEXT", content)]


VARIANTS: dict[str, list[str]] = {
    "whole": [],
    "odd": ["ODD=1"],
    "lacks": ["LACKS_MIGRATE"],
    "lacks two": ["LACKS_FREE", "LACKS_MIGRATE"],
    # errors
    "no memory": ["ALLOC_FAILS"],
    "errors": ["FREE_RESULT=-EINVAL", "MIGRATE_RESULT=-EIO", "AFFINITY_RESULT=-EPERM"],
    "full": ["MIGRATE_RESULT=-ENOMEM"],
    "no errno": ["MIGRATE_RESULT=7"],
    "stays": ["STAYS"],
    "same": ["SAME_POINTER=0"],
    "overlapping": ["SAME_POINTER=64"],
    # texts
    "broken": topology('{"domains": [{"id": 0, ' + "x" * 100),
    "not utf-8": topology('{"name": "\xff"}'),
    "null": ["TOPOLOGY_TEXT=NULL"],
    "list": topology("[1, 2]"),
    "deep": topology("[" * 20000),
    "digits": topology('{"domains": ' + "1" * 5000 + "}"),
    "huge": ["HUGE_BYTES=(4<<20)", text("HUGE_END", '"}'), "PLAIN_FREE"],
    "huge and broken": ["HUGE_BYTES=(4<<20)", text("HUGE_END", "xx")],
    "broken figures": [text("STATISTICS_TEXT", '{"allocs": '), *metrics("{]")],
    "no figures": ["STATISTICS_TEXT=NULL", "METRICS_TEXT=NULL"],
    "one domain": metrics('{"domain": 2}'),
    "silent": metrics("{}"),
}


def no_compiler() -> str | None:
    """Why no library can be compiled here; None where it can."""
    try:
        native_build.compiler()
    except Unsupported as exc:
        return exc.what
    return None


def build(path: Path, definitions: list[str]) -> Path:
    """The library, compiled into that file."""
    command = [native_build.compiler(), "-shared", "-fPIC", "-Wall", "-Wno-unused-function"]
    command += [f"-D{definition}" for definition in definitions]
    command += [f"-I{HEADER.parent}", "-o", str(path), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def copy(built: Path, folder: Path) -> Path:
    """A copy, which is another library to the loader: its counters begin at 0."""
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(built, folder / "libretryix.so"))

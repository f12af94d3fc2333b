from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import BadInput, Unsupported
from holdfast.pipeline.batch.manifest import NAME, Manifest, parse

HOLD = """
import sys, time
from pathlib import Path
from holdfast.pipeline.batch.manifest import Manifest
with Manifest(Path(sys.argv[1])) as manifest:
    manifest.begin()
    print("held", flush=True)
    time.sleep(60)
"""


def _write(path: Path, count: int = 3) -> bytes:
    with Manifest(path) as manifest:
        manifest.begin(model="m")
        for number in range(count):
            manifest.append("done", job=f"j{number}", file=f"{number}.png")
    return path.read_bytes()


def test_what_was_appended_is_there_at_the_next_opening(tmp_path: Path) -> None:
    _write(tmp_path / NAME)
    with Manifest(tmp_path / NAME) as manifest:
        assert [r.get("job") for r in manifest.records] == [None, "j0", "j1", "j2"]
        assert manifest.records[0]["pid"] == os.getpid()
        assert manifest.damaged == 0


@given(st.data())
def test_a_manifest_cut_anywhere_keeps_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / NAME
    content = _write(path)
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    with Manifest(path) as manifest:
        assert len(manifest.records) == content[:cut].count(b"\n")
        manifest.append("done", job="new", file="new.png")
    assert path.read_bytes().startswith(content[:cut].rpartition(b"\n")[0])
    records, damaged = parse(path.read_bytes())
    assert (records[-1]["job"], damaged) == ("new", 0)


@pytest.mark.parametrize(
    "line", [b"\0\0\0\0", b'{"event": "done"}', b"[]", b'{"event": "other"}', b"{"]
)
def test_a_damaged_line_is_passed_over_and_kept(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / NAME
    content = _write(path)
    first, _, rest = content.partition(b"\n")
    path.write_bytes(first + b"\n" + line + b"\n" + rest)
    with Manifest(path) as manifest:
        assert (len(manifest.records), manifest.damaged) == (4, 1)
    assert path.read_bytes() == first + b"\n" + line + b"\n" + rest


@pytest.mark.parametrize("content", [b"my own notes", b"one\ntwo\n", b'{"prompt": "a"}\n'])
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        Manifest(path)
    assert str(caught.value) == (
        f"cannot use {str(path)!r}: it is not a manifest of `holdfast batch`\n"
        "  expected: an output folder of its own\n"
        "  try: another --out, or move that file away"
    )
    assert path.read_bytes() == content


def test_a_manifest_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text('{"event": "run", "version": 2, "pid": 1, "host": "h"}\n')
    with pytest.raises(BadInput) as caught:
        Manifest(path)
    assert str(caught.value) == (
        f"cannot use {str(path)!r}: its version is 2\n"
        "  expected: version 1\n"
        "  try: a newer Holdfast, or another --out"
    )


def test_a_second_writer_is_refused_with_the_first_ones_number(tmp_path: Path) -> None:
    path = tmp_path / NAME
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Unsupported) as caught:
            Manifest(path)
        host = os.uname().nodename
        assert str(caught.value) == (
            f"cannot use the folder {str(tmp_path)!r}: "
            f"process {holder.pid} on {host} is working in it\n"
            "  expected: one batch at a time in a folder\n"
            "  try: wait until it is over, or another --out"
        )
    finally:
        holder.kill()
        holder.communicate()
    with Manifest(path) as manifest:  # the dead hold nothing
        assert manifest.records[0]["pid"] == holder.pid

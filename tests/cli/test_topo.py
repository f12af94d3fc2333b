from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from holdfast.cli.main import main
from holdfast.topology import Topology, schema, svg
from tests.topology import trees

FAST = ["--probes", "linux,pci,psutil"]


def test_json_is_valid_against_the_schema(capsys) -> None:
    assert main(["topo", "--json", *FAST]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema())
    assert document["simulated"] is False
    assert document["nodes"]


@pytest.mark.slow
def test_the_command_and_json_tool_work_together() -> None:
    python = shlex.quote(sys.executable)
    command = f"{python} -m holdfast topo --json | {python} -m json.tool"
    done = subprocess.run(command, shell=True, capture_output=True, check=True)
    jsonschema.validate(json.loads(done.stdout), schema())


def test_the_tree_is_plain_text_where_there_is_no_terminal(capsys) -> None:
    assert main(["topo", *FAST]) == 0
    out = capsys.readouterr().out
    assert "node 0" in out
    assert "\x1b" not in out


def test_the_schema_is_printed(capsys) -> None:
    assert main(["topo", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


def test_a_saved_machine_is_shown_again(tmp_path: Path, capsys, monkeypatch) -> None:
    assert main(["topo", "--json", "--simulate", "2x16GB,1x64GB:far"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "m.json").write_text(text)
    assert main(["topo", "--json", "--from", str(tmp_path / "m.json")]) == 0
    assert capsys.readouterr().out == text
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["topo", "--from", "-"]) == 0
    assert "node 2 (CXL memory)" in capsys.readouterr().out


def test_a_recorded_tree_is_shown(tmp_path: Path, capsys) -> None:
    root = trees.cxl_machine(tmp_path / "root")
    assert main(["topo", "--root", str(root)]) == 0
    assert "node 1 (CXL memory)" in capsys.readouterr().out


def test_a_picture_is_written_beside_the_tree(tmp_path: Path, capsys) -> None:
    target = tmp_path / "m.svg"
    assert main(["topo", "--simulate", "1x1GB", "--svg", str(target)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("SIMULATED")
    assert captured.err == f"picture: {target}\n"
    assert target.read_text(encoding="utf-8").startswith("<svg ")


def test_a_picture_can_go_to_standard_output(capsys) -> None:
    assert main(["topo", "--simulate", "1x1GB", "--svg", "-"]) == 0
    assert capsys.readouterr().out.startswith("<svg ")


def test_measuring_prints_and_keeps_what_was_measured(capsys, monkeypatch) -> None:
    from holdfast.topology.speed import host

    monkeypatch.setattr(host, "LARGEST_BYTES", 32 * 2**20)
    assert main(["topo", "--measure", *FAST]) == 0
    assert "measured 20" in capsys.readouterr().out
    assert main(["topo", "--json", *FAST]) == 0  # a later run finds it
    fresh = subprocess.run(
        [sys.executable, "-m", "holdfast", "topo", "--json", *FAST],
        capture_output=True,
        check=True,
        text=True,
    )
    kept = Topology.from_json(fresh.stdout).measurements
    assert {m.mode for m in kept} == {"read", "write"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--from", "{tmp}/gone.json"],
            "cannot read '{tmp}/gone.json': No such file or directory\n"
            "  expected: a readable text file\n",
        ),
        (
            ["--from", "{tmp}"],
            "cannot read '{tmp}': Is a directory\n  expected: a readable text file\n",
        ),
        (
            ["--from", "{tmp}/binary.json"],
            "cannot read '{tmp}/binary.json': it is not UTF-8 text\n"
            "  expected: a readable text file\n",
        ),
        (
            ["--from", "{tmp}/broken.json"],
            "cannot use '{tmp}/broken.json': this is not JSON: "
            "Expecting value: line 1 column 1 (char 0)\n"
            "  expected: a topology document\n"
            "  try: write the file again with: holdfast topo --json\n",
        ),
        (
            ["--from", "{tmp}/other.json"],
            "cannot use '{tmp}/other.json': unknown field 'colour'\n"
            "  expected: fields of Topology: " + ", ".join(schema()["properties"]) + "\n",
        ),
        (
            ["--root", "{tmp}/gone"],
            "cannot read a machine below '{tmp}/gone': there is no such folder\n"
            "  expected: a folder that holds sys/ and proc/\n",
        ),
        (
            ["--probes", "linux,telepathy"],
            "unknown probe 'telepathy'\n"
            "  expected: one of linux, pci, kfd, nvml, opencl, torch, psutil\n",
        ),
        (
            ["--simulate", "1x1GB", "--svg", "{tmp}/no/such/folder.svg"],
            "cannot write '{tmp}/no/such/folder.svg': No such file or directory\n"
            "  expected: a path in a folder that exists\n",
        ),
        (
            ["--simulate", "1x1GB", "--measure"],
            "cannot measure a simulated machine: only the machine this runs on can be timed\n"
            "  expected: the result of topology.discover() on this machine\n",
        ),
        (
            ["--measure", "--time-limit", "-1", *FAST],
            "the time limit is -1 s\n  expected: more than 0 seconds\n",
        ),
    ],
)
def test_bad_input_is_refused_in_clear_words(
    arguments: list[str], message: str, tmp_path: Path, capsys
) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "broken.json").write_text("not json")
    (tmp_path / "other.json").write_text('{"schema_version": 1, "colour": "red"}')
    given = [a.replace("{tmp}", str(tmp_path)) for a in arguments]
    assert main(["topo", *given]) == 2
    captured = capsys.readouterr()
    assert captured.err == "holdfast: error: " + message.replace("{tmp}", str(tmp_path))
    assert captured.out == ""


def test_two_sources_at_once_are_refused(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["topo", "--simulate", "1x1GB", "--root", "/"])
    assert caught.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_picture_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path, monkeypatch) -> None:
    from holdfast.cli import topo

    target = tmp_path / "m.svg"
    target.write_text("old")

    def half(machine: Topology) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(topo, "svg", half)
    assert main(["topo", "--simulate", "1x1GB", "--svg", str(target)]) == 130
    assert target.read_text() == "old"
    assert svg is not half

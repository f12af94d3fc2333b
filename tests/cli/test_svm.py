from __future__ import annotations

import dataclasses
import json
import mmap
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.memory import svm
from holdfast.memory.svm import process
from holdfast.memory.svm.providers.numa import SHARED
from tests.needs import needs

MADE_UP = "SIMULATED: the machine is made up; nothing was measured or moved in hardware\n"
SIMULATED = ["--simulate", "2x16GB,1x64GB:far"]


def _no_numa() -> str | None:
    try:
        svm.provider("numa")
    except (RuntimeError, ValueError) as exc:
        return str(exc)
    return None


def output(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, with addresses and times that differ from run to run left out."""
    text = re.sub(r"0x[0-9a-f]+", "ADDRESS", capsys.readouterr().out)
    return re.sub(r"\d+\.\d ms", "TIME", text)


def test_without_an_action_it_tells_what_there_is(capsys) -> None:
    assert main(["svm"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {action} " in out for action in ("demo", "alloc", "where", "migrate"))


# ---- demo


def test_the_demo_shows_every_step(capsys) -> None:
    assert main(["svm", "demo", *SIMULATED]) == 0
    steps = output(capsys).split("\n\n")
    assert [step.partition("\n")[0] for step in steps] == [
        "1. discover",
        "2. allocate",
        "3. measure",
        "4. migrate",
        "5. free",
    ]
    assert all(step.partition("\n")[2].startswith(MADE_UP) for step in steps)
    assert steps[3] == (
        f"4. migrate\n{MADE_UP}"
        "moved 15625 pages (64.0 MB) from domain 0 to domain 1 by provider simulated\n"
        "  pages now: 15625 of 4KiB: 15625 in domain 1 (recorded by the simulation)"
    )
    assert steps[4] == (
        f"5. free\n{MADE_UP}"
        "freed 64MB at ADDRESS of provider simulated\n"
        "  in use now: 0 B in 0 allocations; peak 64.0 MB, total 64.0 MB\n"
    )


def test_the_demo_says_where_there_is_one_domain_only(capsys) -> None:
    assert main(["svm", "demo", "--simulate", "1x1GB", "--size", "1MB"]) == 0
    assert (
        "4. migrate\nthere is one domain only, so there is nowhere to migrate to\n"
        in capsys.readouterr().out
    )


def test_the_demo_as_json(capsys) -> None:
    assert main(["svm", "demo", *SIMULATED, "--json", "--size", "4MiB"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["discover", "allocate", "measure", "migrate", "free"]
    assert document["allocate"]["where"]["pages"] == {"0": 1024}
    assert document["migrate"]["after"]["pages"] == {"1": 1024}
    assert document["free"]["current_bytes"] == 0


def test_the_demo_with_a_library(capsys, retryix_library) -> None:
    assert main(["svm", "demo", "--library", str(retryix_library("whole")), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["allocate"]["provider"] == "retryix"
    assert document["migrate"]["complete"] is True
    assert document["free"]["current_bytes"] == 0


def test_a_library_that_is_not_there_is_refused(capsys, tmp_path: Path) -> None:
    assert main(["svm", "demo", "--library", str(tmp_path / "none.so")]) == 2
    assert capsys.readouterr().err == (
        f"holdfast: error: there is no file {tmp_path / 'none.so'}\n"
        "  expected: the shared library of the provider 'retryix'\n"
        "  try: HOLDFAST_RETRYIX_LIBRARY, or --library, names it\n"
    )


@needs(_no_numa())
def test_the_demo_on_this_machine(capsys) -> None:
    assert main(["svm", "demo", "--provider", "numa", "--size", "2MiB"]) == 0
    out = capsys.readouterr().out
    assert "SIMULATED" not in out
    assert "  pages: 512 of 4KiB: " in out
    assert "(move_pages, page by page)" in out


# ---- alloc


def test_alloc_tells_where_why_and_how_long(capsys) -> None:
    assert main(["svm", "alloc", "4MB", "--domain", "0", "2", *SIMULATED]) == 0
    assert output(capsys) == MADE_UP + (
        "allocated 4MB at ADDRESS by provider simulated\n"
        "  placement: interleave, domain 0, 2\n"
        "  reason: node:0 and node:2 were asked for\n"
        "  pages: 977 of 4KiB: 489 in domain 0, 488 in domain 2 (recorded by the simulation)\n"
        "  threads: not bound\n"
        "  took: TIME\n"
    )


def test_alloc_as_json(capsys) -> None:
    machine = ["--simulate", "1x8GB,1x8GB:gpu=4GB"]
    assert main(["svm", "alloc", "1MiB", "--near", "gpu:0", "--json", *machine]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["placement"]["reason"] == "gpu:0 hangs off node:1"
    assert document["where"]["pages"] == {"1": 256}
    assert (document["size"], document["pid"]) == (1 << 20, os.getpid())
    assert document["took_ms"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["alloc", "4MB", "--domain", "7", *SIMULATED],
            "'simulated' has no domain 7\n  expected: one of 0 (node:0), 1 (node:1), 2 (node:2)\n",
        ),
        (["alloc", "0", *SIMULATED], "cannot allocate 0 bytes\n  expected: at least 1 byte\n"),
        (
            ["alloc", "4MB", "--mode", "scatter", *SIMULATED],
            "there is no placement 'scatter'\n  expected: one of bind, interleave, preferred\n",
        ),
        (
            ["demo", "--provider", "nmua"],
            "unknown provider 'nmua'\n"
            "  expected: one of retryix, opencl, numa, simulated\n"
            "  try: numa\n",
        ),
        (
            ["alloc", "1MB", "--provider", ""],
            "unknown provider ''\n  expected: one of retryix, opencl, numa, simulated\n",
        ),
        (
            ["demo", "--simulate", ""],
            "cannot read '' in the simulated machine '': it has no size\n"
            "  expected: groups COUNTxSIZE[:far][:cpus=N][:gpu=SIZE] separated by commas\n"
            "  try: 2x16GB,1x64GB:far\n",
        ),
        (
            ["migrate", "1", "--from", "0", "--to", "0", "--address", "-1"],
            "cannot read '-1' as an address\n  expected: a hexadecimal number, such as 0x7f00\n",
        ),
        (
            ["migrate", "1", "--from", "0", "--to", "0", "--address", "1" + "0" * 16],
            "cannot read '10000000000000000' as an address\n"
            "  expected: a hexadecimal number, such as 0x7f00\n",
        ),
        (
            ["where", "0"],
            "0 is no process\n  expected: a process number, 1 or more\n",
        ),
        (
            ["migrate", "1", "--from", "0", "--to", "0", "--size", "4MB"],
            "--size was given without --address\n  expected: both, or neither\n",
        ),
        (
            ["migrate", "1", "--from", "0", "--to", "0", "--address", "here"],
            "cannot read 'here' as an address\n  expected: a hexadecimal number, such as 0x7f00\n",
        ),
        (
            ["migrate", "1", "--from", "0", "--to", "0", "--address", "7f00", "--size", "big"],
            "cannot read 'big' as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"\n',
        ),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_mistakes_are_errors_in_three_parts(arguments: list[str], message: str, capsys) -> None:
    assert main(["svm", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"holdfast: error: {message}"


def test_a_process_has_to_be_named(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["svm", "where"])
    assert caught.value.code == 2
    assert "the following arguments are required: PID" in capsys.readouterr().err


# ---- output that nobody can read


def _alloc_to(output: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Allocate, with the output going where a shell says."""
    settings = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"} | environ
    python = shlex.quote(sys.executable)
    command = f"{python} -m holdfast svm alloc 1MB --provider simulated {output}"
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, env=settings, check=False
    )


FULL = "holdfast: error: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(
    ("output", "environ", "status", "error"),
    [
        ("> /dev/full", {}, 1, FULL),
        ("> /dev/full", {"PYTHONUNBUFFERED": "1"}, 1, FULL),
        ("--json > /dev/full", {}, 1, FULL),
        ("--help > /dev/full", {}, 1, FULL),
        ("> /dev/full 2>&1", {}, 1, ""),
        ("--no-such 2> /dev/full", {}, 2, ""),
        ("--domain 9 > /dev/full 2> /dev/full", {}, 2, ""),
        (">&- 2>&-", {}, 0, ""),
        ("--domain 9 >&- 2>&-", {}, 2, ""),
    ],
)
def test_output_that_cannot_be_written_is_a_line_and_a_status(
    output: str, environ: dict[str, str], status: int, error: str
) -> None:
    done = _alloc_to(output, **environ)
    assert (done.returncode, done.stderr) == (status, error)


def test_a_letter_that_the_terminal_lacks_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "Füße 图"
    path.write_bytes(b"x" * 4096)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[0] == ord("x")  # in memory from here on
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "svm", "where", str(os.getpid()), "--all"],
            capture_output=True,
            encoding="latin-1",
            env=os.environ | {"PYTHONIOENCODING": "latin-1"},
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "/Füße \\u56fe\n" in done.stdout


# ---- holding memory, and looking at it from outside


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    """A process that holds 8 MiB of NUMA memory until Ctrl-C."""
    words = ["svm", "alloc", "8MiB", "--provider", "numa", "--hold"]
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        yield started
        started.kill()


def _command_for(holder: subprocess.Popen[str]) -> list[str]:
    """The last line it prints before it waits: how to move its memory."""
    assert holder.stdout is not None
    for line in holder.stdout:
        if line.startswith("  holdfast svm migrate"):
            return line.split()[1:]
    raise AssertionError(holder.stderr.read() if holder.stderr else "")


@needs(_no_numa())
def test_held_memory_is_seen_from_outside_and_ctrl_c_ends_it_well(holder, capsys) -> None:
    migrate = _command_for(holder)
    address = int(migrate[migrate.index("--address") + 1], 16)
    assert migrate[-2:] == ["--size", "8MiB"]
    assert main(["svm", "where", str(holder.pid), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    [held] = [
        region
        for region in document["regions"]
        if region["address"] <= address < region["address"] + region["length"]
    ]
    assert sum(held["pages"].values()) >= 2048
    assert held["policy"].startswith("bind:")
    holder.send_signal(signal.SIGINT)
    assert holder.wait(timeout=300) == 0
    assert holder.stderr.read() == ""
    assert main(["svm", "where", str(holder.pid)]) == 2


@needs(_no_numa())
def test_the_command_that_is_shown_moves_what_is_held(holder, capsys) -> None:
    migrate = _command_for(holder)
    at = migrate.index("--to") + 1
    nodes = process.pages(holder.pid).pages
    migrate[at] = str(max(nodes))  # where it is, on a machine with one node
    assert main(migrate) == 0
    out = capsys.readouterr().out
    if len(nodes) == 1:
        assert out.startswith("nothing to move: domain 0 is where it came from and where it goes")
    migrate[at] = "700"
    assert main(migrate) == 2
    assert "'numa' has no domain 700\n" in capsys.readouterr().err


def test_held_memory_is_printed_as_json_before_the_wait() -> None:
    words = ["svm", "alloc", "1MiB", *SIMULATED, "--hold", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words], stdout=subprocess.PIPE, text=True
    ) as held:
        assert held.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            text += held.stdout.readline()
        assert json.loads(text)["pid"] == held.pid
        held.send_signal(signal.SIGINT)
        assert held.wait(timeout=300) == 0


@needs(_no_numa())
def test_where_lists_the_largest_mappings_unless_all_are_asked_for(capsys) -> None:
    assert main(["svm", "where", str(os.getpid())]) == 0
    some = capsys.readouterr().out.splitlines()
    assert main(["svm", "where", str(os.getpid()), "--all"]) == 0
    everything = capsys.readouterr().out.splitlines()
    assert some[0].startswith(f"process {os.getpid()}: ")
    assert re.fullmatch(r"  and \d+ more with .* \(--all\)", some[-1])
    assert len(everything) > len(some)
    assert sum(line.startswith("  0x") for line in some) == 20


# ---- what migrate answers

MOVED = svm.Migration(
    provider="numa, process 7",
    from_domain=0,
    to_domain=1,
    pages_moved=1000,
    pages_elsewhere=0,
    not_moved={},
    seconds=0.004096,
    after=svm.Where(pages={1: 1000}, method="numa_maps of the kernel", verified=True),
)
MIGRATE = ["svm", "migrate", "7", "--from", "0", "--to", "1"]


@pytest.mark.parametrize(
    ("not_moved", "status"),
    [({}, 0), ({SHARED: 3}, 0), ({SHARED: 3, "no memory left on the target": 1}, 1)],
    ids=["all moved", "but shared pages", "but others"],
)
def test_the_status_tells_whether_pages_were_left(
    not_moved: dict[str, int], status: int, monkeypatch, capsys
) -> None:
    received: dict[str, Any] = {}

    def move(*nodes: int, **options: Any) -> svm.Migration:
        received.update(options, nodes=nodes)
        options["progress"](4096, 8192)
        return dataclasses.replace(MOVED, not_moved=not_moved)

    monkeypatch.setattr(process, "move", move)
    assert main([*MIGRATE, "--address", "0x7f00", "--size", "4KiB"]) == status
    assert (received["nodes"], received["address"], received["length"]) == ((7, 0, 1), 0x7F00, 4096)
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == (
        "moved 1000 pages (4.1 MB) from domain 0 to domain 1 by provider numa, process 7: "
        "4.1 ms, 1.00 GB/s"
    )
    assert captured.err == ""


def test_ctrl_c_stops_a_move_between_parts_and_the_rest_is_reported(monkeypatch, capsys) -> None:
    def move(*_: int, stop: Any, **__: Any) -> svm.Migration:
        assert not stop()
        os.kill(os.getpid(), signal.SIGINT)
        return dataclasses.replace(MOVED, interrupted=stop())

    monkeypatch.setattr(process, "move", move)
    before = signal.getsignal(signal.SIGINT)
    assert main([*MIGRATE, "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["interrupted"] is True
    assert signal.getsignal(signal.SIGINT) is before

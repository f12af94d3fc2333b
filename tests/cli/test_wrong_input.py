"""Whatever a person types, the answer is a text and a status, never a traceback.

Every place and every option of every command and action is tried with what does not belong there.
What else stands on the line is right, and ends the command before it works for long.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest

from holdfast.base.errors import NotFound
from holdfast.cli.main import COMMANDS, main
from holdfast.cli.parsing import LONGEST
from tests.cli.trees import all_parsers, all_paths
from tests.memory import samples

pytestmark = pytest.mark.slow

LONGEST_S = 10.0
LONGEST_TEXT = 20_000


# ---- what is on the line besides


@dataclass(frozen=True)
class Line:
    """A line that is right: its options, what stands in its places, how it is called for some."""

    options: dict[str, str] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    instead: dict[str, dict[str, str]] = field(default_factory=dict)  # while that option is tried


def _pid() -> str:
    return str(os.getpid())


LINES = {
    ("run",): Line(
        {"--frames": "7", "--device": "cpu"},  # a picture has one frame, which is looked at last
        ("tiny-flux",),
        {
            "--frames": {"--width": "7"},
            "--out": {"--steps": "1", "--device": "cpu"},
        },
    ),
    ("batch",): Line({"--dry-run": "", "--device": "cpu"}, ("good.jsonl",)),
    ("fit",): Line(
        {"--device": "simulated", "--size": "7x7"},  # smaller than any picture
        ("tiny-flux",),
        {"--size": {"--device": "nowhere"}, "--frames": {"--size": "7x7"}},
    ),
    ("pack",): Line({"--device": "cpu"}, ("good.py", "empty")),
    ("topo",): Line(
        {"--simulate": "1x1GB"}, (), {"--from": {}, "--root": {}, "--probes": {"--root": "empty"}}
    ),
    ("mem",): Line(),
    ("mem", "record"): Line({}, ("good.py", "argument")),
    ("mem", "report"): Line({}, ("good.hfmem",)),
    ("mem", "replay"): Line({}, ("good.hfmem",)),
    ("svm",): Line(),
    ("svm", "demo"): Line({"--simulate": "2x1GB", "--size": "1MB"}),
    ("svm", "alloc"): Line({"--simulate": "2x1GB"}, ("1MB",)),
    ("svm", "where"): Line({}, (_pid(),)),
    ("svm", "migrate"): Line({"--from": "0", "--to": "0", "--address": "0x1000"}, (_pid(),)),
    ("device",): Line(),
    ("device", "ops"): Line({"--only": "add"}),
    ("device", "build"): Line(),
    ("tune",): Line({"--device": "opencl:99"}),
    ("port",): Line(),
    ("port", "new"): Line({"--out": "empty"}, ("name",)),
    ("port", "check"): Line({}, ("NoSuchClass",)),
    ("port", "list"): Line(),
    ("comfy",): Line(),
    ("comfy", "install"): Line({}, ("empty",)),
    ("comfy", "remove"): Line({}, ("empty",)),
    ("comfy", "check"): Line({"--timeout": "1"}, ("http://127.0.0.1:1",)),
    ("doctor",): Line(),
    ("top",): Line({"--once": ""}, ("999999999",), {"--count": {"--json": ""}}),
    ("serve",): Line(
        {"--port": "TAKEN", "--host": "127.0.0.1"}, (), {"--port": {"--host": "no such host"}}
    ),
    ("bench",): Line({"--list": ""}, ("pool",)),
    ("completion",): Line({}, ("bash",)),
}


def test_every_command_has_its_line() -> None:
    assert sorted(LINES) == sorted(all_paths())


# ---- what does not belong there

WORDS = (
    "",
    " ",
    "x" * 100_000,
    "\udcff\udc80\udcfe",  # bytes that are no text, as Python gets them
    "\x1b[31m\r\n\t",
    "no such thing",
    "nowhere/at/all",
    "../../../../..",
    "~no-such-user/x",
    "%s%n{0}${HOME}",
    "-1",
    "0",
    "1.5",
    "nan",
    "-inf",
    "1e999",
    "9" * 30,
    "9" * 5000,
    "²",
    "٣",
    "0x10",
    "1GB,,2",
    ",",
    "=",
    "a=b=c",
    "cpu,cpu",
    "text=cpu,text=cpu",
    "cuda:99",
    "cpu:x",
)
# Options that name a file to write; to read /dev/full would take all memory there is.
WRITTEN = {"--svg", "--html", "--png", "--perfetto", "--snapshot", "--collapsed", "--timeline"}
FILES = ("FILE", "DIR", "MODEL", "SCRIPT", "OLD.json")


def files(folder: Path) -> list[str]:
    """Files and folders that are not what anybody wants; made in `folder`."""
    recording = samples.few()
    recording.save(folder / "good.hfmem")
    whole = (folder / "good.hfmem").read_bytes()
    header = b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    broken = {
        "empty.file": b"",
        "noise.bin": bytes(range(256)) * 8,
        "half.hfmem": whole[: len(whole) // 2],
        "turned.hfmem": whole[:40] + whole[40:][::-1],
        "half.pickle": b"\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00}\x94(",
        "code.pickle": b"\x80\x04cos\nsystem\n\x8c\x04true\x85R.",
        "half.json": b'{"version": 1, "rows": [',
        "list.json": b"[1, 2, 3]",
        "deep.json": b"[" * 100_000,
        "not-a-number.json": b'{"version": NaN, "nodes": -Infinity}',
        "half.jsonl": b'{"prompt": "a seven"}\n{"prompt": ',
        "odd.jsonl": b'{"prompt": 7, "height": [], "out": "../../x"}\n',
        "zeros.csv": b"prompt,height\n\0\0,\0\n",
        "half.safetensors": struct.pack("<Q", len(header)) + header + b"\0\0\0",
        "large.safetensors": struct.pack("<Q", 2**62) + header,
        "deep.safetensors": struct.pack("<Q", 100_000) + b"[" * 100_000,
        "no-syntax.py": b"def (:\n",
        "text.so": b"not a library",
        "text.png": b"not a picture",
    }
    for name, content in broken.items():
        (folder / name).write_bytes(content)
    (folder / "model").mkdir()
    (folder / "model" / "model_index.json").write_bytes(b'{"_class_name": 7}')
    (folder / "deep-model").mkdir()
    (folder / "deep-model" / "model_index.json").write_bytes(b"[" * 100_000)
    (folder / "config").mkdir()
    (folder / "config" / "config.json").write_bytes(b'{"_class_name": "FluxTransformer2DModel"')
    (folder / "circle").symlink_to("circle")
    (folder / "locked").write_bytes(b"{}")
    (folder / "locked").chmod(0)
    names = [*broken, "model", "deep-model", "config", "circle", "locked"]
    return [*names, "/proc/self/mem", "/proc/nowhere/x.png", "/dev/null/x.html"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder one is in, with what the lines name, far from what is a person's own."""
    (tmp_path / "good.py").write_text("print('good')\n", encoding="utf-8")
    (tmp_path / "good.jsonl").write_text('{"prompt": "a seven"}\n', encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for variable in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "ZDOTDIR"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HOLDFAST_PROBES", "linux")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


_getaddrinfo = socket.getaddrinfo


def no_network(host: str | None, *options: object, **more: object) -> object:
    """Addresses as ever; a name is unknown, or cannot be one, at once."""
    name = str(host or "").encode("idna").decode()
    if not name.replace(".", "").isdecimal():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return _getaddrinfo(host, *options, **more)


# ---- trying


class TookTooLong(BaseException):
    """Nothing catches this one."""


@dataclass(frozen=True)
class Outcome:
    status: object
    out: str
    err: str
    took_s: float
    raised: Exception | TookTooLong | None = None


@contextlib.contextmanager
def no_longer_than(seconds: float) -> Iterator[None]:
    def ended(number: int, frame: FrameType | None) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tried(arguments: list[str]) -> Outcome:
    """What the command does; its output goes through streams as a process has them."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in "oe"]
    began, status, raised = time.monotonic(), None, None
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            with no_longer_than(LONGEST_S):
                status = main(arguments)
        except SystemExit as exc:
            status = exc.code
        except (Exception, TookTooLong) as exc:  # noqa: BLE001  # what is looked for
            raised = exc
    took_s = time.monotonic() - began
    texts = []
    for stream in streams:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return Outcome(status, *texts, took_s, raised)


def complaint(outcome: Outcome) -> str | None:
    """What is wrong with an answer; None where it is as it should be."""
    if outcome.raised is not None:
        return f"{type(outcome.raised).__name__}: {outcome.raised}"[:300]
    if outcome.status not in (0, 1, 2):
        return f"status {outcome.status!r}"
    if "Traceback" in outcome.out + outcome.err:
        return "a traceback is shown"
    if len(outcome.err) > LONGEST_TEXT:
        return f"{len(outcome.err)} characters of error"
    if outcome.status != 2 or outcome.err.startswith("usage: holdfast"):
        return None
    if "\nholdfast: error: " not in f"\n{outcome.err}":
        return f"no error: {outcome.err[:200]!r}"
    if "\n  expected: " not in outcome.err and "\n  try: " not in outcome.err:
        return f"it says neither what was expected nor what to try: {outcome.err[:200]!r}"
    return None


def lines(
    path: tuple[str, ...], parser: argparse.ArgumentParser, odd: list[str]
) -> Iterator[list[str]]:
    """Every line that is right but for one thing."""
    line = LINES[path]
    actions = [a for a in parser._actions if not isinstance(a, argparse._SubParsersAction)]
    places = [a for a in actions if not a.option_strings]
    for action in actions:
        if not action.option_strings or action.nargs == 0:
            continue
        name = action.option_strings[-1]
        others = line.instead.get(name, line.options)
        for word in words_for(action, odd):
            yield [*path, *flat(others, name), f"{name}={word}", *line.places]
        yield [*path, *flat(others, name), *line.places, name]  # with nothing behind it
        yield [*path, *flat(others, name), name, "x", name, "y", *line.places]  # twice
    for number, action in enumerate(places):
        for word in words_for(action, odd):
            given = [*line.places[:number], word, *line.places[number + 1 :]]
            yield [*path, *flat(line.options), *(["--"] if word[:1] == "-" else []), *given]
    if places:
        yield [*path, *flat(line.options)]
    yield [*path, *flat(line.options), *line.places, "one", "too", "many"]


def words_for(action: argparse.Action, odd: list[str]) -> list[str]:
    if action.metavar not in FILES and not isinstance(action.metavar, tuple):
        return list(WORDS)
    writes = WRITTEN.intersection(action.option_strings)
    return [*WORDS, *odd, *(["/dev/full"] if writes else [])]


def flat(options: dict[str, str], without: str = "") -> list[str]:
    pairs = [(name, value) for name, value in options.items() if name != without]
    return [word for name, value in pairs for word in ([f"{name}={value}"] if value else [name])]


def taken_port() -> socket.socket:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return taken


def marks(path: tuple[str, ...]) -> list[str]:
    """`port` starts JAX; those take long that load torch and models, or write many files."""
    slow = path[0] in ("run", "fit", "port", "bench") or path in (
        ("device", "ops"),
        ("mem", "report"),
    )
    return [*(["xla"] if path[0] == "port" else []), *(["slow"] if slow else [])]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=" ".join(path), marks=[getattr(pytest.mark, m) for m in marks(path)])
        for path in LINES
    ],
)
def test_what_does_not_belong_there_is_refused_in_words(path: tuple[str, ...], here: Path) -> None:
    parser = dict(all_parsers(path[0]))[path]
    odd = files(here)
    wrong = {}
    with taken_port() as taken:
        port = str(taken.getsockname()[1])
        for arguments in lines(path, parser, odd):
            given = [word.replace("TAKEN", port) for word in arguments]
            problem = complaint(tried(given))
            if problem is not None:
                wrong[" ".join(word[:60] for word in given)] = problem
    assert wrong == {}


def test_a_traceback_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(args: argparse.Namespace) -> int:
        raise KeyError("lost")

    def tells(args: argparse.Namespace) -> int:
        raise NotFound("there is no such thing")

    monkeypatch.setattr(COMMANDS["topo"], "run", wrong)
    assert complaint(tried(["topo"])) == "KeyError: 'lost'"
    monkeypatch.setattr(COMMANDS["topo"], "run", tells)
    assert complaint(tried(["topo"])) == (
        "it says neither what was expected nor what to try: "
        "'holdfast: error: there is no such thing\\n'"
    )
    monkeypatch.setattr(COMMANDS["topo"], "run", lambda args: 3)
    assert complaint(tried(["topo"])) == "status 3"


@pytest.mark.parametrize(
    "line",
    [
        "topo --simulate 1x1GB --from list.json",
        "topo --from list.json --root empty",
        "mem report good.hfmem --html same --perfetto same",
        "mem report good.hfmem --html good.hfmem",
        "mem record --out same --html same good.py",
        "mem record --out good.py good.py",
        "run tiny-flux --out same.png --timeline same.png",
        "run tiny-flux --device cpu --hosts auto",
        "run tiny-flux --device cpu --steps 1 --out drawn.png --timeline /dev/full",
        "svm migrate 1 --from 0 --to 0 --size 1MB",
        "svm demo --library text.so --provider numa",
        "fit tiny-flux --frames 9 --device nowhere",
        "batch --ray",
        "top --once --json --count 3",
        "top --once --count 3",
        "bench --compare list.json list.json list.json",
        "completion bash zsh",
    ],
)
def test_what_does_not_go_together_is_refused_in_words(line: str, here: Path) -> None:
    files(here)
    outcome = tried(line.split())
    assert (outcome.status, complaint(outcome)) == (2, None)


@pytest.mark.parametrize("line", ["topo --from /dev/zero", "mem report /dev/urandom"])
def test_what_has_no_end_is_not_read(line: str) -> None:
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31));"
        f"from holdfast.cli.main import main; sys.exit(main({line.split()!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    file = line.split()[-1]
    assert (done.returncode, done.stderr.decode()) == (
        2,
        f"holdfast: error: cannot read {file!r}: it has no end\n  expected: a file\n",
    )


def test_a_long_answer_is_shortened(here: Path) -> None:
    outcome = tried(["topo", "--simulate", "x" * 100_000])
    first = outcome.err.splitlines()[0]
    assert len(first) == LONGEST + 3
    assert " … xxx" in first


def test_an_unknown_command_that_is_no_text_is_refused() -> None:
    command = [sys.executable, "-m", "holdfast", b"\xff\xfe"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(rb"holdfast: error: unknown command '\udcff\udcfe'")

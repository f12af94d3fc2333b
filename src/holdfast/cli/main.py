"""The `holdfast` command: finds the sub-command, runs it, turns errors into text and a status.

Exit status: 0 all is well, 1 the command found a problem or its output could not be written, 2 bad
input or an error, 130 Ctrl-C or a run that `holdfast top` or `holdfast serve` stopped.
Errors that a user can cause are shown without a traceback, unless HOLDFAST_DEBUG=1.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TextIO

import holdfast
from holdfast.base.config import Config
from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory
from holdfast.base.interrupts import is_interrupt
from holdfast.base.registry import Entry, Registry
from holdfast.cli.parsing import Parser, add_command, read_examples, shorten
from holdfast.residency.interrupt import InterruptProcessingException

# Each module has OPTIONS and run(args) -> exit status, or ACTIONS.
COMMANDS: Registry[ModuleType] = Registry(
    "command",
    {
        "run": Entry("holdfast.cli.run", "draw a picture or a video from a prompt", "run"),
        "batch": Entry("holdfast.cli.batch", "draw many prompts from a file, and resume", "run"),
        "fit": Entry("holdfast.cli.fit", "predict whether a model fits, and how fast it is", "run"),
        "pack": Entry("holdfast.cli.pack", "pack a model's weights without losing a bit", "torch"),
        "topo": Entry("holdfast.cli.topo", "show the machine: nodes, caches, GPUs, links"),
        "mem": Entry("holdfast.cli.mem", "record where memory goes, and look at it"),
        "svm": Entry("holdfast.cli.svm", "shared virtual memory: allocate, look up, migrate"),
        "device": Entry(
            "holdfast.cli.device", "show what Holdfast's torch device computes", "torch,compute"
        ),
        "tune": Entry(
            "holdfast.cli.tune", "find the fastest kernels for an OpenCL device", "opencl"
        ),
        "port": Entry("holdfast.cli.port", "models on XLA: write a port, check one, list them"),
        "comfy": Entry("holdfast.cli.comfy", "put the nodes into ComfyUI, check a running one"),
        "doctor": Entry("holdfast.cli.doctor", "check what Holdfast can use here, what to install"),
        "top": Entry("holdfast.cli.top", "watch this machine and Holdfast's processes, live"),
        "serve": Entry(
            "holdfast.cli.serve", "the same as a web page, with an API and metrics", "dashboard"
        ),
        "bench": Entry("holdfast.cli.bench", "measure: ours beside the peers, one report"),
        "completion": Entry("holdfast.cli.completion", "have your shell complete all of this"),
    },
)

# The groups in `holdfast --help`.
GROUPS = {
    "draw": ("run", "batch", "fit", "pack"),
    "the machine": ("topo", "svm"),
    "memory": ("mem", "top", "serve"),
    "compute": ("device", "tune"),
    "models elsewhere": ("port", "comfy"),
    "help": ("doctor", "bench", "completion"),
}

EXAMPLES = """
holdfast run tiny-flux --prompt "a handwritten seven" --out seven.png
holdfast fit tiny-flux --budget 12MB    whether it fits, and how fast it is
holdfast topo --svg machine.svg         the machine as a picture
holdfast mem record train.py            where its memory goes
holdfast svm demo                       memory placed, moved and freed
holdfast comfy install ~/ComfyUI        the nodes for ComfyUI
holdfast doctor                         what is missing, and how to get it
holdfast run --help                     all options of a command
"""

ASK = "__complete"  # called by the scripts that `holdfast completion` writes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    finally:
        _flush_all()


def _main(arguments: list[str]) -> int:
    try:
        with _flush_at_end():
            return _run(arguments)
    except (Exception, KeyboardInterrupt) as exc:
        status = _explain(exc)
        if status is None:
            raise
        return status


def _explain(exc: BaseException) -> int | None:
    """Print an error that a user can cause, and return the exit status; None for all others."""
    ours = isinstance(exc, (HoldfastError, InterruptProcessingException, MemoryError))
    wraps = isinstance(exc, (RuntimeError, ImportError)) and not ours and is_interrupt(exc)
    if isinstance(exc, KeyboardInterrupt) or wraps:  # an import may have wrapped it
        return _report_stop()
    if isinstance(exc, BrokenPipeError):
        _discard(sys.stdout)  # the reader has ended: `holdfast topo | head`
        return 0
    if _debug():
        return None
    if isinstance(exc, HoldfastError):
        return _report_error(exc)
    if isinstance(exc, MemoryError):
        return _report_error(
            OutOfMemory(
                "there was not enough memory",
                expected="more of it, or a higher limit for this process",
                hint="HOLDFAST_DEBUG=1 shows where",
            )
        )
    if isinstance(exc, InterruptProcessingException):
        return _report_stop("on request")  # of `holdfast top` or `holdfast serve`
    if not isinstance(exc, OSError):
        return None
    if exc.errno in _NO_PATH and exc.filename is not None:
        reason = f"cannot use {str(exc.filename)!r}: {exc.strerror}"
        return _report_error(BadInput(reason, expected="a path that this system can have"))
    if exc.filename is not None or exc.errno not in _UNWRITABLE:
        return None
    _discard(sys.stdout)
    _print_error(_style(f"holdfast: error: cannot write the output: {exc.strerror}"))
    return 1


# Errors of writing; opening a file can raise them too, but then names the file.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
# Errors for a path that cannot exist, raised by whatever uses it first.
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


def _report_error(exc: HoldfastError) -> int:
    _print_error(_style("\n".join(map(shorten, f"holdfast: error: {exc}".split("\n")))))
    return 2


def _discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null: Python would report unwritten output at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no file, closed, None
        target = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, target)
        os.close(nowhere)


def _flush_all() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # closed by the parent process
            continue
        try:
            stream.flush()
        except (OSError, ValueError):  # full, or closed
            _discard(stream)


@contextlib.contextmanager
def _flush_at_end() -> Iterator[None]:
    """Flush standard output at the end of the block and after --help, but not after an error.

    The text of the error comes first.
    """
    leaving = None
    try:
        yield
    except SystemExit as exc:
        leaving = exc
    if sys.stdout is not None:
        sys.stdout.flush()
    if leaving is not None:
        raise leaving


def _print_error(text: str) -> None:
    """Print to standard error, if it is open."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr)


def _report_stop(why: str = "by Ctrl-C") -> int:
    _print_error(f"\nholdfast: stopped {why}")
    return 130


def _run(arguments: list[str]) -> int:
    if arguments[:1] == [ASK]:
        return _answer(arguments[1:])
    if arguments and not arguments[0].startswith("-"):
        COMMANDS.entry(arguments[0])  # an unknown one raises NotFound with a close name
    parser = parser_for(arguments)
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    return args.run(args)


def _answer(kinds: list[str]) -> int:
    """Print values for a shell's completion; nothing where they cannot be found."""
    for kind in kinds:
        for value, about in COMMANDS["completion"].answers(kind):
            print(f"{value}\t{about}")
    return 0


def parser_for(arguments: Sequence[str]) -> Parser:
    """The parser for these arguments; only the command in them is imported."""
    parser = Parser(
        prog="holdfast",
        usage="holdfast COMMAND [OPTION ...]",
        description="Run diffusion models on the hardware people actually have.\n\n" + _groups(),
    )
    parser.examples = tuple(read_examples(EXAMPLES))
    parser.add_argument(
        "--version",
        action="version",
        version=f"holdfast {holdfast.__version__}",
        help="show the version, and stop",
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", prog="holdfast", help=argparse.SUPPRESS
    )
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name in COMMANDS:
        sub = commands.add_parser(name, help=COMMANDS.entry(name).summary)
        if name == chosen:
            add_command(sub, COMMANDS[name])
    return parser


def _groups() -> str:
    column = max(map(len, COMMANDS))
    parts = []
    for title, names in GROUPS.items():
        lines = [f"  {name.ljust(column)}  {COMMANDS.entry(name).summary}" for name in names]
        parts.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join(parts)


def _debug() -> bool:
    try:
        return Config.load().debug
    except HoldfastError:
        return False  # the setting itself is wrong


def _style(text: str) -> str:
    """Make the first line red if standard error is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        return text
    first, newline, rest = text.partition("\n")
    return f"\033[1;31m{first}\033[0m{newline}{rest}"

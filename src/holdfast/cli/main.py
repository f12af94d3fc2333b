"""The `holdfast` command: find the sub-command, run it, turn errors into text and a status.

Exit status: 0 all is well, 1 the command found a problem or its output could not be written, 2 bad
input or an error, 130 Ctrl-C or a run that `holdfast top` or `holdfast serve` stopped.
Promise: an error a person can cause is never shown as a traceback (unless HOLDFAST_DEBUG=1).
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
from holdfast.cli.parsing import Parser, describe, read_examples, shortened
from holdfast.residency.interrupt import InterruptProcessingException

# Each module has add_arguments(parser) and run(args) -> exit status.
COMMANDS: Registry[ModuleType] = Registry(
    "command",
    {
        "run": Entry("holdfast.cli.run", "draw a picture or a video from a prompt", "run"),
        "batch": Entry("holdfast.cli.batch", "draw many prompts from a file, and resume", "run"),
        "fit": Entry("holdfast.cli.fit", "say whether a model fits and how fast it will be", "run"),
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

# How `holdfast --help` shows them.
GROUPS = {
    "draw": ("run", "batch", "fit"),
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


ASK = "__complete"  # for the scripts that `holdfast completion` writes; no command for people


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    finally:
        _leave_nothing_unwritten()


def _main(arguments: list[str]) -> int:
    try:
        with _written_out():
            return _run(arguments)
    except HoldfastError as exc:
        if _debug():
            raise
        return _refused(exc)
    except MemoryError:
        if _debug():
            raise
        return _refused(
            OutOfMemory(
                "there was not enough memory",
                expected="more of it, or a higher limit for this process",
                hint="HOLDFAST_DEBUG=1 shows where",
            )
        )
    except KeyboardInterrupt:
        return _stopped()
    except InterruptProcessingException:
        if _debug():
            raise
        return _stopped("on request")  # of `holdfast top`, of `holdfast serve`
    except (RuntimeError, ImportError) as exc:
        if is_interrupt(exc):  # one in the middle of an import can come out wrapped
            return _stopped()
        raise
    except BrokenPipeError:
        _give_up(sys.stdout)  # the reader went away: `holdfast topo | head`
        return 0
    except OSError as exc:
        if exc.errno in _NO_PATH and exc.filename is not None and not _debug():
            reason = f"cannot use {str(exc.filename)!r}: {exc.strerror}"
            return _refused(BadInput(reason, expected="a path that this system can have"))
        if exc.filename is not None or exc.errno not in _UNWRITABLE or _debug():
            raise
        _give_up(sys.stdout)
        _tell(_styled(f"holdfast: error: cannot write the output: {exc.strerror}"))
        return 1


# What writing fails with; opening a file fails with these too, but then names the file.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


# What a system says of a path that cannot be there, whoever looks at it first.
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)


def _refused(exc: HoldfastError) -> int:
    _tell(_styled("\n".join(map(shortened, f"holdfast: error: {exc}".split("\n")))))
    return 2


def _give_up(stream: TextIO) -> None:
    """Have what is still to be written to a stream go nowhere: Python would complain at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no file, closed, none at all
        target = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, target)
        os.close(nowhere)


def _leave_nothing_unwritten() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # it was closed by whoever started us
            continue
        try:
            stream.flush()
        except (OSError, ValueError):  # full, or closed
            _give_up(stream)


@contextlib.contextmanager
def _written_out() -> Iterator[None]:
    """At the end of the block, also by --help, what was printed is written.

    Not after an error: that is told first.
    """
    try:
        yield
    except SystemExit:
        _flush()
        raise
    _flush()


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _tell(text: str) -> None:
    """A line for a person, where there is somebody to read it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr)


def _stopped(why: str = "by Ctrl-C") -> int:
    _tell(f"\nholdfast: stopped {why}")
    return 130


def _run(arguments: list[str]) -> int:
    if arguments[:1] == [ASK]:
        return _answer(arguments[1:])
    if arguments and not arguments[0].startswith("-"):
        COMMANDS.entry(arguments[0])  # an unknown one is refused with the one that was meant
    parser = parser_for(arguments)
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    return COMMANDS[args.command].run(args)


def _answer(kinds: list[str]) -> int:
    """What a shell's completion asks for while somebody types: no error, at worst nothing."""
    from holdfast.cli.completion import answers

    for kind in kinds:
        for value, about in answers(kind):
            print(f"{value}\t{about}")
    return 0


def parser_for(arguments: Sequence[str]) -> Parser:
    """The parser; only the command that is called is imported."""
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
        help="tell the version, and stop",
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", prog="holdfast", help=argparse.SUPPRESS
    )
    called = next((word for word in arguments if not word.startswith("-")), None)
    for name in COMMANDS:
        sub = commands.add_parser(name, help=COMMANDS.entry(name).summary)
        if name == called:
            module = COMMANDS[name]
            module.add_arguments(sub)
            describe(sub, module.__doc__)
    return parser


def _groups() -> str:
    """Every command in its group, with a line about it."""
    grouped = [name for names in GROUPS.values() for name in names]
    rest = tuple(name for name in COMMANDS if name not in grouped)
    column = max(map(len, COMMANDS))
    parts = []
    for title, names in [*GROUPS.items(), ("more", rest)]:
        lines = [
            f"  {name.ljust(column)}  {COMMANDS.entry(name).summary}"
            for name in names
            if name in COMMANDS
        ]
        parts += ["\n".join([f"{title}:", *lines])] if lines else []
    return "\n\n".join(parts)


def _debug() -> bool:
    try:
        return Config.load().debug
    except HoldfastError:
        return False  # the setting itself is what is wrong


def _styled(text: str) -> str:
    """The first line in red where standard error is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        return text
    first, newline, rest = text.partition("\n")
    return f"\033[1;31m{first}\033[0m{newline}{rest}"

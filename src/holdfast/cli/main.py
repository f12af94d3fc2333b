"""The `holdfast` command: find the sub-command, run it, turn errors into text and a status.

Exit status: 0 all is well, 1 the command found a problem or its output could not be written, 2 bad
input or an error, 130 Ctrl-C.
Promise: an error a person can cause is never shown as a traceback (unless HOLDFAST_DEBUG=1).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NoReturn, TextIO

import holdfast
from holdfast.base.config import Config
from holdfast.base.errors import HoldfastError
from holdfast.base.interrupts import is_interrupt
from holdfast.base.registry import Entry, Registry

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
    },
)

EXAMPLE = """\
examples:
  holdfast run tiny-flux --prompt "a handwritten seven" --out seven.png
  holdfast fit tiny-flux            whether a model fits and how fast it will be
  holdfast topo                     the machine as a tree
  holdfast topo --svg machine.svg   the same as a picture
  holdfast mem record train.py      where its memory goes
  holdfast svm demo                 memory placed by topology, moved and freed
  holdfast port check WanTransformer3DModel
  holdfast comfy install ~/ComfyUI  the nodes for ComfyUI
  holdfast doctor                   what is missing, and how to get it
"""


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
        _tell(_styled(f"holdfast: error: {exc}"))
        return 2
    except KeyboardInterrupt:
        return _stopped()
    except (RuntimeError, ImportError) as exc:
        if is_interrupt(exc):  # one in the middle of an import can come out wrapped
            return _stopped()
        raise
    except BrokenPipeError:
        _give_up(sys.stdout)  # the reader went away: `holdfast topo | head`
        return 0
    except OSError as exc:
        if exc.filename is not None or exc.errno not in _UNWRITABLE or _debug():
            raise
        _give_up(sys.stdout)
        _tell(_styled(f"holdfast: error: cannot write the output: {exc.strerror}"))
        return 1


# What writing fails with; opening a file fails with these too, but then names the file.
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


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


def _stopped() -> int:
    _tell("\nholdfast: stopped by Ctrl-C")
    return 130


def _run(arguments: list[str]) -> int:
    parser = _parser(arguments)
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    return COMMANDS[args.command].run(args)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Tell what is wrong with the arguments, where that can be written; status 2."""
        try:
            super().error(message)
        except OSError:  # older versions of argparse let it out
            sys.exit(2)


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    """The parser; only the sub-command that is called is imported."""
    parser = _Parser(
        prog="holdfast",
        description="Run diffusion models on the hardware people actually have.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"holdfast {holdfast.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    called = next((word for word in arguments if not word.startswith("-")), None)
    for name in COMMANDS:
        summary = COMMANDS.entry(name).summary
        sub = commands.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name == called:
            module = COMMANDS[name]
            about, _, example = (module.__doc__ or "").partition("\nexamples:\n")
            sub.description = about.strip()
            sub.epilog = "examples:\n" + textwrap.indent(textwrap.dedent(example), "  ")
            module.add_arguments(sub)
    return parser


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

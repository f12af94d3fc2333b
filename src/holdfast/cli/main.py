"""The `holdfast` command: find the sub-command, run it, turn errors into text and a status.

Exit status: 0 all is well, 1 the command found a problem, 2 bad input or an error, 130 Ctrl-C.
Promise: an error a person can cause is never shown as a traceback (unless HOLDFAST_DEBUG=1).
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from types import ModuleType

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
        "topo": Entry("holdfast.cli.topo", "show the machine: nodes, caches, GPUs, links"),
        "mem": Entry("holdfast.cli.mem", "record where memory goes, and look at it"),
        "svm": Entry("holdfast.cli.svm", "shared virtual memory: allocate, look up, migrate"),
        "doctor": Entry("holdfast.cli.doctor", "check what Holdfast can use here, what to install"),
    },
)

EXAMPLE = """\
examples:
  holdfast run tiny-flux --prompt "a handwritten seven" --out seven.png
  holdfast topo                     the machine as a tree
  holdfast topo --svg machine.svg   the same as a picture
  holdfast mem record train.py      where its memory goes
  holdfast svm demo                 memory placed by topology, moved and freed
  holdfast doctor                   what is missing, and how to get it
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except HoldfastError as exc:
        if _debug():
            raise
        print(_styled(f"holdfast: error: {exc}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _stopped()
    except (RuntimeError, ImportError) as exc:
        if is_interrupt(exc):  # one in the middle of an import can come out wrapped
            return _stopped()
        raise
    except BrokenPipeError:
        # The reader went away (`holdfast topo | head`); keep Python quiet about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _stopped() -> int:
    print("\nholdfast: stopped by Ctrl-C", file=sys.stderr)
    return 130


def _run(arguments: list[str]) -> int:
    parser = _parser(arguments)
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    status = COMMANDS[args.command].run(args)
    if sys.stdout is not None:  # it was closed by whoever started us
        sys.stdout.flush()
    return status


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    """The parser; only the sub-command that is called is imported."""
    parser = argparse.ArgumentParser(
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
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR"):
        return text
    first, newline, rest = text.partition("\n")
    return f"\033[1;31m{first}\033[0m{newline}{rest}"

"""Argument parsers with examples in their help, read from the docstring of a command's module.

No line of help is wider than the terminal or than 100 characters, unless a single word is.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

WIDEST = 100
LONGEST = 2000  # characters of a line in an error
LEAST = 26  # columns for the description of an example
_MARK = "\nexamples:\n"


class Example(NamedTuple):
    """A command line and its description."""

    command: str
    about: str = ""


class Formatter(argparse.HelpFormatter):
    """Fits the terminal; keeps paragraphs apart, and indented ones unchanged."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=width())

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):  # only its actions
            return "".join(self._format_action(one) for one in action._get_subactions())
        return super()._format_action(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_fill(part, width, indent) for part in text.split("\n\n"))


class Parser(argparse.ArgumentParser):
    """A parser with examples; its sub-parsers are Parsers too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **options, "add_help": False})
        self.examples: tuple[Example, ...] = ()
        self._positionals.title = "arguments"
        self.add_argument("-h", "--help", action="help", help="show this text, and stop")

    def format_help(self) -> str:
        """The help, with the examples at the end."""
        lines = [super().format_help(), *_format_examples(self.examples)]
        return "\n".join(lines).rstrip("\n") + "\n"

    def error(self, message: str) -> NoReturn:
        """Print the error, if standard error can be written, and exit with status 2."""
        try:
            super().error(shorten(message.encode(errors="backslashreplace").decode()))
        except OSError:  # older versions of argparse raise it
            sys.exit(2)


def describe(parser: argparse.ArgumentParser, text: str | None) -> None:
    """Set description and examples from a module's docstring, for its actions too.

    Call it after the arguments were added: an action shows the examples that call it.
    """
    about, _, lines = (text or "").partition(_MARK)
    parser.description = about.strip()
    examples = tuple(read_examples(lines))
    _set_examples(parser, examples)
    for name, action in actions_of(parser).items():
        call = f" {parser.prog} {name} "
        _set_examples(action, tuple(one for one in examples if call in f" {one.command} "))


def read_examples(lines: str) -> Iterator[Example]:
    """An example for each line: the command, two spaces or more, the description."""
    for line in lines.strip().splitlines():
        command, *about = re.split(r" {2,}", line.strip(), maxsplit=1)
        yield Example(command, *about)


def actions_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The sub-parsers by name, in order."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


class Option(NamedTuple):
    """An argument of a command, as `option` makes it."""

    name: str
    settings: dict[str, Any]
    group: str = ""  # of options with the same group, only one may be given


Run = Callable[[argparse.Namespace], int]


class Action(NamedTuple):
    """An action of a command, as `action` makes it."""

    run: Run
    summary: str
    options: tuple[Option, ...]
    usage: str | None


def action(
    actions: dict[str, Action], summary: str, *options: Option, usage: str | None = None
) -> Callable[[Run], Run]:
    """List the function below as an action; its docstring is the description in the help."""

    def add(run: Run) -> Run:
        actions[run.__name__.removeprefix("_")] = Action(run, summary, options, usage)
        return run

    return add


def option(
    spec: str, help: str, default: Any = None, *, group: str = "", **settings: Any
) -> Option:
    """An argument: "--out FILE" takes a value, "--json" is a flag, "file FILE" is positional.

    A default that is a number sets the type.
    """
    name, _, metavar = spec.partition(" ")
    if metavar:
        settings["metavar"] = metavar
    elif "metavar" not in settings:
        return Option(name, {"help": help, "action": "store_true", **settings}, group)
    if isinstance(default, (int, float)):
        settings.setdefault("type", type(default))
    if default is not None:
        settings["default"] = default
    return Option(name, {"help": help, **settings}, group)


JSON = option("--json", "print JSON instead of text")


def add_command(parser: argparse.ArgumentParser, module: Any) -> None:
    """Add the options or actions of a command's module; `args.run` is the function to call.

    A module has OPTIONS and `run`, or ACTIONS; without an action, `run` or the help is shown.
    """
    _add_options(parser, getattr(module, "OPTIONS", ()))
    actions: Mapping[str, Action] = getattr(module, "ACTIONS", {})
    parser.set_defaults(run=getattr(module, "run", _show_help), format_help=parser.format_help)
    if actions:
        below = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
        for name, (run, summary, options, usage) in actions.items():
            about = " ".join((run.__doc__ or "").split())
            sub = below.add_parser(name, help=summary, description=about, usage=usage)
            sub.set_defaults(run=run)
            _add_options(sub, options)
    describe(parser, module.__doc__)


def _add_options(parser: argparse.ArgumentParser, options: Iterable[Option]) -> None:
    groups: dict[str, Any] = {"": parser}
    for one in options:
        if one.group not in groups:
            groups[one.group] = parser.add_mutually_exclusive_group()
        groups[one.group].add_argument(one.name, **one.settings)


def _show_help(args: argparse.Namespace) -> int:
    print(args.format_help(), end="")
    return 0


def shorten(line: str) -> str:
    """Leave out the middle of a very long line."""
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 100]} … {line[-100:]}"


def width() -> int:
    """The width of help, in columns."""
    return min(shutil.get_terminal_size().columns, WIDEST) - 2


def _set_examples(parser: argparse.ArgumentParser, examples: tuple[Example, ...]) -> None:
    if isinstance(parser, Parser):
        parser.examples = examples


def _fill(paragraph: str, width: int, indent: str) -> str:
    """Wrap one paragraph; "Exit status:" starts a new line."""
    if paragraph.startswith((" ", "\n")) or "\n  " in paragraph:
        return paragraph
    parts = re.split(r"\n(?=Exit status:)", paragraph)
    return "\n".join(
        textwrap.fill(
            " ".join(part.split()),
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in parts
    )


def _format_examples(examples: tuple[Example, ...]) -> list[str]:
    """Commands with their descriptions beside them, or below them if the terminal is narrow."""
    if not examples:
        return []
    column = max((len(one.command) for one in examples if one.about), default=0)
    if width() - column >= LEAST:
        return ["examples:", *(line for one in examples for line in _beside(one, column))]
    wrap = textwrap.TextWrapper(width(), initial_indent=" " * 6, subsequent_indent=" " * 6)
    below = ([f"  {one.command}", *wrap.wrap(one.about)] for one in examples)
    return ["examples:", *(line for lines in below for line in lines)]


def _beside(example: Example, column: int) -> list[str]:
    first, *more = textwrap.wrap(example.about, width() - column - 2) or [""]
    return [
        f"  {example.command.ljust(column)}  {first}".rstrip(),
        *(" " * (column + 4) + line for line in more),
    ]

"""Parsers whose help reads well: as wide as the terminal, with examples for every command.

Covers: paragraphs, columns, the examples in a module's first lines, errors that cannot be written.
Leaves to others: which commands there are (main), what their options mean (each command).
Promise: no line of help is wider than the terminal or than 100 characters, unless a word is.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

WIDEST = 100
LONGEST = 2000  # characters of a line in an error
LEAST = 26  # columns for what an example is for
_MARK = "\nexamples:\n"


class Example(NamedTuple):
    """A command line somebody may type, and what it is for."""

    command: str
    about: str = ""


class Formatter(argparse.HelpFormatter):
    """Fits the terminal; paragraphs stay paragraphs, indented ones as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=width())

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):  # its actions, without a line of its own
            return "".join(self._format_action(one) for one in action._get_subactions())
        return super()._format_action(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(part, width, indent) for part in text.split("\n\n"))


class Parser(argparse.ArgumentParser):
    """A parser in the house's style; its sub-parsers are of the same kind."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **options, "add_help": False})
        self.examples: tuple[Example, ...] = ()
        self._positionals.title = "arguments"
        self.add_argument("-h", "--help", action="help", help="show this text, and stop")

    def format_help(self) -> str:
        """The help, with the examples at its end."""
        return "\n".join([super().format_help(), *_laid_out(self.examples)]).rstrip("\n") + "\n"

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong with the arguments, where that can be written; status 2."""
        try:
            super().error(shortened(message.encode(errors="backslashreplace").decode()))
        except OSError:  # older versions of argparse let it out
            sys.exit(2)


def describe(parser: argparse.ArgumentParser, text: str | None) -> None:
    """Use a module's first lines: the description, then examples, for its actions too.

    To be called when the parser has its arguments: an action shows the examples that call it.
    """
    about, _, lines = (text or "").partition(_MARK)
    parser.description = about.strip()
    examples = tuple(read_examples(lines))
    _give(parser, examples)
    for name, action in actions_of(parser).items():
        words = f"{parser.prog} {name}".split()
        _give(action, tuple(one for one in examples if _calls(one, words)))


def read_examples(lines: str) -> Iterator[Example]:
    """One for each line: the command, two spaces or more, what it is for."""
    for line in lines.strip().splitlines():
        command, *about = re.split(r" {2,}", line.strip(), maxsplit=1)
        yield Example(command, *about)


def actions_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The sub-parsers by name, in their order; empty where there are none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def shortened(line: str) -> str:
    """A line for a person: the middle of a very long one is left out."""
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 100]} … {line[-100:]}"


def width() -> int:
    """How wide help may be."""
    return min(shutil.get_terminal_size().columns, WIDEST) - 2


def _give(parser: argparse.ArgumentParser, examples: tuple[Example, ...]) -> None:
    if isinstance(parser, Parser):
        parser.examples = examples


def _calls(example: Example, words: list[str]) -> bool:
    found = example.command.split()
    return any(found[i : i + len(words)] == words for i in range(len(found)))


def _filled(paragraph: str, width: int, indent: str) -> str:
    """One paragraph; a line that begins with "Exit status:" begins a new line."""
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


def _laid_out(examples: tuple[Example, ...]) -> list[str]:
    """Commands, and beside them what they are for; below them where there is no room."""
    if not examples:
        return []
    column = max((len(one.command) for one in examples if one.about), default=0)
    if width() - column >= LEAST:
        return ["examples:", *(line for one in examples for line in _beside(one, column))]
    return ["examples:", *(line for one in examples for line in _below(one))]


def _beside(example: Example, column: int) -> list[str]:
    first, *more = textwrap.wrap(example.about, width() - column - 2) or [""]
    return [
        f"  {example.command.ljust(column)}  {first}".rstrip(),
        *(" " * (column + 4) + line for line in more),
    ]


def _below(example: Example) -> list[str]:
    about = textwrap.wrap(example.about, width(), initial_indent=" " * 6, subsequent_indent=" " * 6)
    return [f"  {example.command}", *about]

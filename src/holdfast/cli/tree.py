"""Every command with its options as plain data, read from the parsers themselves.

A command whose packages are missing has only its name.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.base.errors import HoldfastError
from holdfast.base.registry import Entry, Registry
from holdfast.cli.main import COMMANDS, parser_for
from holdfast.cli.parsing import actions_of


@dataclass(frozen=True, slots=True)
class Values:
    """What may be typed for one argument; all empty when nothing is known."""

    words: tuple[str, ...] = ()
    several: bool = False  # several of the words, separated by commas
    ask: Literal["models", "devices", "processes"] | None = None  # `completion.answers` lists them
    files: Literal["file", "folder"] | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `values` is None for a flag."""

    names: tuple[str, ...]
    about: str
    values: Values | None = None
    metavar: str = ""
    value_optional: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command or one of its actions: `path` is () for `holdfast` itself, or ("mem", "record").

    `positionals` are metavars with their values. With `rest` everything from the last one on
    belongs to another program; with `repeats` the last one may be repeated.
    """

    path: tuple[str, ...]
    about: str
    options: tuple[Option, ...] = ()
    positionals: tuple[tuple[str, Values], ...] = ()
    rest: bool = False
    repeats: bool = False
    actions: tuple[Command, ...] = ()

    def walk(self) -> Iterator[Command]:
        """This command and everything below it."""
        yield self
        for action in self.actions:
            yield from action.walk()


NOTHING = Values()
FILES, FOLDERS = Values(files="file"), Values(files="folder")


def read_commands() -> Command:
    """The tree of all commands."""
    found = [_read_command(name) for name in COMMANDS]
    top = parser_for([])
    return Command((), top.description or "", _options(top, ()), actions=tuple(found))


def parser_of(name: str) -> argparse.ArgumentParser:
    """The complete parser of a command. Raises what importing the command raises."""
    return actions_of(parser_for([name]))[name]


def _read_command(name: str) -> Command:
    about = COMMANDS.entry(name).summary
    try:
        return _command(parser_of(name), (name,), about)
    except HoldfastError:  # an extra is missing
        return Command((name,), about)


def _command(parser: argparse.ArgumentParser, path: tuple[str, ...], about: str) -> Command:
    positionals = [a for a in parser._actions if not a.option_strings and takes_value(a)]
    return Command(
        path,
        about,
        _options(parser, path),
        tuple((_metavar(a), values_of(a, path)) for a in positionals),
        rest=any(a.nargs == argparse.REMAINDER for a in positionals),
        repeats=any(a.nargs in ("*", "+") for a in positionals[-1:]),
        actions=tuple(
            _command(sub, (*path, name), _summaries(parser).get(name, ""))
            for name, sub in actions_of(parser).items()
        ),
    )


def _options(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> tuple[Option, ...]:
    return tuple(
        Option(
            tuple(action.option_strings),
            _text(action),
            values_of(action, path) if takes_value(action) else None,
            _metavar(action),
            value_optional=action.nargs == "?",
        )
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    )


def takes_value(action: argparse.Action) -> bool:
    """Whether the argument takes a value; an action of a command is none."""
    return action.nargs != 0 and not isinstance(action, argparse._SubParsersAction)


def _metavar(action: argparse.Action) -> str:
    metavar = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar
    return metavar or action.dest.upper()


def _text(action: argparse.Action) -> str:
    return (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")


def _summaries(parser: argparse.ArgumentParser) -> dict[str, str]:
    return {
        one.dest: one.help or ""
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for one in action._get_subactions()
    }


# ---- values of arguments


def values_of(action: argparse.Action, path: tuple[str, ...]) -> Values:
    """What may be typed for an argument of the command `path`, by its choices or its metavar."""
    if action.choices is not None:
        return Values(tuple(map(str, action.choices)))
    metavar = _metavar(action)
    for key in (f"{' '.join(path)} {metavar}", metavar):
        if key in _KNOWN:
            return _KNOWN[key]
        if key in _TABLES:
            return Values(tuple(_name(one) for one in _TABLES[key]), several=key in _SEVERAL)
    return NOTHING


def is_known(action: argparse.Action) -> bool:
    """Whether `values_of` knows the argument, or it is free text."""
    return action.choices is not None or _metavar(action) in {*_KNOWN, *_TABLES, *FREE}


def _name(one: Any) -> str:
    return one.removeprefix(".") if isinstance(one, str) else one.name


# Arguments by metavar, or by command and metavar: free text, fixed values, names in a table.
FREE = ("TEXT", "N", "X", "SIZE", "PIXELS", "BASE", "SECONDS", "WxH", "HEX", "PATTERN", "NAME")
_KNOWN = {
    "FILE": FILES,
    "SCRIPT": FILES,
    "ARGUMENT": FILES,
    "OLD.json": FILES,
    "DIR": FOLDERS,
    "MODEL": Values(ask="models", files="file"),
    "DEVICE": Values(ask="devices"),
    "opencl:N": Values(("opencl:0", "opencl:1")),
    "PID": Values(ask="processes"),
    "fit FORMAT": Values(("auto", "fp32", "bf16", "fp16", "fp8")),
    "WHO": Values(("auto",)),
    "ADDRESS": Values(("auto",)),
    "serve ADDRESS": Values(("127.0.0.1", "0.0.0.0")),
    "WHAT": Values(("gpu:0", "node:0", "cpu:0")),
    "TYPE": Values(("f32", "bf16")),
    "CLASS": NOTHING,
    "URL": Values(("http://127.0.0.1:8188",)),
}
_TABLES: Registry[Any] = Registry(
    "table",
    {
        "KEY": Entry("holdfast.dashboard.tui.rows:COLUMNS"),
        "FORMAT": Entry("holdfast.pipeline.model.placement:PRECISIONS"),
        "KIND": Entry("holdfast.pipeline.batch:SUFFIXES"),
        "bench NAME": Entry("holdfast.dashboard.bench.catalog:CATALOG"),
        "PROBES": Entry("holdfast.topology.probes:PROBES"),
        "SOURCES": Entry("holdfast.cli.mem:SOURCES"),
        "PROVIDER": Entry("holdfast.memory.svm:PROVIDERS"),
        "MODE": Entry("holdfast.memory.svm.model:MODES"),
        "ENGINE": Entry("holdfast.compute.engine:ENGINES"),
        "CHECKS": Entry("holdfast.cli.doctor:CHECKS"),
        "SHELL": Entry("holdfast.cli.completion:SHELLS"),
    },
)
_SEVERAL = ("PROBES", "SOURCES", "CHECKS")

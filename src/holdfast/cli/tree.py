"""The parser of all commands, and what may be typed for each argument.

A command whose packages are missing has only its name.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
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


NOTHING = Values()
FILES, FOLDERS = Values(files="file"), Values(files="folder")


def all_commands(completer: Callable[[Values], Any]) -> argparse.ArgumentParser:
    """A parser with all commands; `complete` of an argument is what `completer` returns for it."""
    top = parser_for([])
    (commands,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    commands.help = None  # else shtab leaves it out
    for name in COMMANDS:
        with contextlib.suppress(HoldfastError):  # an extra is missing
            commands.choices[name] = parser_of(name)
    _set_completers(top, (), completer)
    return top


def _set_completers(
    parser: argparse.ArgumentParser, path: tuple[str, ...], completer: Callable[[Values], Any]
) -> None:
    for action in filter(takes_value, parser._actions):
        found = completer(values_of(action, path))
        if found is not None:
            action.complete = found  # type: ignore[attr-defined]
        action.metavar = _metavar(action).replace(":", " ")
    for name, sub in actions_of(parser).items():
        _set_completers(sub, (*path, name), completer)


def parser_of(name: str) -> argparse.ArgumentParser:
    """The complete parser of a command. Raises what importing the command raises."""
    return actions_of(parser_for([name]))[name]


def takes_value(action: argparse.Action) -> bool:
    """Whether the argument takes a value; an action of a command is none."""
    return action.nargs != 0 and not isinstance(action, argparse._SubParsersAction)


def _metavar(action: argparse.Action) -> str:
    metavar = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar
    return metavar or action.dest.upper()


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
            found = (one if isinstance(one, str) else one.name for one in _TABLES[key])
            return Values(tuple(n.removeprefix(".") for n in found), several=key in _SEVERAL)
    return NOTHING


def is_known(action: argparse.Action) -> bool:
    """Whether `values_of` knows the argument, or it is free text."""
    return action.choices is not None or _metavar(action) in {*_KNOWN, *_TABLES, *FREE}


# Arguments by metavar, or by command and metavar: free text, fixed values, names in a table.
FREE = ("TEXT", "N", "X", "SIZE", "PIXELS", "BASE", "SECONDS", "WxH", "HEX", "PATTERN", "NAME")
_KNOWN = {
    "FILE": FILES,
    "SCRIPT": FILES,
    "ARGUMENT": FILES,
    "OLD.json": FILES,
    "DIR": FOLDERS,
    "MODEL": Values(ask="models", files="file"),
    "OUT": FILES,
    "SCHEME": Values(("auto", "ranked", "flat")),
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

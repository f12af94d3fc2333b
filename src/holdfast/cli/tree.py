"""Every command with its options as plain data, for whoever has to know them all.

Covers: walking the parsers, and what may stand where an argument says FILE, DEVICE or PID.
Leaves to others: the parsers (each command), scripts for shells (shells), live values (completion).
Promise: reads the real parsers, so that it cannot tell anything else; a command whose packages are
missing is there with its name alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from holdfast.base.errors import HoldfastError
from holdfast.cli.main import COMMANDS, parser_for
from holdfast.cli.parsing import actions_of


@dataclass(frozen=True, slots=True)
class Values:
    """What may stand in one place: words, those a question gives, files; nothing known if empty."""

    words: tuple[str, ...] = ()
    several: bool = False  # of the words, with commas between them
    ask: Literal["models", "devices", "processes"] | None = None
    files: Literal["file", "folder"] | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """One option; `values` is None for one that stands alone."""

    names: tuple[str, ...]
    about: str
    values: Values | None = None
    metavar: str = ""
    may_stand_alone: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command or one of its actions: `path` is () for `holdfast` itself, or ("mem", "record").

    `rest` tells that from the last place on everything belongs to another program, `repeats` that
    the last place may be taken again and again.
    """

    path: tuple[str, ...]
    about: str
    options: tuple[Option, ...] = ()
    places: tuple[tuple[str, Values], ...] = ()
    rest: bool = False
    repeats: bool = False
    actions: tuple[Command, ...] = ()

    def walk(self) -> Iterator[Command]:
        """Itself and all below it."""
        yield self
        for action in self.actions:
            yield from action.walk()


NOTHING = Values()
FILES, FOLDERS = Values(files="file"), Values(files="folder")


def whole() -> Command:
    """The tree of all commands."""
    found = [_of_name(name) for name in COMMANDS]
    top = parser_for([])
    return Command((), top.description or "", _options(top, ()), actions=tuple(found))


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of a command, with everything in it. Raises what importing the command raises."""
    return actions_of(parser_for([name]))[name]


def _of_name(name: str) -> Command:
    about = COMMANDS.entry(name).summary
    try:
        return _command(parser_of(name), (name,), about)
    except HoldfastError:  # an extra is missing
        return Command((name,), about)


def _command(parser: argparse.ArgumentParser, path: tuple[str, ...], about: str) -> Command:
    places = [a for a in parser._actions if not a.option_strings and _takes(a)]
    return Command(
        path,
        about,
        _options(parser, path),
        tuple((_metavar(a), values_of(a, path)) for a in places),
        rest=any(a.nargs == argparse.REMAINDER for a in places),
        repeats=any(a.nargs in ("*", "+") for a in places[-1:]),
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
            values_of(action, path) if _takes(action) else None,
            _metavar(action),
            may_stand_alone=action.nargs == "?",
        )
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    )


def _takes(action: argparse.Action) -> bool:
    """Whether words belong to it, other than the name of an action."""
    return action.nargs != 0 and not isinstance(action, argparse._SubParsersAction)


def _metavar(action: argparse.Action) -> str:
    called = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar
    return called or action.dest.upper()


def _text(action: argparse.Action) -> str:
    return (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")


def _summaries(parser: argparse.ArgumentParser) -> dict[str, str]:
    return {
        one.dest: one.help or ""
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for one in action._get_subactions()
    }


# ---- what may stand where


def values_of(action: argparse.Action, path: tuple[str, ...]) -> Values:
    """What may stand in the place of an argument, by its choices or by what it is called."""
    if action.choices is not None:
        return Values(tuple(map(str, action.choices)))
    called = _metavar(action)
    special = f"{' '.join(path)} {called}"
    return (_KNOWN.get(special) or _KNOWN.get(called) or (lambda: NOTHING))()


def is_known(action: argparse.Action) -> bool:
    """Whether somebody has thought of what may stand in its place, were it nothing."""
    return action.choices is not None or _metavar(action) in {*_KNOWN, *FREE}


# Whatever a person likes: text, numbers, sizes.
FREE = ("TEXT", "N", "X", "SIZE", "PIXELS", "BASE", "SECONDS", "WxH", "HEX", "PATTERN", "NAME")


def _precisions() -> Values:
    from holdfast.pipeline.placement import PRECISIONS

    return Values(PRECISIONS)


def _pictures() -> Values:
    from holdfast.pipeline.batch import SUFFIXES

    return Values(tuple(suffix[1:] for suffix in SUFFIXES))


def _probes() -> Values:
    from holdfast.topology.probes import PROBES

    return Values(tuple(PROBES), several=True)


def _sources() -> Values:
    from holdfast.cli.mem import SOURCES

    return Values(SOURCES, several=True)


def _providers() -> Values:
    from holdfast.memory.svm import PROVIDERS

    return Values(tuple(PROVIDERS))


def _modes() -> Values:
    from holdfast.memory.svm.model import MODES

    return Values(tuple(MODES))


def _engines() -> Values:
    from holdfast.compute.engine import ENGINES

    return Values(tuple(ENGINES))


def _shells() -> Values:
    from holdfast.cli.completion import SHELLS

    return Values(tuple(SHELLS))


def _benchmarks() -> Values:
    from holdfast.dashboard.benching.catalog import CATALOG

    return Values(tuple(one.name for one in CATALOG))


def _columns() -> Values:
    from holdfast.dashboard.tui.rows import COLUMNS

    return Values(tuple(COLUMNS))


def _checks() -> Values:
    from holdfast.cli.doctor import EXTRAS

    return Values(("machine", "gpu", *(extra.name for extra in EXTRAS)), several=True)


# By what an argument is called, or by the command and that.
_KNOWN: dict[str, Callable[[], Values]] = {
    "FILE": lambda: FILES,
    "SCRIPT": lambda: FILES,
    "ARGUMENT": lambda: FILES,
    "OLD.json": lambda: FILES,
    "DIR": lambda: FOLDERS,
    "MODEL": lambda: Values(ask="models", files="file"),
    "DEVICE": lambda: Values(ask="devices"),
    "opencl:N": lambda: Values(("opencl:0", "opencl:1")),
    "PID": lambda: Values(ask="processes"),
    "KEY": _columns,
    "FORMAT": _precisions,
    "fit FORMAT": lambda: Values(("auto", "fp32", "bf16", "fp16", "fp8")),
    "KIND": _pictures,
    "bench NAME": _benchmarks,
    "PROBES": _probes,
    "SOURCES": _sources,
    "PROVIDER": _providers,
    "MODE": _modes,
    "ENGINE": _engines,
    "CHECKS": _checks,
    "WHO": lambda: Values(("auto",)),
    "ADDRESS": lambda: Values(("auto",)),
    "serve ADDRESS": lambda: Values(("127.0.0.1", "0.0.0.0")),
    "WHAT": lambda: Values(("gpu:0", "node:0", "cpu:0")),
    "TYPE": lambda: Values(("f32", "bf16")),
    "CLASS": lambda: NOTHING,
    "SHELL": _shells,
    "URL": lambda: Values(("http://127.0.0.1:8188",)),
}

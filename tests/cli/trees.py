"""Walking through all commands, for tests that are about every one of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from holdfast.cli import tree
from holdfast.cli.main import COMMANDS
from holdfast.cli.parsing import actions_of

Path = tuple[str, ...]


def all_parsers(name: str) -> Iterator[tuple[Path, argparse.ArgumentParser]]:
    """The parser of a command, and those of its actions."""
    parser = tree.parser_of(name)
    yield (name,), parser
    for action, sub in actions_of(parser).items():
        yield (name, action), sub


def all_paths() -> list[Path]:
    """Every command and every action."""
    return [path for name in COMMANDS for path, _ in all_parsers(name)]

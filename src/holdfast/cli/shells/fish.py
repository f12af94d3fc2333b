"""The completion script for fish, 3.0 or newer: one `complete` with a condition for each option."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.cli.tree import Command, Option, Values

BY_HAND = "fish reads that folder by itself"

_FUNCTIONS = r"""
function __holdfast_words --description 'what was typed after holdfast, options left out'
    set -l words (commandline -opc | string match --invert -- '-*')
    set -e words[1]
    printf '%s\n' $words
end

function __holdfast_exactly --description 'whether the line is at this command, and no further'
    set -l words (__holdfast_words)
    test "$words" = "$argv"
end

function __holdfast_at --description 'whether the line is at this command, or further'
    set -l words (__holdfast_words)
    set -l count (count $argv)
    test (count $words) -ge $count; and test "$words[1..$count]" = "$argv"
end

function __holdfast_ask --description 'current values'
    command holdfast __complete $argv 2>/dev/null
end

complete --command holdfast --no-files
"""


def path(home: Path, environ: Mapping[str, str]) -> Path:
    """The user's folder of completions."""
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return config / "fish" / "completions" / "holdfast.fish"


def script(tree: Command) -> str:
    """A few functions, and a line for each command, option and positional argument."""
    return "\n".join([_FUNCTIONS, *(line for one in tree.walk() for line in _lines(one)), ""])


def _lines(one: Command) -> Iterable[str]:
    where = "__holdfast_exactly" if one.actions else "__holdfast_at"
    begin = f"complete --command holdfast --condition {quote(' '.join([where, *one.path]))}"
    for action in one.actions:
        words = f"--arguments {quote(action.path[-1])} --description {quote(action.about)}"
        yield f"{begin} {words}"
    for option in one.options:
        yield f"{begin} {_option(option)}"
    for _, values in one.positionals:
        if arguments := _arguments(values):
            yield f"{begin} {arguments}"


def _option(option: Option) -> str:
    names = [
        f"--long-option {name[2:]}" if name.startswith("--") else f"--short-option {name[1:]}"
        for name in option.names
    ]
    parts = [*names, f"--description {quote(option.about)}"]
    if option.values is not None and not option.value_optional:
        parts.append("--require-parameter")
    if option.values is not None:
        parts.append(_arguments(option.values))
    return " ".join(filter(None, parts))


def _arguments(values: Values) -> str:
    """The arguments of `complete` for these values."""
    lists = []
    if values.words:
        words = " ".join(values.words)
        lists.append(f"(__fish_append , {words})" if values.several else words)
    if values.ask is not None:
        lists.append(f"(__holdfast_ask {values.ask})")
    if values.files == "folder":
        lists.append("(__fish_complete_directories)")
    parts = ["--force-files"] if values.files == "file" else []
    if lists:
        parts.append(f"--arguments {quote(' '.join(lists))}")
    return " ".join(parts)


def quote(text: str) -> str:
    """The text as one word of fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

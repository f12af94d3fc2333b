"""The script for fish, 3.0 or newer: one `complete` for each option, with a condition where.

Covers: commands and options with what they are for, values, lists with commas.
Promise: nothing runs while the script is read but the definitions themselves.
"""

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

function __holdfast_ask --description 'what is there now'
    command holdfast __complete $argv 2>/dev/null
end

complete --command holdfast --no-files
"""


def path(home: Path, environ: Mapping[str, str]) -> Path:
    """The folder of a person's own completions."""
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    return config / "fish" / "completions" / "holdfast.fish"


def script(tree: Command) -> str:
    """A few functions, and a line for everything there is."""
    return "\n".join([_FUNCTIONS, *(line for one in tree.walk() for line in _lines(one)), ""])


def _lines(one: Command) -> Iterable[str]:
    where = "__holdfast_exactly" if one.actions else "__holdfast_at"
    begin = f"complete --command holdfast --condition {quoted(' '.join([where, *one.path]))}"
    for action in one.actions:
        words = f"--arguments {quoted(action.path[-1])} --description {quoted(action.about)}"
        yield f"{begin} {words}"
    for option in one.options:
        yield f"{begin} {_option(option)}"
    for _, values in one.places:
        if wanted := _wanted(values):
            yield f"{begin} {wanted}"


def _option(option: Option) -> str:
    names = [
        f"--long-option {name[2:]}" if name.startswith("--") else f"--short-option {name[1:]}"
        for name in option.names
    ]
    parts = [*names, f"--description {quoted(option.about)}"]
    if option.values is not None and not option.may_stand_alone:
        parts.append("--require-parameter")
    if option.values is not None:
        parts.append(_wanted(option.values))
    return " ".join(filter(None, parts))


def _wanted(values: Values) -> str:
    """The arguments of `complete` for what may stand in a place."""
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
        parts.append(f"--arguments {quoted(' '.join(lists))}")
    return " ".join(parts)


def quoted(text: str) -> str:
    """As one word of fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

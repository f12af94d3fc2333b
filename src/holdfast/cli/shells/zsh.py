"""The completion script for zsh, 5.0 or newer.

It works from a folder of `fpath`, and when it is sourced after `compinit`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.cli.tree import NOTHING, Command, Option, Values

BY_HAND = "have ~/.zshrc say, before compinit: fpath=(~/.zfunc $fpath)"

_FUNCTIONS = r"""
_holdfast_ask() {  # current values
    local -a found values
    local line
    found=("${(@f)$(_call_program "$1" command holdfast __complete "$1" 2>/dev/null)}")
    for line in $found; do
        values+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    (( $#values )) && _describe -t "$1" "$1" values
}
"""


def path(home: Path, environ: Mapping[str, str]) -> Path:
    """A folder for the user's functions; zsh has no default."""
    return Path(environ.get("ZDOTDIR") or home) / ".zfunc" / "_holdfast"


def script(tree: Command) -> str:
    """A function for each kind of value and for each command."""
    kinds = dict.fromkeys(
        values
        for one in tree.walk()
        for values in [*(o.values for o in one.options), *(v for _, v in one.positionals)]
        if values is not None and values != NOTHING
    )
    names = {values: f"_holdfast_values_{number}" for number, values in enumerate(kinds, 1)}
    lines = ["#compdef holdfast", _FUNCTIONS]
    for values, name in names.items():
        lines += [f"{name}() {{", *_body(values), "}", ""]
    for one in tree.walk():
        lines += [*_command(one, names), ""]
    lines += [
        'if [ "$funcstack[1]" = "_holdfast" ]; then',
        '    _holdfast "$@"',
        "else",
        "    compdef _holdfast holdfast",
        "fi",
        "",
    ]
    return "\n".join(lines)


def _body(values: Values) -> Iterable[str]:
    """The body of a function that completes these values."""
    parts = []
    if values.words:
        words = " ".join(map(quote, values.words))
        parts.append(f"compadd -- {words}")
    if values.ask is not None:
        parts.append(f"_holdfast_ask {values.ask}")
    if values.files is not None:
        parts.append("_files" if values.files == "file" else "_files -/")
    if values.several:
        yield f"    _values -s , value {' '.join(map(quote, values.words))}"
        return
    yield "    local found=1"
    for part in parts:
        yield f"    {part} && found=0"
    yield "    return found"


def _command(one: Command, names: Mapping[Values, str]) -> Iterable[str]:
    function = "_".join(["_holdfast", *one.path])
    yield f"{function}() {{"
    if one.actions:
        yield "    local curcontext=$curcontext state"
    yield f"    _arguments {'-C ' if one.actions else ''}\\"
    specs = [_option(option, names) for option in one.options]
    for number, (metavar, values) in enumerate(one.positionals, 1):
        again = (one.rest or one.repeats) and number == len(one.positionals)
        specs.append(quote(f"{'*' if again else number}:{metavar}:{_action(values, names)}"))
    if one.actions:
        listed = " ".join(
            f"{action.path[-1]}\\:{quote_in_list(action.about)}" for action in one.actions
        )
        specs += [quote(f"1:command:(({listed}))"), quote("*:: :->below")]
    yield " \\\n".join(f"        {spec}" for spec in specs)
    if one.actions:
        yield "    case $state in below)"
        yield "        case $words[1] in"
        for action in one.actions:
            below = "_".join(["_holdfast", *action.path])
            yield f"        {action.path[-1]}) {below} ;;"
        yield "        esac"
        yield "    esac"
    yield "}"


def _option(option: Option, names: Mapping[Values, str]) -> str:
    about = re.sub(r"([\[\]])", r"\\\1", option.about)
    value = ""
    if option.values is not None:
        colons = "::" if option.value_optional else ":"
        value = f"{colons}{option.metavar.replace(':', ' ')}:{_action(option.values, names)}"
    return " ".join(
        quote(f"{name}{'=' if value and name.startswith('--') else ''}[{about}]{value}")
        for name in option.names
    )


def _action(values: Values, names: Mapping[Values, str]) -> str:
    return names.get(values, " ")


def quote_in_list(text: str) -> str:
    """The description of a word, in a list of _arguments."""
    plain = re.sub(r'[\\"`$]', "", text).replace(":", "\\:")
    return f'"{plain}"'


def quote(text: str) -> str:
    """The text as one word of zsh."""
    return "'" + text.replace("'", "'\\''") + "'"

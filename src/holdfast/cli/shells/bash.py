"""The completion script for bash, 3.2 or newer.

The words of a line are only read, never run. `holdfast __complete` is called only for values that
cannot be listed beforehand.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.cli.tree import Command, Values

BY_HAND = "source it in ~/.bashrc where the package bash-completion is not installed"

_WALK = r"""
_holdfast_add() {  # each line, as it is
    local line
    while IFS= read -r line; do COMPREPLY+=("$line"); done
}

_holdfast_words() {  # those that begin with the typed text
    _holdfast_add < <(compgen -W "$1" -- "$current")
}

_holdfast_several() {  # the same, after the last comma
    local before=
    case $current in *,*) before=${current%,*}, ;; esac
    _holdfast_add < <(compgen -P "$before" -W "$1" -- "${current##*,}")
}

_holdfast_ask() {  # current values
    local value about
    while IFS=$'\t' read -r value about; do
        case $value in "$current"*) COMPREPLY+=("$value") ;; esac
    done < <(command holdfast __complete "$1" 2>/dev/null)
}

_holdfast_paths() {  # -f: files; -d: folders
    _holdfast_add < <(compgen "$1" -- "$current")
    compopt -o filenames 2>/dev/null
}

_holdfast_split() {  # the line into words, without bash's own breaks at : and =
    local left=${COMP_LINE:0:COMP_POINT} piece bare
    words=()
    for piece in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        bare=${left#"${left%%[![:space:]]*}"}
        if [ "$bare" = "$left" ] && [ ${#words[@]} -gt 0 ]; then
            words[${#words[@]}-1]+=${bare:0:${#piece}}
        else
            words+=("${bare:0:${#piece}}")
        fi
        left=${bare:${#piece}}
    done
}

_holdfast() {
    local words word current option= place=0 at= commands flags valued rest most typed
    COMPREPLY=()
    _holdfast_split
    _holdfast_at "$at"
    for word in "${words[@]:1:${#words[@]}-2}"; do
        if [ -n "$option" ]; then
            option=
        elif [ -n "$rest" ] && [ "$place" -ge "$rest" ]; then
            break
        else
            case $word in
            --*=*) ;;
            -*) case " $valued " in *" $word "*) option=$word ;; esac ;;
            *)
                case " $commands " in
                *" $word "*)
                    at="${at:+$at }$word"
                    _holdfast_at "$at"
                    ;;
                *) place=$((place + 1)) ;;
                esac
                ;;
            esac
        fi
    done
    typed=${words[${#words[@]}-1]}
    current=$typed
    if [ -n "$rest" ] && [ "$place" -ge "$rest" ]; then
        _holdfast_paths -f
    elif [ -n "$option" ]; then
        _holdfast_value "$at $option"
    else
        case $current in
        --*=*)
            option=${current%%=*}
            current=${current#*=}
            _holdfast_value "$at $option"
            ;;
        -*) _holdfast_words "$flags $valued" ;;
        *)
            _holdfast_words "$commands"
            place=$((place + 1))
            [ -n "$most" ] && [ "$place" -gt "$most" ] && place=$most
            _holdfast_value "$at $place"
            ;;
        esac
    fi
    _holdfast_shorten
}

_holdfast_shorten() {  # bash puts back only what is behind the last : or =
    local breaks=${COMP_WORDBREAKS//[^:=]/} before=$current index
    [ -n "$breaks" ] || return 0
    before=${current%"${current##*[$breaks]}"}
    [ -n "$before" ] || return 0
    for index in "${!COMPREPLY[@]}"; do
        COMPREPLY[index]=${COMPREPLY[index]#"$before"}
    done
}

complete -F _holdfast holdfast
"""


def path(home: Path, environ: Mapping[str, str]) -> Path:
    """Where the package bash-completion looks for scripts."""
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return data / "bash-completion" / "completions" / "holdfast"


def script(tree: Command) -> str:
    """Functions with the tree of commands, and the one that reads the line."""
    return "\n".join([*_at(tree), "", *_value(tree), _WALK])


def _at(tree: Command) -> Iterable[str]:
    yield "_holdfast_at() {  # options and actions of a command or an action"
    yield "    case $1 in"
    for one in tree.walk():
        alone = [name for o in one.options if o.values is None for name in o.names]
        valued = [name for o in one.options if o.values is not None for name in o.names]
        yield f"    {shlex.quote(' '.join(one.path))})"
        yield f"        commands={_join(action.path[-1] for action in one.actions)}"
        yield f"        flags={_join(alone)}"
        yield f"        valued={_join(valued)}"
        yield f"        rest={len(one.positionals) - 1 if one.rest else ''}"
        yield f"        most={len(one.positionals) if one.repeats else ''}"
        yield "        ;;"
    yield "    esac"
    yield "}"


def _value(tree: Command) -> Iterable[str]:
    yield "_holdfast_value() {  # values of an option or a positional argument"
    yield "    case $1 in"
    for one in tree.walk():
        at = " ".join(one.path)
        positionals = [(str(n), values) for n, (_, values) in enumerate(one.positionals, 1)]
        options = [(name, o.values) for o in one.options if o.values for name in o.names]
        for where, values in [*options, *positionals]:
            if calls := list(_calls(values)):
                yield f"    {shlex.quote(f'{at} {where}')}) {'; '.join(calls)} ;;"
    yield "    esac"
    yield "}"


def _calls(values: Values) -> Iterable[str]:
    if values.words:
        kind = "_holdfast_several" if values.several else "_holdfast_words"
        yield f"{kind} {_join(values.words)}"
    if values.ask is not None:
        yield f"_holdfast_ask {values.ask}"
    if values.files is not None:
        yield f"_holdfast_paths {'-f' if values.files == 'file' else '-d'}"


def _join(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))

"""Completion scripts for bash, zsh and fish, which shtab writes from the parsers.

A script lists commands, options and fixed values by itself: it starts `holdfast __complete` only
for values that cannot be listed beforehand. The words of a line are only read, never run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shtab

from holdfast.cli.tree import Values, all_commands

Completer = dict[str, Any]  # for shtab: what completes a value in each shell


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell: where its script belongs, what else the user has to do, and its own functions."""

    name: str
    by_hand: str
    folder: tuple[str, str]  # a variable, and the folder in the home folder without it
    file: str  # in that folder
    functions: str
    repair: Callable[[str], str] = str  # what shtab's script lacks

    def path(self, home: Path, environ: Mapping[str, str]) -> Path:
        """Where the script belongs."""
        variable, default = self.folder
        return Path(environ.get(variable) or home / default) / self.file

    def script(self) -> str:
        """The completion script."""
        commands = all_commands(lambda values: _completer(values, self.name))
        return self.repair(shtab.complete(commands, self.name, preamble=self.functions)) + "\n"


def _completer(values: Values, shell: str) -> Completer | None:
    """What completes these values; None if nothing is known."""
    words = [word.replace(":", "\\:") if shell == "zsh" else word for word in values.words]
    text = " ".join(words)
    if values.several:
        bash = _SEVERAL.replace("WORDS", shlex.quote(text))
        name = f"_holdfast_several_{shtab.sha(text)}"
        return {
            "bash": name,
            "zsh": f"_values -s , value {text}",
            "fish": f"(__fish_append , {text})",
            "preamble": {"bash": bash.replace("NAME", name)},
        }
    if words:
        name = f"_holdfast_words_{shtab.sha(text)}"
        bash = f'{name}() {{ compgen -W {shlex.quote(text)} -- "$1"; }}'
        return {"bash": name, "zsh": f"({text})", "fish": text, "preamble": {"bash": bash}}
    if values.ask is not None:
        name, fish = f"_holdfast_{values.ask}", f"(__holdfast_ask {values.ask})"
        if values.files is not None:
            name, fish = f"{name}_or_files", f"{fish} {shtab.FILE['fish']}"
        return {"bash": name, "zsh": name, "fish": fish}
    if values.files is not None:
        is_file = values.files == "file"
        known = shtab.FILE if is_file else shtab.DIRECTORY
        return {**known, "bash": "_holdfast_files" if is_file else "_holdfast_dirs"}
    return None


_SEVERAL = r"""NAME() {  # after the last comma
    local before=
    case $1 in *,*) before=${1%,*}, ;; esac
    compgen -P "$before" -W WORDS -- "${1##*,}"
}"""

_BASH = r"""
_holdfast_ask() {  # current values
    local value about
    while IFS=$'\t' read -r value about; do
        case $value in "$2"*) printf '%s\n' "$value" ;; esac
    done < <(command holdfast __complete "$1" 2>/dev/null)
}
_holdfast_files() { compgen -f -- "$1"; }
_holdfast_dirs() { compgen -d -- "$1"; }
_holdfast_devices() { _holdfast_ask devices "$1"; }
_holdfast_processes() { _holdfast_ask processes "$1"; }
_holdfast_models_or_files() { _holdfast_ask models "$1"; compgen -f -- "$1"; }

_holdfast() {  # bash breaks words at : and =, and puts back only what is behind the last of them
    local left=${COMP_LINE:0:COMP_POINT} breaks=${COMP_WORDBREAKS//[^:=]/}
    local words=() piece bare typed before= index
    for piece in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        bare=${left#"${left%%[![:space:]]*}"}
        if [ "$bare" = "$left" ] && [ ${#words[@]} -gt 0 ]; then
            words[${#words[@]}-1]+=${bare:0:${#piece}}
        else
            words+=("${bare:0:${#piece}}")
        fi
        left=${bare:${#piece}}
    done
    typed=${words[${#words[@]}-1]}
    case $typed in --*=*)
        words[${#words[@]}-1]=${typed%%=*}
        typed=${typed#*=}
        words+=("$typed")
    esac
    local COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
    _shtab_holdfast
    [ -n "$breaks" ] && before=${typed%"${typed##*[$breaks]}"}
    for index in "${!COMPREPLY[@]}"; do
        COMPREPLY[index]=${COMPREPLY[index]#"$before"}
    done
}
"""

_ZSH = r"""
_holdfast_ask() {  # current values
    local -a found values
    local line
    found=("${(@f)$(_call_program "$1" command holdfast __complete "$1" 2>/dev/null)}")
    for line in $found; do
        values+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    (( $#values )) && _describe -t "$1" "$1" values
}
_holdfast_devices() { _holdfast_ask devices; }
_holdfast_processes() { _holdfast_ask processes; }
_holdfast_models_or_files() { _holdfast_ask models; _files; }
"""

_FISH = r"""
function __holdfast_ask --description 'current values'
    command holdfast __complete $argv 2>/dev/null
end
"""


def _repair_zsh(script: str) -> str:
    """Values behind "=", several positional values, and a script that is sourced."""
    script = re.sub(r'(?m)^(  "--[\w-]+)(\[.*\]:)', r"\1=\2", script)
    script = re.sub(r'(?m)^  "\(\*\)::?', '  "*:', script)
    script = script.replace("$zsh_eval_context[-1] == eval", "$funcstack[1] != _holdfast")
    return script.replace("_shtab_holdfast -N holdfast", "_shtab_holdfast holdfast")


BASH = Shell(
    "bash",
    "source it in ~/.bashrc where the package bash-completion is not installed",
    ("XDG_DATA_HOME", ".local/share"),
    "bash-completion/completions/holdfast",
    _BASH,
    lambda script: re.sub(r"\ncomplete .*", "\ncomplete -F _holdfast holdfast", script),
)
ZSH = Shell(
    "zsh",
    "have ~/.zshrc say, before compinit: fpath=(~/.zfunc $fpath)",
    ("ZDOTDIR", "."),
    ".zfunc/_holdfast",
    _ZSH,
    _repair_zsh,
)
FISH = Shell(
    "fish",
    "fish reads that folder by itself",
    ("XDG_CONFIG_HOME", ".config"),
    "fish/completions/holdfast.fish",
    _FISH,
)

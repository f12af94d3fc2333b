"""Completion in the real shells: a line is typed, TAB pressed, and what was run is looked at."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.errors import MissingDependency
from holdfast.cli import completion, tree
from holdfast.cli.main import COMMANDS, main
from holdfast.cli.parsing import actions_of
from tests.cli.trees import all_parsers

pytestmark = pytest.mark.slow

# What is typed before TAB, and the arguments of the command that is run after it.
TYPED = {
    "holdfast fi": ["fit"],
    "holdfast mem rec": ["mem", "record"],
    "holdfast run --time": ["run", "--timeline"],
    "holdfast run tiny-fl": ["run", "tiny-flux"],
    "holdfast run two": ["run", "two words.safetensors"],
    "holdfast run --out x.png tiny-sd": ["run", "--out", "x.png", "tiny-sdxl"],
    "holdfast run --device sim": ["run", "--device", "simulated"],
    "holdfast fit --precision fp8": ["fit", "--precision", "fp8"],
    "holdfast batch --form": ["batch", "--format"],
    "holdfast batch --format web": ["batch", "--format", "webp"],
    "holdfast svm alloc 1GB --near nod": ["svm", "alloc", "1GB", "--near", "node:0"],
    "holdfast svm alloc 1GB --near node:": ["svm", "alloc", "1GB", "--near", "node:0"],
    "holdfast topo --probes linux,psu": ["topo", "--probes", "linux,psutil"],
    "holdfast comfy install fold": ["comfy", "install", "folder/"],
    "holdfast mem record a.py two": ["mem", "record", "a.py", "two words.safetensors"],
    "holdfast completion zs": ["completion", "zsh"],
    "holdfast bench comp": ["bench", "compute"],
    "holdfast bench compute poo": ["bench", "compute", "pool"],
    "holdfast top --sort le": ["top", "--sort", "left"],
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script for each shell, and `holdfast` itself."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in completion.SHELLS:
        text = completion.script(shell, folder / shell)
        (folder / shell).write_text(text, encoding="utf-8")
    command = folder / "bin" / "holdfast"
    command.parent.mkdir()
    python = shlex.quote(sys.executable)
    command.write_text(f'#!/bin/sh\nexec {python} -m holdfast "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    here = folder / "here"
    (here / "folder").mkdir(parents=True)
    (here / "two words.safetensors").touch()
    (here / "$(touch ran)").touch()
    return folder


class Typing:
    """A shell in a terminal. `holdfast` in it tells the arguments it was called with."""

    def __init__(self, command: list[str], folder: Path, begin: str) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder / "here")
            home = {"HOME": str(folder), "TERM": "dumb", "PS1": "$ ", "LC_ALL": "C.UTF-8"}
            path = f"{folder / 'bin'}:{os.environ['PATH']}"
            os.execvpe(command[0], command, home | {"PATH": path})
        printed = r"holdfast() { printf '<%s>' "  # the end is put on when it is sent
        self.send(f'{begin}\n{printed}"$@"; echo :; }}\n')

    def send(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def after_tab(self, typed: str) -> list[str]:
        self.send(f"{typed}\t\n")
        read, end = "", time.monotonic() + 60
        while not (found := re.search(r"^((?:<[^<>\r\n]*>)+):\r?$", read, re.MULTILINE)):
            ready, _, _ = select.select([self.terminal], [], [], end - time.monotonic())
            assert ready, f"nothing was run after {typed!r}: {read!r}"
            read += os.read(self.terminal, 65536).decode(errors="replace")
        return re.findall(r"<([^<>]*)>", found[1])

    def close(self) -> None:
        os.close(self.terminal)  # a hang-up ends the shell
        os.waitpid(self.pid, 0)


def _shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (make test installs it)")
    return found


@pytest.fixture(scope="module")
def bash(scripts: Path) -> Iterator[Typing]:
    shell = Typing([_shell("bash"), "--norc", "-i"], scripts, f"source {scripts}/bash")
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def zsh(scripts: Path) -> Iterator[Typing]:
    begin = f"autoload -U compinit; compinit -u -D; source {scripts}/zsh"
    shell = Typing([_shell("zsh"), "-f", "-i"], scripts, begin)
    yield shell
    shell.close()


@pytest.mark.parametrize("typed", TYPED)
def test_bash_completes(bash: Typing, typed: str) -> None:
    assert bash.after_tab(typed) == TYPED[typed]


def test_bash_completes_behind_an_equals_sign(bash: Typing) -> None:
    assert bash.after_tab("holdfast run --device=simu") == ["run", "--device=simulated"]


def test_bash_runs_nothing_that_is_in_a_name(bash: Typing, scripts: Path) -> None:
    assert bash.after_tab("holdfast mem replay '$(t") == ["mem", "replay", "$(touch ran)"]
    assert not (scripts / "here" / "ran").exists()


@pytest.mark.parametrize("typed", TYPED)
def test_zsh_completes(zsh: Typing, typed: str) -> None:
    *most, last = zsh.after_tab(typed)
    assert [*most, last] == [word.removesuffix("/") for word in TYPED[typed]]


def test_zsh_completes_behind_an_equals_sign(zsh: Typing) -> None:
    assert zsh.after_tab("holdfast run --device=simu") == ["run", "--device=simulated"]


@pytest.fixture(scope="module")
def fish(scripts: Path) -> dict[str, list[str]]:
    """What fish has to offer for each line that is typed, without what it is for."""
    lines = [f"source {scripts}/fish"]
    lines += [f"complete -C {typed!r}; echo :" for typed in [*TYPED, "holdfast ", "holdfast mem "]]
    home = {"HOME": str(scripts), "PATH": f"{scripts / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [_shell("fish"), "--no-config", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        env=home,
        cwd=scripts / "here",
        check=True,
    )
    assert done.stderr == ""
    parts = done.stdout.split(":\n")
    found = [[line.partition("\t")[0] for line in part.splitlines()] for part in parts]
    return dict(zip([*TYPED, "holdfast ", "holdfast mem "], found, strict=False))


@pytest.mark.parametrize("typed", TYPED)
def test_fish_completes(fish: dict[str, list[str]], typed: str) -> None:
    assert TYPED[typed][-1] in fish[typed]


def test_fish_offers_actions_where_they_belong(fish: dict[str, list[str]]) -> None:
    assert sorted(fish["holdfast "]) == sorted(COMMANDS)
    assert fish["holdfast mem "] == ["record", "replay", "report"]


# ---- the tree


def test_the_values_of_every_argument_are_known() -> None:
    unknown = []
    for name in COMMANDS:
        for path, parser in all_parsers(name):
            unknown += [
                f"holdfast {' '.join(path)} {action.metavar}"
                for action in parser._actions
                if tree.takes_value(action) and not tree.is_known(action)
            ]
    assert unknown == []  # add it to _KNOWN, _TABLES or FREE of tree


def test_a_command_without_its_packages_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise MissingDependency("no such package")

    monkeypatch.setattr(tree, "parser_of", missing)
    found = actions_of(tree.all_commands(lambda values: None))
    assert {name: list(found[name]._option_string_actions) for name in found} == {
        name: ["-h", "--help"] for name in COMMANDS
    }


# ---- the command


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/holdfast"),
        ("zsh", ".zfunc/_holdfast"),
        ("fish", ".config/fish/completions/holdfast.fish"),
    ],
)
def test_installing_writes_it_and_prints_the_path(
    home: Path, capsys, shell: str, place: str
) -> None:
    assert main(["completion", shell, "--install"]) == 0
    printed = capsys.readouterr().out
    assert printed == (
        f"written: {home / place}\n{completion.SHELLS[shell].by_hand}\n"
        f"it works in every {shell} started from now on\n"
    )
    assert main(["completion", shell]) == 0
    assert (home / place).read_text(encoding="utf-8") == capsys.readouterr().out
    assert main(["completion", shell, "--install"]) == 0  # its own file is brought up to date


def test_a_foreign_file_is_left_alone(home: Path, capsys) -> None:
    file = home / ".zfunc" / "_holdfast"
    file.parent.mkdir()
    file.write_text("#compdef holdfast\n", encoding="utf-8")
    assert main(["completion", "zsh", "--install"]) == 2
    assert capsys.readouterr().err == (
        f"holdfast: error: cannot write {str(file)!r}: something else is there, which Holdfast "
        "has not written\n"
        "  expected: no such file, or one from an earlier --install\n"
        "  try: move it away\n"
    )
    assert file.read_text(encoding="utf-8") == "#compdef holdfast\n"


def test_a_folder_that_cannot_be_made_is_refused(home: Path, capsys) -> None:
    (home / ".zfunc").write_text("a file", encoding="utf-8")
    assert main(["completion", "zsh", "--install"]) == 2
    assert capsys.readouterr().err == (
        f"holdfast: error: cannot make the folder {str(home / '.zfunc')!r}: File exists\n"
        "  expected: a home folder that can be written\n"
        "  try: holdfast completion SHELL > FILE\n"
    )


def test_no_shell_and_an_unknown_one_are_refused(monkeypatch, capsys) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main(["completion"]) == 2
    assert capsys.readouterr().err == (
        "holdfast: error: no shell was named\n"
        "  expected: one of bash, zsh, fish\n"
        "  try: holdfast completion fish --install\n"
    )
    assert main(["completion", "fisch"]) == 2
    assert capsys.readouterr().err == (
        "holdfast: error: unknown shell 'fisch'\n  expected: one of bash, zsh, fish\n  try: fish\n"
    )


# ---- what the scripts ask


def test_models_and_devices_are_answered(capsys) -> None:
    assert main(["__complete", "models"]) == 0
    assert "tiny-flux\thandwritten digits" in capsys.readouterr().out
    assert main(["__complete", "devices"]) == 0
    assert "simulated\ttorch on the CPU" in capsys.readouterr().out


def test_an_unknown_question_has_no_answer(capsys) -> None:
    assert main(["__complete", "moons"]) == 0
    assert capsys.readouterr() == ("", "")


def test_several_cards_have_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / address).mkdir()
    monkeypatch.setattr(completion, "_NVIDIA", tmp_path)
    assert {"cuda:0", "cuda:1"} <= {value for value, _ in completion.answers("devices")}


def test_an_answer_loads_no_torch() -> None:
    program = (
        "import sys; from holdfast.cli.main import main;"
        "main(['__complete', 'models', 'devices', 'processes']);"
        "print([m for m in ('torch', 'diffusers', 'aiohttp', 'textual') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().splitlines()[-1] == "[]"

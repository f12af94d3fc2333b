"""Have your shell complete commands, options, files, models, devices and processes.

Prints a script for SHELL: bash, zsh or fish. `--install` writes it where that shell looks for it
and prints the path. Repeat it after an update of Holdfast, or when an extra was added.

examples:
holdfast completion bash --install        to where bash looks for it
holdfast completion fish                  only print it
source <(holdfast completion bash)        try it in this shell
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from holdfast.base.errors import BadInput, HoldfastError
from holdfast.base.registry import Entry, Registry
from holdfast.cli.files import read_text, write_file
from holdfast.cli.parsing import option

if TYPE_CHECKING:
    from holdfast.cli.shells import Shell

SHELLS: Registry[Shell] = Registry(
    "shell",
    {name: Entry(f"holdfast.cli.shells:{name.upper()}") for name in ("bash", "zsh", "fish")},
)
_MADE_BY = "made by `holdfast completion"
_NVIDIA = Path("/proc/driver/nvidia/gpus")


OPTIONS = (
    option("shell SHELL", "bash, zsh or fish", nargs="?"),
    option("--install", "write it to where the shell looks for it"),
)


def run(args: argparse.Namespace) -> int:
    """Print the script, or install it."""
    if args.shell is None:
        name = Path(os.environ.get("SHELL", "")).name
        likely = name if name in SHELLS else "bash"
        raise BadInput(
            "no shell was named",
            expected=f"one of {', '.join(SHELLS)}",
            hint=f"holdfast completion {likely} --install",
        )
    shell = SHELLS[args.shell]
    target = _target(shell)
    if args.install:
        _refuse_foreign(target)
    text = script(args.shell, target)
    if not args.install:
        print(text, end="")
        return 0
    _write(target, text)
    print(f"written: {target}\n{shell.by_hand}\nit works in every {args.shell} started from now on")
    return 0


def script(name: str, target: Path) -> str:
    """The script of a shell, with comments on where it belongs."""
    shell = SHELLS[name]
    first, newline, rest = shell.script().partition("\n")
    about = [
        f"# Completion for holdfast {holdfast.__version__}, {_MADE_BY} {name}`.",
        f"# Written to its place by: holdfast completion {name} --install",
        f"# By hand: holdfast completion {name} > {target}",
        f"# ({shell.by_hand})",
    ]
    if first.startswith("#compdef"):  # zsh reads only the first line
        return "\n".join([first, *about, rest])
    return "\n".join([*about, first]) + newline + rest


def _target(shell: Shell) -> Path:
    try:
        home = Path.home()
    except RuntimeError as exc:
        raise BadInput(
            "cannot tell where your home folder is", expected="the variable HOME"
        ) from exc
    return shell.path(home, os.environ)


def _refuse_foreign(target: Path) -> None:
    """Raise BadInput for an existing file that `holdfast completion` has not written."""
    if not os.path.lexists(target) or (target.is_file() and _MADE_BY in read_text(str(target))):
        return
    raise BadInput(
        f"cannot write {str(target)!r}: something else is there, which Holdfast has not written",
        expected="no such file, or one from an earlier --install",
        hint="move it away",
    )


def _write(target: Path, text: str) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise BadInput(
            f"cannot make the folder {str(target.parent)!r}: {exc.strerror}",
            expected="a home folder that can be written",
            hint="holdfast completion SHELL > FILE",
        ) from exc
    write_file(target, text)


# ---- values that the scripts ask for


def answers(kind: str) -> Iterator[tuple[str, str]]:
    """Current values of a kind, each with a description; none for an unknown kind."""
    find = _ANSWERS.get(kind)
    try:
        yield from find() if find is not None else ()
    except (HoldfastError, OSError):
        return  # no error texts while a user types


def _models() -> Iterator[tuple[str, str]]:
    from holdfast.pipeline.model.sources import built_in

    yield from built_in().items()


def _devices() -> Iterator[tuple[str, str]]:
    """Device names, and NVIDIA's cards by number: /proc counts them without a library."""
    from holdfast.pipeline.devices.device import DEVICES

    yield "auto", "the fastest that the model fits on"
    for name in DEVICES:
        yield name, DEVICES.entry(name).summary
    cards = len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0
    for number in range(cards if cards > 1 else 0):
        yield f"cuda:{number}", "one card of several"


def _processes() -> Iterator[tuple[str, str]]:
    from holdfast.dashboard.ipc.client import offers

    for one in offers():
        yield str(one.pid), one.name


_ANSWERS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "models": _models,
    "devices": _devices,
    "processes": _processes,
}

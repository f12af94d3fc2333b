"""Holdfast's nodes in ComfyUI: install them, and check whether a running ComfyUI has them.

`install` links the pack into custom_nodes (a copy where no link can be made), or updates it.
`check` asks a running ComfyUI: every node and its sockets, what the browser loads, translations,
templates. `remove` deletes what `install` has made.
Exit status: 0 all is well, 1 the check has found a problem, 2 bad input or no ComfyUI.

examples:
holdfast comfy install ~/ComfyUI            a link, always up to date
holdfast comfy install ~/ComfyUI --copy     a copy; again after every update
holdfast comfy check                        whether a running one has it all
holdfast comfy check http://127.0.0.1:8199  one that listens elsewhere
holdfast comfy remove ~/ComfyUI             remove them again
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.codec import encode
from holdfast.base.errors import BadInput
from holdfast.cli.parsing import JSON, Action, action, option
from holdfast.cli.tables import as_json

if TYPE_CHECKING:
    from holdfast.nodes.checking import PackCheck
    from holdfast.nodes.installing import Installed

A_DAY_S = 86_400
USUAL = "http://127.0.0.1:8188"
MARKS = {"ok": "✓", "missing": "✗", "different": "✗"}
_FOLDER = option("folder DIR", "ComfyUI's folder, or its base directory")
ACTIONS: dict[str, Action] = {}


# ---- install and remove


@action(
    ACTIONS,
    "put the nodes into a ComfyUI",
    _FOLDER,
    option("--copy", "a copy, where a link would do"),
    option(
        "--force", "replace files of the copy that were changed, or a link that leads elsewhere"
    ),
    JSON,
)
def _install(args: argparse.Namespace) -> int:
    """Link or copy Holdfast's nodes into custom_nodes of a ComfyUI, or update them."""
    from holdfast.nodes import installing

    done = installing.install(Path(args.folder), copy=args.copy, force=args.force)
    if args.json:
        print(as_json(_plain(done) | {"next": _next(done)}))
        return 0
    print(f"{done.folder}\n{done.how}, {done.state}: Holdfast {done.version}")
    if done.note:
        print(f"note: {done.note}")
    print("\n".join(["", "next:", *(f"  {command}" for command in _next(done))]))
    return 0


def _next(done: Installed) -> list[str]:
    """Commands to run next: install the package for ComfyUI's Python, restart ComfyUI."""
    python = shlex.quote(str(done.python or sys.executable))
    start = f"cd {shlex.quote(str(done.folder.parent.parent))} && {python} main.py"
    get = [f"{python} -m pip install 'holdfast[comfyui]'"] if done.python else []
    again = [start] if (done.folder.parents[1] / "main.py").exists() else ["start ComfyUI again"]
    return [*get, *again, f"holdfast comfy check {USUAL}"]


@action(ACTIONS, "remove them again", _FOLDER, JSON)
def _remove(args: argparse.Namespace) -> int:
    """Remove the link, or the files of the copy, that `install` has made; nothing else."""
    from holdfast.nodes import installing

    done = installing.remove(Path(args.folder))
    if args.json:
        print(as_json(_plain(done)))
        return 0
    print(f"removed: {done.how} {done.folder}")
    if done.kept:
        print(f"left, as they are not as Holdfast wrote them: {', '.join(done.kept)}")
    return 0


def _plain(value: Any) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, Path) else v for k, v in encode(value).items()}


# ---- check


@action(
    ACTIONS,
    "ask a running ComfyUI for them",
    option("url URL", "where it listens (default %(default)s)", nargs="?", default=USUAL),
    option("--timeout SECONDS", "wait so long for each answer (default 30)", 30.0),
    option("--json", "print JSON instead of a list"),
)
def _check(args: argparse.Namespace) -> int:
    """Ask a running ComfyUI for every node of this Holdfast with its sockets, for what the browser
    loads, translations and templates.
    """
    from holdfast.nodes import checking

    if not 0 < args.timeout <= A_DAY_S:
        raise BadInput(
            f"cannot wait {args.timeout:g} s",
            expected=f"--timeout with a number above 0, up to {A_DAY_S}",
        )
    found = checking.check(args.url, args.timeout)
    print(as_json(encode(found) | {"ok": found.ok}) if args.json else _list(found))
    return 0 if found.ok else 1


def _list(found: PackCheck) -> str:
    width = max(len(part.name) for part in found.parts)
    lines = [f"{found.url}: {found.comfyui}"]
    for part in found.parts:
        lines.append(f"{MARKS[part.state]} {part.name.ljust(width)}  {part.found}")
        lines += [f"  {' ' * width}  {problem}" for problem in part.problems]
        lines += [f"  {' ' * width}  → {part.advice}"] if part.advice else []
    lines.append("All is well." if found.ok else "Something needs attention.")
    return "\n".join(lines)

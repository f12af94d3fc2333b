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
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.codec import encode
from holdfast.base.errors import BadInput
from holdfast.cli.parsing import add_actions, run_action

if TYPE_CHECKING:
    from holdfast.nodes.checking import PackCheck
    from holdfast.nodes.installing import Installed

A_DAY_S = 86_400
USUAL = "http://127.0.0.1:8188"
MARKS = {"ok": "✓", "missing": "✗", "different": "✗"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `holdfast comfy` and of its actions."""
    actions = add_actions(parser)
    _install_arguments(actions.add_parser("install", help="put the nodes into a ComfyUI"))
    _remove_arguments(actions.add_parser("remove", help="remove them again"))
    _check_arguments(actions.add_parser("check", help="ask a running ComfyUI for them"))


def _install_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Link or copy Holdfast's nodes into custom_nodes of a ComfyUI, or update them."
    )
    add = parser.add_argument
    add("folder", metavar="DIR", help="ComfyUI's folder, or its base directory")
    add("--copy", action="store_true", help="a copy, where a link would do")
    add(
        "--force",
        action="store_true",
        help="replace files of the copy that were changed, or a link that leads elsewhere",
    )
    add("--json", action="store_true", help="print JSON instead of text")


def _remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Remove the link, or the files of the copy, that `install` has made; nothing else."
    )
    add = parser.add_argument
    add("folder", metavar="DIR", help="ComfyUI's folder, or its base directory")
    add("--json", action="store_true", help="print JSON instead of text")


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Ask a running ComfyUI for every node of this Holdfast with its sockets, for what the "
        "browser loads, translations and templates."
    )
    add = parser.add_argument
    add(
        "url",
        metavar="URL",
        nargs="?",
        default=USUAL,
        help="where it listens (default %(default)s)",
    )
    add(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="wait so long for each answer (default 30)",
    )
    add("--json", action="store_true", help="print JSON instead of a list")


def run(args: argparse.Namespace) -> int:
    """Run the action, or print the help."""
    return run_action(args, {"install": _install, "remove": _remove, "check": _check})


# ---- install and remove


def _install(args: argparse.Namespace) -> int:
    from holdfast.nodes import installing

    done = installing.install(Path(args.folder), copy=args.copy, force=args.force)
    if args.json:
        print(json.dumps(_plain(done) | {"next": _next(done)}, indent=2))
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


def _remove(args: argparse.Namespace) -> int:
    from holdfast.nodes import installing

    done = installing.remove(Path(args.folder))
    if args.json:
        print(json.dumps(_plain(done), indent=2))
        return 0
    print(f"removed: {done.how} {done.folder}")
    if done.kept:
        print(f"left, as they are not as Holdfast wrote them: {', '.join(done.kept)}")
    return 0


def _plain(value: Any) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, Path) else v for k, v in encode(value).items()}


# ---- check


def _check(args: argparse.Namespace) -> int:
    from holdfast.nodes import checking

    if not 0 < args.timeout <= A_DAY_S:
        raise BadInput(
            f"cannot wait {args.timeout:g} s",
            expected=f"--timeout with a number above 0, up to {A_DAY_S}",
        )
    found = checking.check(args.url, args.timeout)
    if args.json:
        print(json.dumps(encode(found) | {"ok": found.ok}, indent=2))
    else:
        print(_list(found))
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

"""Where memory goes: record a program, look at the recording, try other allocators on it.

A recording (.hfmem) holds every block that was allocated, with its Python stack. Snapshots of
torch's CUDA allocator (.pickle) are read as well.
Exit status: of `record` the status of the program, of all others 0, or 2 for bad input.

examples:
holdfast mem record train.py --epochs 1               a script, its options
holdfast mem record --html run.html -m package.main   a module, and its page
holdfast mem report train.hfmem                       the peak, and who held it
holdfast mem report train.hfmem --html run.html       every block over time
holdfast mem report after.hfmem --diff before.hfmem   what grew
holdfast mem report snapshot.pickle --png cuda.png    torch's own, as a picture
holdfast mem replay train.hfmem                       other allocators on it
holdfast mem replay train.hfmem --json                for scripts
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.base.errors import BadInput
from holdfast.base.files import expand_path, resolve_path
from holdfast.cli.files import parse_integer, refuse_endless, unwritable, write_file
from holdfast.cli.parsing import JSON, Action, action, option
from holdfast.cli.progress import show_status
from holdfast.cli.tables import as_json
from holdfast.memory.profile import export, page
from holdfast.memory.profile.diff import diff
from holdfast.memory.profile.recording import SUFFIX, Recording
from holdfast.memory.profile.report import Report
from holdfast.memory.profile.timeline import PICTURES, Timeline

SOURCES = ("pool", "numpy", "torch", "python")
DEFAULT_SOURCES = "pool,numpy,torch"  # recording Python's own objects makes a program slower
DEPTH = 16
ACTIONS: dict[str, Action] = {}


# ---- record


@action(
    ACTIONS,
    "run a program and record its memory",
    option("--out FILE", f"where to (default: the script's name with {SUFFIX})"),
    option("--depth N", f"frames of a stack to keep (default {DEPTH})", DEPTH, type=str),
    option(
        "--sources SOURCES",
        f"some of {','.join(SOURCES)} (default {DEFAULT_SOURCES})",
        DEFAULT_SOURCES,
    ),
    option("--html FILE", "write the page of `holdfast mem report --html` as well"),
    option("-m", "SCRIPT is the name of a module", dest="module"),
    option("script SCRIPT", "the program"),
    option("arguments ARGUMENT", "passed on to it", nargs=argparse.REMAINDER),
    usage="holdfast mem record [OPTION ...] [-m] SCRIPT [ARGUMENT ...]",
)
def _record(args: argparse.Namespace) -> int:
    """Run a Python script or module and record the memory it takes. The recording is written also
    when the program fails or is stopped by Ctrl-C; a file of that name is replaced.
    """
    default = args.script if args.module else Path(args.script).stem
    out = expand_path(args.out or f"{default}{SUFFIX}")
    html = None if args.html is None else expand_path(args.html)
    _check_program(args.script, args.module)
    _check_targets({"--out": out, "--html": html}, "" if args.module else args.script)
    named, out = out, out.absolute()  # the program may change the folder
    html = html and html.absolute()
    depth, sources = _depth(args.depth), _sources(args.sources)
    from holdfast.memory.profile.script import run_script

    pid = os.getpid()
    try:
        argv = [args.script, *args.arguments]
        status = run_script(argv, args.module, out, depth, sources)
    except OSError as exc:  # those of the program itself are handled
        raise unwritable(named, exc) from exc
    if os.getpid() != pid:
        return status  # a fork of the program returns here too
    print(f"recording: {named}", file=sys.stderr)
    if html is not None:
        page.write(Recording.load(out), html)
        print(f"page: {args.html}", file=sys.stderr)
    return status


def _check_program(script: str, module: bool) -> None:
    if module:
        package = script.partition(".")[0]
        found = Path(package).exists()  # in the current folder
        with contextlib.suppress(ImportError, ValueError):
            found = found or importlib.util.find_spec(package) is not None
        if not found:
            raise BadInput(
                f"there is no module {script!r}", expected="a name that `python -m` would take"
            )
    elif not Path(script).is_file():
        what = "it is a folder" if Path(script).is_dir() else "there is no such file"
        raise BadInput(
            f"cannot run {script!r}: {what}",
            expected="a Python script, with the options of `record` before it",
        )
    else:
        try:
            with Path(script).open("rb") as file:
                file.read(1)
        except OSError as exc:
            raise BadInput(
                f"cannot run {script!r}: {exc.strerror}", expected="a script that can be read"
            ) from exc


def _depth(text: str | int) -> int:
    number = parse_integer(str(text))
    if number is not None and 1 <= number <= 1000:
        return number
    raise BadInput(f"cannot keep {text!r} frames of a stack", expected="a number from 1 to 1000")


def _sources(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in SOURCES]
    if unknown or not names:
        raise BadInput(
            f"cannot record {(unknown[0] if unknown else text)!r}",
            expected=f"some of {', '.join(SOURCES)}, separated by commas",
        )
    return names


# ---- report


@action(
    ACTIONS,
    "show what a recording holds",
    option("file FILE", f"a {SUFFIX} file, or a snapshot of torch's allocator"),
    option("--html FILE", "a page: every block over time, address space, holders"),
    option("--png FILE", f"a picture ({' '.join(PICTURES)}); needs matplotlib"),
    option("--perfetto FILE", "a trace for ui.perfetto.dev or chrome://tracing"),
    option("--snapshot FILE", "a pickle for torch's memory_viz"),
    option("--collapsed FILE", "stacks at the peak for flamegraph.pl or speedscope"),
    option("--diff FILE", "compare with this earlier recording"),
    JSON,
)
def _report(args: argparse.Namespace) -> int:
    """Show what a recording holds, and write it in other forms."""
    forms: dict[str, Callable[[Recording, Path], object]] = {
        "html": page.write,
        "png": lambda recording, path: Timeline(recording).save(path),
        "perfetto": lambda recording, path: write_file(path, export.perfetto(recording)),
        "snapshot": lambda recording, path: write_file(path, export.torch_snapshot(recording)),
        "collapsed": lambda recording, path: write_file(path, export.collapse_stacks(recording)),
    }
    targets = {
        name: expand_path(getattr(args, name)) for name in forms if getattr(args, name) is not None
    }
    _check_targets({f"--{name}": path for name, path in targets.items()}, args.file)
    picture = targets.get("png")
    if picture is not None and picture.suffix.lower() not in PICTURES:
        *most, last = PICTURES
        ends = f"{', '.join(most)} or {last}"
        raise BadInput(f"cannot draw {str(picture)!r}", expected=f"a name that ends in {ends}")
    recording = load(args.file)
    earlier = None if args.diff is None else load(args.diff)
    for name, path in targets.items():
        forms[name](recording, path)
        print(f"{name}: {path}", file=sys.stderr)
    report = Report(recording) if earlier is None else diff(earlier, recording)
    print(as_json(report.to_dict()) if args.json else report.summary())
    return 0


def load(file: str) -> Recording:
    """Load a recording from our file or torch's snapshot; the first byte tells which."""
    path = expand_path(file)
    refuse_endless(path)
    if not _is_pickle(path):
        return Recording.load(path)
    try:
        recording = export.from_torch_snapshot(path.read_bytes())
    except BadInput as exc:
        raise BadInput(f"cannot use {file!r}: {exc.what}", expected=exc.expected) from exc
    recording.title = path.name
    return recording


def _is_pickle(path: Path) -> bool:
    """Whether a file starts like a pickle; False if it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as opened:
        return opened.read(1) == b"\x80"
    return False


def _check_targets(targets: dict[str, Path | None] | dict[str, Path], source: str = "") -> None:
    """Refuse, before any work, targets that cannot be files or are the same file."""
    taken = {resolve_path(expand_path(source)): source} if source else {}
    for name, path in targets.items():
        if path is None:
            continue
        if path.is_dir():
            raise BadInput(
                f"cannot write {str(path)!r}: it is a folder", expected="the name of a file"
            )
        if not path.absolute().parent.is_dir():
            raise BadInput(
                f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}",
                expected="a path in a folder that exists",
            )
        target = resolve_path(path)
        if target in taken:
            raise BadInput(
                f"cannot use {str(path)!r} for {name}: {taken[target]} is that file",
                expected="a different name for each file",
            )
        taken[target] = name


# ---- replay


@action(
    ACTIONS,
    "run a recording through allocators",
    option("file FILE", f"a {SUFFIX} file, or a torch snapshot"),
    option("--json", "print JSON instead of the table"),
)
def _replay(args: argparse.Namespace) -> int:
    """Run the blocks of a recording through Holdfast's pool and through models of other allocators,
    and compare what each would have reserved.
    """
    recording = load(args.file)
    from holdfast.memory.plan.replay import compare, table

    with show_status("") as show:
        outcomes = compare(
            recording, progress=lambda done, total, name: show(f"{name} ({done + 1} of {total})")
        )
    rows = [{**dataclasses.asdict(outcome), "ratio": outcome.ratio} for outcome in outcomes]
    print(as_json(rows) if args.json else table(outcomes))
    return 0

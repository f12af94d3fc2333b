"""Draw every prompt of a file, each exactly once, however often you have to start.

The file holds JSON lines (.jsonl), a JSON list (.json) or CSV (.csv) with prompt and, where wanted,
negative, height, width, steps, seed, guidance, num_frames and out (a file name). Options are the
defaults for lines without them. After Ctrl-C, a crash or a change to the file, the same command
draws what is missing.

examples:
holdfast batch prompts.jsonl                        into out/batch/prompts
holdfast batch prompts.csv --out pictures --steps 8
holdfast batch prompts.jsonl --dry-run              what would be done
holdfast batch prompts.jsonl --workers 2            two processes, or GPUs
holdfast batch prompts.jsonl --ray 10.0.0.5:6379    a Ray cluster
echo '{"prompt": "a seven"}' | holdfast batch -     from another program
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from holdfast.base.errors import BadInput
from holdfast.base.files import expand_path
from holdfast.cli.drawing import DRAWING, DRAWING_OPTIONS, PLACING_OPTIONS
from holdfast.cli.files import read_text
from holdfast.cli.parsing import option
from holdfast.cli.tables import as_json
from holdfast.pipeline.batch import (
    LOCAL_RAY,
    SUFFIXES,
    Bars,
    Batch,
    Lines,
    Options,
    Show,
    Summary,
    WorkerOptions,
    form_of,
    read,
)

OPTIONS = (
    option("file FILE", "the prompts (- for JSON lines on standard input)", nargs="?"),
    option("--out DIR", "where the pictures go (default: out/batch/NAME-OF-FILE)"),
    option("--model MODEL", "as for holdfast run (default tiny-flux)", "tiny-flux"),
    *DRAWING_OPTIONS,
    *PLACING_OPTIONS,
    option("--seed BASE", "lines without a seed get BASE, BASE+1, and so on (default 0)", 0),
    option(
        "--format KIND", f"{', '.join(s[1:] for s in SUFFIXES)} (default: png, and gif for videos)"
    ),
    option("--workers N", "processes (default: one for each GPU)", type=int),
    option(
        "--ray ADDRESS",
        "work on a Ray cluster: HOST:PORT or auto; without an address, one is started here",
        nargs="?",
        const=LOCAL_RAY,
    ),
    option("--retries N", "attempts after the first (default 1)", 1),
    option("--dry-run", "show what would be done, and stop"),
    option("--json", "print the summary as JSON"),
)


def run(args: argparse.Namespace) -> int:
    """Draw what is missing; status 1 if something failed."""
    file, ray = _file_and_ray(args)
    batch = Batch(
        read(_text(file), form_of(file), file),
        Options(
            model=args.model,
            config=args.config,
            precision=args.precision,
            seed=args.seed,
            suffix=None if args.format is None else f".{args.format.lower().removeprefix('.')}",
            fps=args.fps,
            defaults={name: getattr(args, name) for name in DRAWING},
        ),
        WorkerOptions(
            device=args.device,
            workers=args.workers,
            budget=args.budget,
            ray=ray,
            retries=args.retries,
        ),
        _folder(args.out, file),
        file,
    )
    return _dry_run(batch, args.json) if args.dry_run else _run(batch, args.json)


def _folder(out: str | None, file: str) -> Path:
    if out is None:
        return Path("out", "batch", "stdin" if file == "-" else Path(file).stem)
    if not out:
        raise BadInput("cannot write into '': that is no folder", expected="--out DIR")
    return expand_path(out)


def _file_and_ray(args: argparse.Namespace) -> tuple[str, str | None]:
    """`--ray prompts.jsonl` starts a cluster here and reads that file."""
    if args.file is not None:
        return args.file, args.ray
    if args.ray is not None and Path(args.ray).is_file():
        return args.ray, LOCAL_RAY
    raise BadInput(
        "there is no file of prompts", expected="a FILE", hint="holdfast batch prompts.jsonl"
    )


def _text(file: str) -> str:
    if file != "-":
        return read_text(file)
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as exc:
        raise BadInput(
            "cannot read standard input: it is not UTF-8 text", expected="JSON lines"
        ) from exc


def _run(batch: Batch, wants_json: bool) -> int:
    show: Show = Bars() if sys.stderr.isatty() else Lines(sys.stderr)
    try:
        summary = batch.run(show)
    except KeyboardInterrupt:
        so_far = batch.summary()
        done = so_far.done_now + so_far.done_before + so_far.found
        print(
            f"\nholdfast: {done} of {so_far.total} are done, in {so_far.folder}; "
            "the same command goes on from there",
            file=sys.stderr,
        )
        raise
    if wants_json:
        print(as_json(dataclasses.asdict(summary)))
    else:
        _print_summary(summary)
    return 1 if summary.failed else 0


def _print_summary(summary: Summary) -> None:
    parts = [f"{summary.done_now} done now", f"{summary.done_before} done before"]
    if summary.found:
        parts.append(f"{summary.found} found without a record")
    parts.append(f"{len(summary.failed)} failed")
    print(f"{', '.join(parts)}; pictures: {summary.folder}")
    for wanted, got in summary.renamed:
        print(f"  {wanted} was taken: {got} instead")
    for failure in summary.failed:
        reason = failure.reason.replace("\n", "\n    ")
        print(f"  {failure.where} failed after {failure.attempts} attempts: {reason}")
    if summary.failed:
        print("  the same command tries these again")


def _dry_run(batch: Batch, wants_json: bool) -> int:
    status = batch.status()
    done = len(status.done) + len(status.found)
    to_do = [
        {"where": job.where, "file": batch.name(job), "settings": dict(job.settings)}
        for job in status.to_do
    ]
    if wants_json:
        print(as_json({"folder": str(batch.folder), "done": done, "to_do": to_do}))
        return 0
    print(f"{len(to_do)} to do, {done} done; pictures: {batch.folder}")
    for job in to_do:
        print(f"  {job['where']}: {job['file']}  {json.dumps(job['settings'], ensure_ascii=False)}")
    return 0

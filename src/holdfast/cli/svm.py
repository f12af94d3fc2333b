"""Shared virtual memory: place it by topology, see in which NUMA nodes it is, move it.

`demo` and `alloc` take memory from a provider: retryix, opencl, numa or simulated, the first that
works here unless one is named. `where` and `migrate` are about any process of yours and NUMA nodes.
Exit status: 0 all is well, 1 pages were left that could have been moved, 2 bad input, 130 Ctrl-C.

examples:
holdfast svm demo                                 allocate, migrate, free
holdfast svm demo --simulate 2x16GB,1x64GB:far    on a machine you do not have
holdfast svm alloc 256MB --near gpu:0             where it goes, and why there
holdfast svm alloc 1GB --mode interleave --hold   keep it until Ctrl-C
holdfast svm where 4711                           pages of a process by node
holdfast svm migrate 4711 --from 0 --to 1         move them, with progress
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from holdfast.base.codec import encode
from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.base.units import format_bytes, parse_bytes
from holdfast.cli.parsing import JSON, Action, action, option
from holdfast.cli.progress import show_bar
from holdfast.cli.tables import as_json
from holdfast.memory import svm
from holdfast.memory.svm import describe, process
from holdfast.memory.svm.model import MODES, Progress, Stop
from holdfast.memory.svm.providers.numa import SHARED
from holdfast.topology.probes.simulated import EXAMPLE

SHOWN = 20  # mappings that `where` lists
DEMO_SIZE = "64MB"
_PROVIDER = (
    option(
        "--provider PROVIDER", f"one of {', '.join(svm.PROVIDERS)} (default: the first that works)"
    ),
    option("--library FILE", "the shared library of the provider retryix"),
    option("--simulate TEXT", f"a made-up machine, such as {EXAMPLE}"),
    JSON,
)
_PID = option("pid PID", "the process", type=int)
ACTIONS: dict[str, Action] = {}


def _config(args: argparse.Namespace) -> Config:
    name = args.provider
    if name is None and args.library is not None:
        name = "retryix"  # the only provider with a library
    if name is not None:
        svm.PROVIDERS.entry(name)  # raises NotFound, also for ""
    if args.library is not None and name != "retryix":
        raise BadInput(
            f"cannot use --library with the provider {name!r}",
            expected="--provider retryix, or no --provider",
        )
    return Config.load(svm_provider=name, simulate=args.simulate, retryix_library=args.library)


def _print_json(document: dict[str, Any]) -> None:
    print(as_json(document), flush=True)  # --hold waits next


# ---- demo


@action(
    ACTIONS,
    "discover, allocate, measure, migrate, free",
    option("--size SIZE", f"how much to allocate (default {DEMO_SIZE})", DEMO_SIZE),
    *_PROVIDER,
)
def _demo(args: argparse.Namespace) -> int:
    """Run the whole chain once: discover, allocate, measure, migrate, free."""
    steps: dict[str, Any] = {}
    for name, document, text in _demo_steps(args):
        steps[name] = document
        if not args.json:
            between = "\n" if len(steps) > 1 else ""
            print(f"{between}{len(steps)}. {name}\n{text}", flush=True)
    if args.json:
        _print_json(steps)
    return 0


def _demo_steps(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any] | None, str]]:
    """Name, document and text of each step."""
    config = _config(args)
    provider = svm.provider(config=config)
    layout, reports = provider.discover(), svm.reports(config=config)
    yield "discover", layout.to_dict(), describe.layout_text(layout, reports)
    with provider.alloc(args.size) as handle:
        yield "allocate", _allocation(handle), describe.allocation_text(handle)
        metrics = provider.metrics(handle)
        yield "measure", metrics.to_dict(), describe.metrics_text(metrics)
        source = next(iter(handle.where().pages), layout.domains[0].id)
        target = next((d.id for d in layout.domains if d.id != source), None)
        if target is None:
            text = "there is one domain only, so there is nowhere to migrate to"
            yield "migrate", None, text
        else:
            with _bar("migrating") as progress:
                migration = handle.migrate(source, target, progress=progress)
            yield "migrate", migration.to_dict(), describe.migration_text(migration)
    yield "free", provider.statistics().to_dict(), describe.freed_text(handle)


# ---- alloc


@action(
    ACTIONS,
    "allocate, and show where it went and why",
    option("size SIZE", 'how much, such as "256MB"'),
    option("--domain N", "in these domains", type=int, nargs="+"),
    option("--near WHAT", "near gpu:0, node:1 or cpu:3 (default: the CPUs this runs on)"),
    option("--mode MODE", f"one of {', '.join(MODES)} (default: bind where it fits)"),
    option("--hold", "keep it until Ctrl-C"),
    *_PROVIDER,
)
def _alloc(args: argparse.Namespace) -> int:
    """Allocate memory by topology; show where its pages are and why there."""
    provider = svm.provider(config=_config(args))
    began = time.perf_counter()
    with provider.alloc(args.size, domain=args.domain, near=args.near, mode=args.mode) as handle:
        milliseconds = (time.perf_counter() - began) * 1e3
        if not args.hold:
            _show_allocation(handle, milliseconds, args.json)
            return 0
        with _ctrl_c() as pressed:  # the normal end, from the first line on
            _show_allocation(handle, milliseconds, args.json)
            if not args.json:
                print(f"held by process {os.getpid()} until Ctrl-C; in another terminal:")
                print("\n".join(_from_outside(handle)), flush=True)
            while not pressed():
                time.sleep(0.1)
    return 0


def _show_allocation(handle: svm.Allocation, milliseconds: float, as_json: bool) -> None:
    if as_json:
        _print_json(_allocation(handle) | {"took_ms": milliseconds, "pid": os.getpid()})
    else:
        print(f"{describe.allocation_text(handle)}\n  took: {milliseconds:.1f} ms")


def _from_outside(handle: svm.Allocation) -> Iterator[str]:
    """Commands that show and move the memory of this process."""
    yield f"  holdfast svm where {os.getpid()}"
    if handle.provider.name == "numa":  # its domain ids are node ids
        source = next(iter(handle.where().pages), 0)
        others = [d.id for d in handle.provider.discover().domains if d.id != source]
        target = others[0] if others else "NODE"
        part = f"--address {handle.address:#x} --size {format_bytes(handle.size, exact=True)}"
        yield f"  holdfast svm migrate {os.getpid()} --from {source} --to {target} {part}"


def _allocation(handle: svm.Allocation) -> dict[str, Any]:
    return {
        "provider": handle.provider.name,
        "simulated": handle.provider.simulated,
        "address": handle.address,
        "size": handle.size,
        "placement": encode(handle.placement),
        "where": encode(handle.where()),
    }


# ---- processes


@action(
    ACTIONS,
    "pages of a process by NUMA node",
    _PID,
    option("--all", f"every mapping, not the {SHOWN} largest"),
    JSON,
)
def _where(args: argparse.Namespace) -> int:
    """Show in which NUMA nodes the memory of a running process is."""
    found = process.regions(args.pid)
    where = process.total(found)
    if args.json:
        _print_json(
            {"pid": args.pid, "where": encode(where), "regions": [encode(r) for r in found]}
        )
    else:
        print(describe.process_text(args.pid, found, where, most=None if args.all else SHOWN))
    return 0


@action(
    ACTIONS,
    "move pages of a process",
    _PID,
    option("--from N", "the node they are in", dest="source", type=int, required=True),
    option("--to N", "the node they go to", dest="target", type=int, required=True),
    option("--address HEX", "only from this address on"),
    option("--size SIZE", "only so much from --address on"),
    JSON,
)
def _migrate(args: argparse.Namespace) -> int:
    """Move the pages of a running process from one NUMA node to another. Ctrl-C stops between parts
    of 16 MiB; every page is whole then, in the one node or the other.
    """
    address, length = _range(args.address, args.size)
    with _ctrl_c() as stop, _bar(f"moving pages of {args.pid}") as progress:
        done = process.move(
            args.pid,
            args.source,
            args.target,
            address=address,
            length=length,
            progress=progress,
            stop=stop,
        )
    if args.json:
        _print_json(done.to_dict())
    else:
        print(describe.migration_text(done))
    if done.interrupted:
        return 130
    # Pages of libraries are shared with other processes and stay: that is no problem.
    return 1 if set(done.not_moved) - {SHARED} else 0


def _range(address: str | None, size: str | None) -> tuple[int | None, int | None]:
    if address is None:
        if size is not None:
            raise BadInput("--size was given without --address", expected="both, or neither")
        return None, None
    return _address(address), None if size is None else parse_bytes(size)


def _address(text: str) -> int:
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise BadInput(
            f"cannot read {text!r} as an address", expected="a hexadecimal number, such as 0x7f00"
        )
    return number


# ---- the terminal


@contextlib.contextmanager
def _ctrl_c() -> Iterator[Stop]:
    """Block Ctrl-C; yields a function that says whether it was pressed."""
    pressed = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _bar(label: str) -> Iterator[Progress]:
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn())
    with show_bar(*columns, DownloadColumn(), TransferSpeedColumn()) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)

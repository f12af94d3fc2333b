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
import json
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
from holdfast.cli.parsing import add_actions, run_action
from holdfast.cli.progress import show_bar
from holdfast.memory import svm
from holdfast.memory.svm import describe, process
from holdfast.memory.svm.model import MODES, Progress, Stop
from holdfast.memory.svm.providers.numa import SHARED
from holdfast.topology.probes.simulated import EXAMPLE

SHOWN = 20  # mappings that `where` lists
DEMO_SIZE = "64MB"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `holdfast svm` and of its actions."""
    actions = add_actions(parser)
    _demo_arguments(actions.add_parser("demo", help="discover, allocate, measure, migrate, free"))
    _alloc_arguments(actions.add_parser("alloc", help="allocate, and show where it went and why"))
    _where_arguments(actions.add_parser("where", help="pages of a process by NUMA node"))
    _migrate_arguments(actions.add_parser("migrate", help="move pages of a process"))


def _provider_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--provider",
        metavar="PROVIDER",
        help=f"one of {', '.join(svm.PROVIDERS)} (default: the first that works)",
    )
    add("--library", metavar="FILE", help="the shared library of the provider retryix")
    add("--simulate", metavar="TEXT", help=f"a made-up machine, such as {EXAMPLE}")
    add("--json", action="store_true", help="print JSON instead of text")


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run the whole chain once: discover, allocate, measure, migrate, free."
    help = f"how much to allocate (default {DEMO_SIZE})"
    parser.add_argument("--size", metavar="SIZE", default=DEMO_SIZE, help=help)
    _provider_arguments(parser)


def _alloc_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Allocate memory by topology; show where its pages are and why there."
    add = parser.add_argument
    add("size", metavar="SIZE", help='how much, such as "256MB"')
    add("--domain", metavar="N", type=int, nargs="+", help="in these domains")
    add(
        "--near",
        metavar="WHAT",
        help="near gpu:0, node:1 or cpu:3 (default: the CPUs this runs on)",
    )
    add("--mode", metavar="MODE", help=f"one of {', '.join(MODES)} (default: bind where it fits)")
    add("--hold", action="store_true", help="keep it until Ctrl-C")
    _provider_arguments(parser)


def _where_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show in which NUMA nodes the memory of a running process is."
    add = parser.add_argument
    add("pid", metavar="PID", type=int, help="the process")
    add("--all", action="store_true", help=f"every mapping, not the {SHOWN} largest")
    add("--json", action="store_true", help="print JSON instead of text")


def _migrate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Move the pages of a running process from one NUMA node to another. Ctrl-C stops between "
        "parts of 16 MiB; every page is whole then, in the one node or the other."
    )
    add = parser.add_argument
    add("pid", metavar="PID", type=int, help="the process")
    add("--from", dest="source", metavar="N", type=int, required=True, help="the node they are in")
    add("--to", dest="target", metavar="N", type=int, required=True, help="the node they go to")
    add("--address", metavar="HEX", help="only from this address on")
    add("--size", metavar="SIZE", help="only so much from --address on")
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    """Run the action, or print the help."""
    actions = {"demo": _demo, "alloc": _alloc, "where": _where, "migrate": _migrate}
    return run_action(args, actions)


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
    print(json.dumps(document, indent=2), flush=True)  # --hold waits next


# ---- demo


def _demo(args: argparse.Namespace) -> int:
    config = _config(args)
    provider = svm.provider(config=config)
    layout, reports = provider.discover(), svm.reports(config=config)
    steps = _Steps(args.json)
    steps.show("discover", layout.to_dict(), describe.layout_text(layout, reports))
    with provider.alloc(args.size) as handle:
        steps.show("allocate", _allocation(handle), describe.allocation_text(handle))
        metrics = provider.metrics(handle)
        steps.show("measure", metrics.to_dict(), describe.metrics_text(metrics))
        _demo_migration(steps, layout, handle)
    steps.show("free", provider.statistics().to_dict(), describe.freed_text(handle))
    steps.end()
    return 0


def _demo_migration(steps: _Steps, layout: svm.Layout, handle: svm.Allocation) -> None:
    source = next(iter(handle.where().pages), layout.domains[0].id)
    target = next((d.id for d in layout.domains if d.id != source), None)
    if target is None:
        steps.show("migrate", None, "there is one domain only, so there is nowhere to migrate to")
        return
    with _bar("migrating") as progress:
        migration = handle.migrate(source, target, progress=progress)
    steps.show("migrate", migration.to_dict(), describe.migration_text(migration))


class _Steps:
    """Steps of the demo: printed one by one, or all at the end as JSON."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._document: dict[str, Any] = {}

    def show(self, name: str, document: dict[str, Any] | None, text: str) -> None:
        self._document[name] = document
        if not self._json:
            if len(self._document) > 1:
                print()
            print(f"{len(self._document)}. {name}\n{text}", flush=True)

    def end(self) -> None:
        if self._json:
            _print_json(self._document)


# ---- alloc


def _alloc(args: argparse.Namespace) -> int:
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


def _where(args: argparse.Namespace) -> int:
    found = process.regions(args.pid)
    where = process.total(found)
    if args.json:
        _print_json(
            {"pid": args.pid, "where": encode(where), "regions": [encode(r) for r in found]}
        )
    else:
        print(describe.process_text(args.pid, found, where, most=None if args.all else SHOWN))
    return 0


def _migrate(args: argparse.Namespace) -> int:
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
            f"cannot read {text!r} as an address",
            expected="a hexadecimal number, such as 0x7f00",
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
    """A progress bar of bytes."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn())
    with show_bar(*columns, DownloadColumn(), TransferSpeedColumn()) as bars:
        task = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)

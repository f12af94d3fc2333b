"""Show the machine: NUMA nodes, CPUs, caches, GPUs of any vendor, and the links between them.

examples:
holdfast topo                                the machine as a tree
holdfast topo --json > machine.json          for scripts, and for others
holdfast topo --from machine.json            a machine somebody sent you
holdfast topo --svg machine.svg --measure    a picture, with measured bandwidth
holdfast topo --simulate 2x16GB,1x64GB:far   a machine you do not have
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from holdfast.base.config import Config
from holdfast.base.errors import BadInput
from holdfast.cli.files import read_text, write_file
from holdfast.cli.parsing import option
from holdfast.cli.progress import show_bar
from holdfast.cli.tables import as_json
from holdfast.topology import Topology, discover, measure, schema, svg, tree
from holdfast.topology.probes import PROBES
from holdfast.topology.probes.simulated import EXAMPLE

OPTIONS = (
    option("--json", "print JSON instead of the tree"),
    option("--svg FILE", "write a picture to FILE (- for standard output)"),
    option("--measure", "time memory and GPU links, and keep the results"),
    option("--time-limit SECONDS", "stop measuring after that long (default 60)", 60.0),
    option("--simulate TEXT", f"a made-up machine, such as {EXAMPLE}", group="source"),
    option("--from FILE", "a machine saved with --json (- for input)", group="source", dest="file"),
    option("--root DIR", "a recorded tree that holds sys/ and proc/", group="source"),
    option("--probes PROBES", f"some of {','.join(PROBES)} (default: all)"),
    option("--schema", "print the JSON schema of --json, and stop"),
)


def run(args: argparse.Namespace) -> int:
    """Show the machine, or write it."""
    if args.schema:
        print(as_json(schema()))
        return 0
    config = Config.load(root=args.root, simulate=args.simulate, probes=args.probes)
    topology = _load(args.file) if args.file else discover(config=config)
    if args.measure:
        topology = _measure(topology, args.time_limit, config)
    if args.svg:
        _write_svg(topology, args.svg)
    if args.json:
        print(topology.to_json())
    elif args.svg != "-":
        _print_tree(topology)
    return 0


def _load(file: str) -> Topology:
    text = sys.stdin.read() if file == "-" else read_text(file)
    try:
        return Topology.from_json(text)
    except BadInput as exc:
        raise BadInput(
            f"cannot use {file!r}: {exc.what}", expected=exc.expected, hint=exc.hint
        ) from exc


def _write_svg(topology: Topology, file: str) -> None:
    if file == "-":
        print(svg(topology))
        return
    write_file(file, svg(topology))
    print(f"picture: {Path(file)}", file=sys.stderr)


def _print_tree(topology: Topology) -> None:
    if not sys.stdout.isatty():
        print(tree(topology, width=240))
        return
    from rich.console import Console

    from holdfast.topology.render.tree import rich_tree

    Console().print(rich_tree(topology), highlight=False)


def _measure(topology: Topology, time_limit_s: float, config: Config) -> Topology:
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    with show_bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("measuring", total=None)

        def show(label: str, done: int, total: int) -> None:
            bar.update(task, description=label, completed=done, total=total)

        topology = measure(
            topology, refresh=True, time_limit_s=time_limit_s, progress=show, config=config
        )
    report = topology.probe("measure")
    if report is not None and report.reason:
        print(f"holdfast: not everything was measured: {report.reason}", file=sys.stderr)
    return topology

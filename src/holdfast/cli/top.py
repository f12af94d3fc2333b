"""Watch this machine and Holdfast's processes, live: memory, pools, models, links, the run.

Keys: arrows choose a process, 1 to 7 its tabs, s sorts, p pauses, f frees, b changes a budget,
h shows the largest blocks, l looks for leaks, i stops the run, w saves a timeline, ? shows all.
--once and --json need no terminal and no extra package.

examples:
holdfast top                      every process of yours
holdfast top 4711                 one of them
holdfast top --once               one look, as text
holdfast top --json               one look, for scripts
holdfast top --json --interval 1  a line for every look, until Ctrl-C
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from types import ModuleType

from holdfast.base.errors import BadInput
from holdfast.base.registry import Entry, Registry
from holdfast.cli.parsing import option
from holdfast.cli.tables import output_console
from holdfast.dashboard.ipc.client import Attached
from holdfast.dashboard.ipc.watching import Watcher
from holdfast.dashboard.tui import once
from holdfast.dashboard.tui.rows import COLUMNS
from holdfast.dashboard.tui.session import Session

INTERVAL_S = 0.5
LEAST_S, MOST_S = 0.05, 3600.0
SCREENS: Registry[ModuleType] = Registry(
    "screen", {"top": Entry("holdfast.dashboard.tui.app", "the terminal dashboard", "dashboard")}
)


def _pid(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a process ID; holdfast top --once lists them"
        )
    return int(text)


OPTIONS = (
    option("pid PID", "only this process (default: all of yours)", type=_pid, nargs="?"),
    option("--interval SECONDS", f"time between two looks (default {INTERVAL_S})", type=float),
    option("--sort KEY", f"order: {', '.join(COLUMNS)} (default pid)", "pid"),
    option("--light", "colours for a light background (key: t)"),
    option("--once", "print one look as text, or with --json, and stop"),
    option("--json", "print one look as a line of JSON; with --interval one after the other"),
    option("--count N", "stop --json after so many looks", type=int),
)


def run(args: argparse.Namespace) -> int:
    """Watch in the terminal, as text or as JSON."""
    _check(args)
    if args.pid is not None:
        Attached(args.pid).close()  # raises with the reason if it cannot be watched
    with Watcher(None if args.pid is None else [args.pid]) as watcher:
        if args.json:
            return _lines(watcher, args)
        if args.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            return _once(watcher, args)
        return _live(watcher, args)


def _check(args: argparse.Namespace) -> None:
    if args.sort not in COLUMNS:
        raise BadInput(f"cannot sort by {args.sort!r}", expected=f"one of {', '.join(COLUMNS)}")
    if args.interval is not None and not LEAST_S <= args.interval <= MOST_S:
        raise BadInput(
            f"cannot look every {args.interval:g} seconds",
            expected=f"--interval from {LEAST_S:g} to {MOST_S:g}",
        )
    if args.count is not None and args.count < 1:
        raise BadInput(f"cannot look {args.count} times", expected="--json --count 1 or more")
    if args.count is not None and not args.json:
        raise BadInput("--count is for --json", expected="--json --count 1 or more")
    if args.count is not None and args.once:
        raise BadInput("cannot use --count with --once", expected="one of them")


def _lines(watcher: Watcher, args: argparse.Namespace) -> int:
    interval_s = INTERVAL_S if args.interval is None else args.interval
    count = args.count or (1 if args.once or args.interval is None else None)
    done = 0
    while True:
        began = time.monotonic()
        print(json.dumps(watcher.look().to_dict(), separators=(",", ":")), flush=True)
        done += 1
        if done == count:
            return 0
        time.sleep(max(interval_s - (time.monotonic() - began), 0.0))


def _once(watcher: Watcher, args: argparse.Namespace) -> int:
    session = Session()
    session.add(watcher.look())
    once.print_once(session, args.sort, args.pid is not None, output_console())
    return 0


def _live(watcher: Watcher, args: argparse.Namespace) -> int:
    screen = SCREENS["top"]
    interval_s = INTERVAL_S if args.interval is None else args.interval
    app = screen.TopApp(watcher, interval_s=interval_s, sort=args.sort, light=args.light)
    try:
        status = app.run()
    finally:
        app.stop()
    if status == screen.INTERRUPTED:
        raise KeyboardInterrupt
    return app.return_code or 0 if status is None else status

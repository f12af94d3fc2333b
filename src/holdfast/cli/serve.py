"""Show what is live on this machine as a web page: memory, models, runs, leaks.

The page is for this machine alone unless --host says otherwise; then a token is needed, which is
part of the address that is printed. Beside the page there are an API (/openapi.json describes it)
and metrics for Prometheus (/metrics). Ctrl-C ends it.

examples:
holdfast serve                                 the page, for this machine alone
holdfast serve --open                          the same, opened in a browser
holdfast serve --pid 4711                      one process of Holdfast and no other
holdfast serve --host 0.0.0.0                  for other machines too, with a token
holdfast serve --port 0 --token auto --json    any free port; the address for a script
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import webbrowser

from holdfast.base.errors import BadInput
from holdfast.cli.parsing import option
from holdfast.dashboard.ipc.client import Attached
from holdfast.dashboard.ipc.watching import Watcher
from holdfast.dashboard.web.guard import make_token
from holdfast.dashboard.web.server import INTERVAL_S, LOOPBACK, PORT, Server

LEAST_S, MOST_S = 0.05, 60.0


OPTIONS = (
    option("--host ADDRESS", f"listen there (default {LOOPBACK})", LOOPBACK),
    option("--port N", f"and on that port; 0: any (default {PORT})", str(PORT)),
    option("--interval SECONDS", f"between two looks (default {INTERVAL_S})", str(INTERVAL_S)),
    option("--token TEXT", "ask for this token; auto: make one"),
    option("--pid PID", "watch these processes alone (default all)", nargs="+"),
    option("--open", "open the page in a browser"),
    option("--json", "print the address, token and process as JSON"),
)


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    pids = _processes(args.pid)
    with Watcher(pids) as watcher:
        server = Server(
            watcher,
            host=args.host,
            port=_integer(args.port, "--port", 0, 65_535),
            interval_s=_interval(args.interval),
            token=make_token() if args.token == "auto" else args.token,
        )
        _serve(server, args)
    return 0


def _serve(server: Server, args: argparse.Namespace) -> None:
    """Serve; Ctrl-C is the normal end."""

    def end(*_: object) -> None:  # a signal handler must not wait
        threading.Thread(target=server.stop, daemon=True).start()

    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, end)
        with server:
            _print_address(server, args.json)
            if args.open and not webbrowser.open(server.url_to_open):
                print("holdfast: no browser was found; open the address yourself", file=sys.stderr)
            server.wait()
    except KeyboardInterrupt:
        if not args.json:
            print("\nholdfast: stopped", file=sys.stderr)


def _print_address(server: Server, as_json: bool) -> None:
    if as_json:
        address = {"url": f"{server.url}/", "token": server.token, "pid": os.getpid()}
        print(json.dumps(address), flush=True)
        return
    print(f"Holdfast is shown at {server.url_to_open}")
    print("Ctrl-C ends it", flush=True)


# ---- options


def _processes(texts: list[str] | None) -> list[int] | None:
    """The processes to watch. Raises NotFound for one that cannot be inspected."""
    if texts is None:
        return None
    pids = [_integer(text, "--pid", 1, 2**31 - 1) for text in texts]
    for pid in pids:
        Attached(pid).close()
    return pids


def _integer(text: str, option: str, least: int, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most:
        return int(text)
    raise BadInput(
        f"cannot use {option} {text[:80]!r}", expected=f"an integer from {least} to {most}"
    )


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if LEAST_S <= seconds <= MOST_S:
        return seconds
    raise BadInput(
        f"cannot use --interval {text[:80]!r}",
        expected=f"seconds from {LEAST_S:g} to {MOST_S:g}",
        hint=f"--interval {INTERVAL_S}",
    )

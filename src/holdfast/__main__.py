"""The `holdfast` command as a process (`python -m holdfast` is the same).

Promise: a character that a stream cannot show is escaped, never an error. Ctrl-C at any moment
after Python itself has started ends with a status, never with a traceback or an abort: while the
command is being imported, in it, and on the way out.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys

INTERRUPTED = 130


def command() -> int:
    """Run the command line of this process; returns the exit status, or leaves with it."""
    try:
        _escape_what_cannot_be_shown()
        from holdfast.cli.main import main  # here, where Ctrl-C is caught already

        try:
            status = main()
        finally:
            _ignore_ctrl_c()
    except KeyboardInterrupt:
        _ignore_ctrl_c()
        status = INTERRUPTED
    if status == INTERRUPTED:
        _leave(status)
    return status


def _escape_what_cannot_be_shown() -> None:
    """The name of a file may hold letters that the encoding of a terminal lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # else none, or somebody's own
            stream.reconfigure(errors="backslashreplace")


def _ignore_ctrl_c() -> None:
    """From here on it would kill the interpreter half way out of the door."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(status: int) -> None:
    """End here, with what was registered for the end, but without taking the interpreter down.

    A library may still be imported in another thread, or its own threads still work: nobody waits
    for them, and nothing is taken apart under them.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, broken, closed
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(command())

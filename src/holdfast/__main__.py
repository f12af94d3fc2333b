"""The `holdfast` command as a process (`python -m holdfast` is the same).

Characters that a stream cannot encode are escaped. Ctrl-C ends the process with status 130 and no
traceback at any time: during imports, during the command and at exit.
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
    """Run the command line; returns the exit status, or exits with it after Ctrl-C."""
    try:
        _escape_unencodable()
        from holdfast.cli.main import main  # here, so that Ctrl-C is caught

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


def _escape_unencodable() -> None:
    """Escape characters, for example of file names, that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # it may be None or replaced
            stream.reconfigure(errors="backslashreplace")


def _ignore_ctrl_c() -> None:
    """Ignore Ctrl-C: it would interrupt the exit of the interpreter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(status: int) -> None:
    """Run exit handlers and end the process, without finalizing the interpreter.

    Other threads may still import or run a library: exit neither waits for them nor frees what they
    use.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, broken, closed
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(command())

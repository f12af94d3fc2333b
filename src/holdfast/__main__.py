"""The `holdfast` command as a process (`python -m holdfast` is the same).

Promise: Ctrl-C at any moment after Python itself has started ends with a status, never with a
traceback: while the command is being imported, in it, and while the interpreter takes itself down.
"""

from __future__ import annotations

import signal
import sys


def command() -> int:
    """Run the command line of this process; returns the exit status."""
    try:
        from holdfast.cli.main import main  # here, where Ctrl-C is caught already

        try:
            return main()
        finally:
            _ignore_ctrl_c()
    except KeyboardInterrupt:
        _ignore_ctrl_c()
        return 130


def _ignore_ctrl_c() -> None:
    """From here on it would kill the interpreter half way out of the door."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(command())

"""Clean up after a Ray cluster that was started for one batch, even if this process is killed.

Ray's workers end with the process that started them. After a kill its daemons stay for a minute
and its folder forever. So a small process waits until its standard input closes, then cleans up.
Only processes with open files in the guarded folder are killed, and only that folder is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import psutil

from holdfast.pipeline.batch.ctrl_c import delay_ctrl_c

_WAIT_S = 30.0


@contextlib.contextmanager
def guard_folder() -> Iterator[str]:
    """A folder for Ray; at the end of the block it is removed with all processes that use it.

    Its name is short: Ray puts sockets into it, whose paths are limited to 107 characters.
    """
    folder: str | None = None
    guard: subprocess.Popen[bytes] | None = None
    try:
        with delay_ctrl_c():  # no Ctrl-C between the two, or the folder would stay
            folder = tempfile.mkdtemp(prefix="hf-ray-")
            guard = subprocess.Popen(
                [sys.executable, "-m", __name__, folder, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # does not get Ctrl-C
            )
        yield folder
    finally:
        if guard is not None:
            if guard.stdin is not None:
                guard.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it continues alone
                guard.wait(_WAIT_S)
        elif folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def clear(folder: str, owner: int) -> None:
    """Kill every process but `owner` with an open file in `folder`, then remove the folder.

    Open files identify them: Ray overwrites their command lines and environment.
    """
    inside = os.path.join(os.path.realpath(folder), "")  # noqa: PTH118  compared as text
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            files = process.open_files() if process.pid != owner else []
            if any(file.path.startswith(inside) for file in files):
                process.kill()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    clear(sys.argv[1], int(sys.argv[2]))

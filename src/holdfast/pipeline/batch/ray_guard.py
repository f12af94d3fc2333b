"""What ends a Ray that was started for one batch, also when nobody is left to ask for it.

Ray's workers end with the process that started it. Its daemons and its folder do not: after a kill
the first stay for a minute, the second for good. So a small process waits until its standard input
ends, which the system sees to, and then clears away.
Promise: only processes that write into the folder of the `guarded` block are ended, and only that
folder is removed.
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

from holdfast.pipeline.batch.ctrl_c import ctrl_c_later

_WAIT_S = 30.0


@contextlib.contextmanager
def guarded() -> Iterator[str]:
    """A folder for Ray; when the block is left it is gone, and so is whoever still writes into it.

    Its name is short, as Ray puts sockets into it, whose paths may have 107 characters.
    """
    folder: str | None = None
    guard: subprocess.Popen[bytes] | None = None
    try:
        with ctrl_c_later():  # between the two, nobody would clear the folder away
            folder = tempfile.mkdtemp(prefix="hf-ray-")
            guard = _guard(folder)
        yield folder
    finally:
        if guard is not None:
            _let_clear(guard)
        elif folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _guard(folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", __name__, folder, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not for it
    )


def _let_clear(guard: subprocess.Popen[bytes]) -> None:
    if guard.stdin is not None:
        guard.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # it goes on without us
        guard.wait(_WAIT_S)


def clear(folder: str, owner: int) -> None:
    """End every process but `owner` that has a file of `folder` open, then remove it.

    That is how to know them: Ray writes over the names and variables they were started with.
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

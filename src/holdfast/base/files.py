"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, data: str | bytes) -> None:
    """Replace `path` by `data`, whole or not at all: an error or Ctrl-C leaves what was there.

    Raises OSError as the system gives it.
    """
    content = data.encode() if isinstance(data, str) else data
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        Path(name).chmod(0o666 & ~_umask())  # mkstemp's are private, a result is for everybody
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

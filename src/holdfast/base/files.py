"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: str | bytes) -> None:
    """Replace `path` by `data`, whole or not at all: an error or Ctrl-C leaves what was there.

    A link is followed. A device or a pipe (`/dev/null`, `/dev/stdout`) is written to, not replaced.
    Raises OSError as the system gives it.
    """
    content = data.encode() if isinstance(data, str) else data
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    # Named before it is made, so that Ctrl-C at any moment knows what to remove; and not after
    # the target, whose name may be as long as a name can be.
    draft = target.with_name(f".holdfast-{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave the new name with no content
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise

"""Files: written so that a reader never sees half of one, read so that a broken one is named."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from holdfast.base.errors import BadInput


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


def read_json_object(file: Path) -> dict[str, Any]:
    """What a JSON file of a model holds. Raises BadInput that names the file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as exc:
        raise BadInput(
            f"cannot read {str(file)!r}: {exc.strerror}", expected="a readable file"
        ) from exc
    except ValueError as exc:
        raise BadInput(
            f"cannot read {str(file)!r}: it is not JSON ({exc})", hint="copy or download it again"
        ) from exc
    if not isinstance(content, dict):
        raise BadInput(
            f"cannot read {str(file)!r}: it holds no JSON object", hint="copy or download it again"
        )
    return content

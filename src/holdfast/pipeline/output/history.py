"""Past runs of this user: what was drawn, how it ended, what it cost, and a small picture.

    for run in history.runs(10):
        print(run.model, run.prompt, run.took_s)

Writing never fails a run. Several processes may write at once; a record is written atomically.
Only files of this history are touched, and only this user can read them. `HOLDFAST_HISTORY=0`
writes nothing.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from holdfast.base.codec import about, decode, encode
from holdfast.base.config import Config
from holdfast.base.files import write_whole

Status = Literal["done", "stopped", "failed"]
MAX_PIXELS = 256  # longest side of a small picture
MAX_CHARACTERS = 2000  # characters of a prompt or an error
_ID = re.compile(r"[0-9a-f]{12,16}-[0-9a-f]{1,8}-[0-9a-f]{1,8}")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A finished run. Unknown is None."""

    id: str = about("its name here")
    pid: int = about("the process that ran it")
    began_s: float = about("when it began, in seconds since 1970")
    took_s: float = about("how long it took, without loading the model")
    model: str = about("the model that drew")
    prompt: str = about("what it drew")
    status: Status = about("how it ended")
    error: str | None = about("why it failed, in a line")
    device: str = about("where it ran")
    seed: int | None = about("the seed of its noise")
    width: int | None = about("pixels")
    height: int | None = about("pixels")
    steps: int | None = about("steps of the denoiser that were asked for")
    frames: int = about("pictures that came out; more than one is a video")
    load_s: float | None = about("what loading the model took, for the first run after it")
    text_ms: float | None = about("what reading the prompt took")
    step_ms: float | None = about("what a step took, the first one left out")
    decode_ms: float | None = about("what the decoder took")
    peak_bytes: int | None = about(
        "the most memory on a device at once; the highest of all devices"
    )
    saved_to: str | None = about("the file it was saved in")


def runs(most: int = 100) -> tuple[RunRecord, ...]:
    """The newest runs of all processes of this user, newest first. Broken records are skipped."""
    found: list[RunRecord] = []
    folder = Config.load().history_dir
    for run_id in sorted(_ids(folder), reverse=True):
        if len(found) >= most:
            break
        record = _read(folder, run_id)
        if record is not None:
            found.append(record)
    return tuple(found)


def picture(id: str) -> bytes | None:
    """The small picture of a run as PNG, or None."""
    if not _ID.fullmatch(id):
        return None
    try:
        return (Config.load().history_dir / f"{id}.png").read_bytes()
    except OSError:
        return None


def keep(record: RunRecord, frames: Any = None) -> None:
    """Record a run, with a picture of the first frame. Never raises."""
    with contextlib.suppress(Exception):
        config = Config.load()
        if not config.history:
            return
        folder = config.history_dir
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        small = None if frames is None else _make_thumbnail(frames[0])
        if small is not None:  # before the record, so that a reader of the record finds it
            write_whole(folder / f"{record.id}.png", small, private=True)
        _write(folder, record)
        _remove_old(folder, config.history)


def note_file(run_id: str, file: Path) -> None:
    """Add the path of a saved picture to its run. Never raises; ignores unknown runs."""
    with contextlib.suppress(Exception):
        folder = Config.load().history_dir
        record = _read(folder, run_id)
        if record is not None:
            _write(folder, replace(record, saved_to=str(file.absolute())))


def _write(folder: Path, record: RunRecord) -> None:
    write_whole(folder / f"{record.id}.json", json.dumps(encode(record)), private=True)


def _make_thumbnail(frame: Any) -> bytes | None:
    """A frame as a small PNG; None without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return None
    small = Image.fromarray(frame)
    small.thumbnail((MAX_PIXELS, MAX_PIXELS))
    file = io.BytesIO()
    small.save(file, "PNG")
    return file.getvalue()


def _remove_old(folder: Path, most: int) -> None:
    """Remove all but the newest `most`; another process may do the same."""
    ids = {*_ids(folder), *_ids(folder, ".png")}  # a full disk may leave only one of the two
    for run_id in sorted(ids, reverse=True)[most:]:
        for suffix in (".json", ".png"):
            with contextlib.suppress(FileNotFoundError):
                (folder / f"{run_id}{suffix}").unlink()


def _ids(folder: Path, suffix: str = ".json") -> list[str]:
    try:
        files = list(folder.iterdir())
    except OSError:
        return []
    return [one.stem for one in files if one.suffix == suffix and _ID.fullmatch(one.stem)]


def _read(folder: Path, run_id: str) -> RunRecord | None:
    if not _ID.fullmatch(run_id):
        return None
    try:
        text = (folder / f"{run_id}.json").read_text(encoding="utf-8")
        return decode(RunRecord, json.loads(text))
    except (OSError, ValueError):  # BadInput is one of these
        return None

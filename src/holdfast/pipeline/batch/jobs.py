"""Turn rows into jobs: defaults, a seed, a stable file name and an identity for each.

`plan` gives the same jobs for the same rows and options. Changing one row changes one job; moving
rows changes none.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.pipeline.batch.reading import BadRow, Row, bad_rows, check_value

DEFAULT_FPS = 8
# As media.FORMATS, which needs libraries to import.
SUFFIXES = (".png", ".webp", ".jpg", ".jpeg", ".gif", ".mp4")
_LONGEST_SLUG = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of all jobs of a batch. `suffix` None is chosen by the number of frames."""

    model: str
    config: str | None = None
    precision: str = "auto"
    seed: int = 0
    suffix: str | None = None
    fps: int = DEFAULT_FPS
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One picture or video to make.

    `settings` are the arguments of the pipeline. `identity` is stable over runs: a hash of
    everything that decides the picture, except a seed derived from the position, so that a line
    may move.
    """

    identity: str
    where: str
    position: int
    settings: Mapping[str, Any]
    out: str | None
    suffix: str | None
    fps: int

    @property
    def prompt(self) -> str:
        return self.settings["prompt"]

    def name(self, suffix: str) -> str:
        """The preferred file name, relative to the output folder."""
        return self.out or f"{self.position:04d}-{slug(self.prompt)}{suffix}"


def plan(rows: Sequence[Row], options: Options, file: str) -> list[Job]:
    """Make a job for each row. Raises BadInput for unusable defaults and names."""
    defaults = _check_defaults(options)
    _refuse_names(rows, file)
    seen: Counter[str] = Counter()
    jobs: list[Job] = []
    for position, row in enumerate(rows):
        asked = defaults | dict(row.values)
        out = asked.pop("out", None)
        suffix = PurePosixPath(out).suffix.lower() if out else options.suffix
        meaning = _meaning(asked, out, suffix, options)
        seen[meaning] += 1
        jobs.append(
            Job(
                identity=hashlib.sha256(f"{meaning}#{seen[meaning]}".encode()).hexdigest()[:24],
                where=row.where,
                position=position,
                settings={"seed": (options.seed + position) % 2**63} | asked,
                out=out,
                suffix=suffix,
                fps=options.fps,
            )
        )
    return jobs


def suffix_for(num_frames: int) -> str:
    """The default file format for that many frames."""
    return ".png" if num_frames == 1 else ".gif"


def slug(prompt: str) -> str:
    """A short ASCII file name from the prompt."""
    plain = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return words[:_LONGEST_SLUG].rstrip("-") or "picture"


def fold_name(name: str) -> str:
    """Normalize a file name as case-insensitive systems compare it."""
    return unicodedata.normalize("NFC", name.replace("\\", "/")).casefold()


def _check_defaults(options: Options) -> dict[str, Any]:
    """The given defaults, each checked like a value of a row."""
    try:
        check_value("seed", options.seed)
        given = {name: v for name, v in options.defaults.items() if v is not None}
        return {name: check_value(name, v, isinstance(v, str)) for name, v in given.items()}
    except BadRow as exc:
        raise BadInput(
            f"cannot use these options: {exc}",
            expected="values that a line of the file could have",
        ) from exc


def _meaning(asked: Mapping[str, Any], out: str | None, suffix: str | None, o: Options) -> str:
    """Everything that decides the picture, as text."""
    parts = {
        "settings": dict(asked),
        "seed from": None if "seed" in asked else o.seed,
        "out": out,
        "suffix": suffix,
        "fps": o.fps,
        "model": o.model,
        "config": o.config,
        "precision": o.precision,
    }
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def _refuse_names(rows: Sequence[Row], file: str) -> None:
    first: dict[str, str] = {}
    bad: list[tuple[str, str]] = []
    for row in rows:
        out = row.values.get("out")
        if out is None:
            continue
        if PurePosixPath(out).suffix.lower() not in SUFFIXES:
            bad.append((row.where, f"out is {out!r}, which is no kind of picture or video"))
        earlier = first.setdefault(fold_name(out), row.where)
        if earlier != row.where:
            bad.append((row.where, f"out is {out!r}, the same file as in {earlier}"))
    if bad:
        raise bad_rows(file, bad, f"a file for each picture, ending in {', '.join(SUFFIXES)}")

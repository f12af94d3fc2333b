"""The output folder: its manifest, its pictures, and which job each picture belongs to.

A picture is written atomically under an unused name, then recorded. After a crash between the two,
the next start recognizes the picture by the settings inside it. A file of another job or of the
user is never overwritten.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.base.files import write_whole
from holdfast.pipeline.batch.jobs import SUFFIXES, Job, fold_name
from holdfast.pipeline.batch.manifest import NAME, Manifest

# Temporary files go here, so that leftovers of a crash can be recognized.
_DRAFTS = ".holdfast-batch"


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """Jobs of a batch that are done, found without a record, and still to do; other pictures."""

    done: tuple[str, ...]
    found: tuple[str, ...]
    to_do: tuple[Job, ...]
    strangers: int


class Folder(contextlib.AbstractContextManager["Folder"]):
    """An output folder, locked by this process.

    Raises BadInput where it cannot be made, Unsupported while another batch works in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.manifest = Manifest(path / NAME)
            self._remove_drafts()
        except OSError as exc:
            raise _cannot_write(path, exc) from exc
        self._files: dict[str, str] = {}  # identity -> file
        self._sizes: dict[str, int] = {}  # identity -> bytes, where the record says it
        self._owners: dict[str, str] = {}  # folded file -> identity
        for record in self.manifest.records:
            if record["event"] == "done":
                self._own(record["job"], record["file"], record.get("size_bytes"))

    def __exit__(self, *_: object) -> None:
        try:
            self._remove_drafts()
        finally:
            self.manifest.__exit__(None, None, None)

    def begin(self, **values: Any) -> None:
        """Record the begin of a run."""
        with self._writing():
            self.manifest.begin(**values)

    def last_run(self) -> Mapping[str, Any] | None:
        """The record of the latest run in this folder."""
        runs = [record for record in self.manifest.records if record["event"] == "run"]
        return runs[-1] if runs else None

    def status(self, jobs: Sequence[Job]) -> BatchStatus:
        """What is done of `jobs`. Writes nothing; `adopt` records the pictures it found."""
        done = {job.identity for job in jobs if self._has_picture(job.identity)}
        wanted = {job.identity for job in jobs} - done
        found = self._lost_pictures(jobs) if wanted else {}
        self._found = {identity: found[identity] for identity in found if identity in wanted}
        settled = done | set(self._found)
        known = {job.identity for job in jobs}
        return BatchStatus(
            done=tuple(job.identity for job in jobs if job.identity in done),
            found=tuple(self._found),
            to_do=tuple(job for job in jobs if job.identity not in settled),
            strangers=sum(i not in known and self._has_picture(i) for i in self._files),
        )

    def adopt(self) -> None:
        """Record the pictures that `status` found without a record."""
        with self._writing():
            for identity, (file, settings) in self._found.items():
                self._record(identity, file, settings=dict(settings), found=True)

    def keep(
        self, job: Job, data: bytes, suffix: str, *, reserved: Mapping[str, str], **facts: Any
    ) -> str:
        """Write a picture, then its record; returns the file's name in this folder.

        `reserved` maps file names (folded) that jobs ask for to their identities.
        """
        with self._writing():
            file = self._free_name(job, suffix, reserved)
            target = self.path / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.parent.resolve().is_relative_to(self.path.resolve()):
                raise BadInput(
                    f"cannot write {str(target)!r}: a link in it leads out of {str(self.path)!r}",
                    expected="a file inside the output folder",
                )
            draft = self.path / _DRAFTS / target.name
            draft.parent.mkdir(exist_ok=True)
            write_whole(draft, data)
            draft.replace(target)
            _sync(target.parent)
            self._record(job.identity, file, where=job.where, size_bytes=len(data), **facts)
        return file

    def fail(self, job: Job, reason: str, attempts: int) -> None:
        """Record why a job has no picture; the next run tries again."""
        with self._writing():
            self.manifest.append(
                "failed", job=job.identity, where=job.where, reason=reason, attempts=attempts
            )

    def _record(self, identity: str, file: str, **values: Any) -> None:
        self.manifest.append("done", job=identity, file=file, **values)
        self._own(identity, file, values.get("size_bytes"))

    def _own(self, identity: str, file: str, size_bytes: Any) -> None:
        self._files[identity] = file
        self._owners[fold_name(file)] = identity
        self._sizes.pop(identity, None)
        if isinstance(size_bytes, int):
            self._sizes[identity] = size_bytes

    def _has_picture(self, identity: str) -> bool:
        """Whether its file exists with the recorded size, or is at least a picture of that job."""
        if identity not in self._files:
            return False
        path = self.path / self._files[identity]
        if not path.is_file():
            return False
        if path.stat().st_size == self._sizes.get(identity):
            return True
        return self._settings_of(path).get("job") == identity

    def _lost_pictures(self, jobs: Sequence[Job]) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Pictures without a record, by the job that their settings name."""
        folders = {self.path, *(self.path / Path(job.out).parent for job in jobs if job.out)}
        found: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for path in sorted(itertools.chain.from_iterable(map(_pictures, folders))):
            file = path.relative_to(self.path).as_posix()
            if fold_name(file) in self._owners:
                continue
            settings = self._settings_of(path)
            if isinstance(settings.get("job"), str):
                found.setdefault(settings["job"], (file, settings))
        return found

    def _settings_of(self, path: Path) -> Mapping[str, Any]:
        from holdfast.pipeline.output import media  # needs libraries

        try:
            return media.read_settings(path)
        except (HoldfastError, OSError, ValueError):
            return {}  # not readable, or not one of ours

    def _free_name(self, job: Job, suffix: str, reserved: Mapping[str, str]) -> str:
        """Its earlier name, or its preferred name, or that with a number."""
        earlier = [self._files[job.identity]] if job.identity in self._files else []
        for file in itertools.chain(earlier, _number_names(job.name(suffix))):
            owner = self._owners.get(fold_name(file), job.identity)
            owner = reserved.get(fold_name(file), owner)
            if owner == job.identity and not os.path.lexists(self.path / file):
                return file
        raise AssertionError("there is always another number")

    def _remove_drafts(self) -> None:
        shutil.rmtree(self.path / _DRAFTS, ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise _cannot_write(self.path, exc) from exc


def _pictures(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.is_file()]


def _number_names(name: str) -> Iterator[str]:
    path = PurePosixPath(name.replace("\\", "/"))
    yield path.as_posix()
    for number in itertools.count(2):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}").as_posix()


def _sync(folder: Path) -> None:
    """Flush the directory to disk, where the system supports it."""
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _cannot_write(path: Path, exc: OSError) -> Unsupported | BadInput:
    if isinstance(exc, FileExistsError | NotADirectoryError | PermissionError):
        return BadInput(
            f"cannot write into {str(path)!r}: {exc.strerror}", expected="a folder for the pictures"
        )
    return Unsupported(
        f"cannot write into {str(path)!r}: {exc.strerror}",
        expected="a folder with room for the pictures",
        hint="make room, then the same command: it goes on where it stopped",
    )

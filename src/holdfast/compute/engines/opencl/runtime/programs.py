"""Kernels built from source, once for each device, and cached on disk.

A binary is used only for the device, driver, source and defines it was built from, and only if it
is complete: each file begins with a digest of the rest, as drivers may crash on a damaged one.
Unusable files are built again; a cache folder that cannot be written is ignored.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyopencl as cl

from holdfast.base.config import Config
from holdfast.base.errors import Unsupported
from holdfast.base.files import write_whole
from holdfast.compute.engines.opencl.runtime import late_builds
from holdfast.memory.resources.opencl_devices import OpenCLDevice, status

FOLDER = Path(__file__).parents[1] / "kernels"
Defines = Mapping[str, Any]
_DIGEST = 32  # bytes at the beginning of a file
_LOG_LINES = 40
_STALE_S = 3600.0  # an older draft was left by a killed process


class BuildFailed(Unsupported):
    """The driver could not build a kernel; the log is in the error."""


@functools.cache
def source_of(name: str) -> str:
    """The source of kernels/NAME.cl."""
    return (FOLDER / f"{name}.cl").read_text(encoding="utf-8")


class Programs:
    """The programs built for one device."""

    def __init__(self, place: OpenCLDevice) -> None:
        self.place = place
        self._programs: dict[Any, Any] = {}  # BuildFailed for those that cannot be built
        self._swept: set[Path] = set()
        device = place.device
        self._identity = "\n".join(
            (device.platform.version, device.name, device.version, device.driver_version)
        )
        self._wide = "cl_khr_fp64" in device.extensions
        self._more = Config.load().opencl_options.split()

    def build(self, source: str, function: str, defines: Defines | None = None) -> Any:
        """A kernel of a source that is appended to kernels/numbers.cl. Raises BuildFailed."""
        # -w: some compilers write "2 warnings generated." to the user's terminal.
        options = ["-w", *(f"-D{key}={value}" for key, value in (defines or {}).items())]
        if self._wide:
            options.append("-DHAS_DOUBLE=1")
        options += self._more
        text = source_of("numbers") + source
        key = text, tuple(options)
        with self.place.lock:
            if key not in self._programs:
                self._programs[key] = self._load_or_build(text, options, function)
            program = self._programs[key]
            if isinstance(program, BuildFailed):
                raise program
            try:
                return cl.Kernel(program, function)
            except cl.Error as exc:
                raise self._build_error(function, program, exc) from exc

    def _load_or_build(self, text: str, options: list[str], function: str) -> Any:
        words = "\n".join((self._identity, *options, text))
        file = _folder() / f"{hashlib.sha256(words.encode()).hexdigest()}.bin"
        found = self._from_file(file, options)
        return self._from_source(text, options, function, file) if found is None else found

    def _from_file(self, file: Path, options: list[str]) -> Any:
        try:
            content = file.read_bytes()
        except OSError:
            return None
        digest, binary = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(binary).digest() != digest:
            return None
        try:
            with _quiet():
                program = cl.Program(self.place.context, [self.place.device], [binary])
                return self._build_program(program, options)
        except cl.Error:
            return None

    def _from_source(self, text: str, options: list[str], function: str, file: Path) -> Any:
        program: Any = cl.Program(self.place.context, text)
        try:
            with _quiet():
                self._build_program(program, options)
        except cl.Error as exc:
            return self._build_error(function, program, exc)
        self._keep(file, program)
        return program

    def _build_program(self, program: Any, options: list[str]) -> Any:
        if late_builds.builds_late(self.place.device) and late_builds.build(program, options):
            return program
        return program.build(options=options, cache_dir=False)

    def _keep(self, file: Path, program: Any) -> None:
        binary = program.get_info(cl.program_info.BINARIES)[0]
        with contextlib.suppress(OSError):  # the cache is optional
            file.parent.mkdir(parents=True, exist_ok=True)
            self._sweep(file.parent)
            write_whole(file, hashlib.sha256(binary).digest() + binary)

    def _sweep(self, folder: Path) -> None:
        """Remove, once, drafts that killed processes left behind."""
        if folder in self._swept:
            return
        self._swept.add(folder)
        for draft in folder.glob(".holdfast-*"):
            if time.time() - draft.stat().st_mtime > _STALE_S:
                draft.unlink(missing_ok=True)

    def _build_error(self, function: str, program: Any, exc: cl.Error) -> BuildFailed:
        try:
            log = program.get_build_info(self.place.device, cl.program_build_info.LOG).strip()
        except cl.Error:
            log = ""
        lines = "".join(f"\n    {line}" for line in (log or str(exc)).splitlines()[:_LOG_LINES])
        failed = BuildFailed(
            f"cannot build the kernel {function!r} for {self.place.name} "
            f"({self.place.device.name.strip()}): OpenCL says {status(exc)}{lines}",
            expected="a driver whose compiler takes OpenCL C 1.2",
            hint="another device or driver, or HOLDFAST_ENGINE=numpy",
        )
        failed.__cause__ = exc
        return failed


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the compiler's warnings, and pyopencl's about its own cache."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _folder() -> Path:
    return Config.load().cache_dir / "opencl"

"""Compiles and loads C code on this machine, and picks the core of the pools.

Nothing is compiled at import. A library is named after everything that went into it, so a new
version is never mistaken for an old one, and processes that compile at once do not disturb each
other. If the core fails to compile although nothing is missing, a warning says so.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.base.config import Config
from holdfast.base.errors import BadInput, HoldfastError, Unsupported
from holdfast.memory.core import pool_core as python_core

SOURCES = Path(__file__).parent / "native"
CHOICES = ("auto", "compiled", "python")
_MISSING_HEADER = re.compile(r"fatal error: '?([^':]+)'?(: No such file| file not found)")


def compiler(language: str = "c") -> str:
    """Path of the C or C++ compiler: $CC or $CXX, else the system's. Raises Unsupported if none."""
    variable, names = {
        "c": ("CC", ("cc", "gcc", "clang")),
        "c++": ("CXX", ("c++", "g++", "clang++")),
    }[language]
    for name in (os.environ.get(variable), *names):
        if name and (found := shutil.which(name)):
            return found
    raise Unsupported(
        f"there is no {language.upper()} compiler on this machine",
        expected=f"{' or '.join(names)} on the path, or ${variable}",
        hint="apt-get install g++, or leave it: the Python core works without one",
    )


def library(
    source: str, flags: Sequence[str] = (), language: str = "c", target: Path | None = None
) -> Path:
    """Path of the shared library of `source` (a file in native/), compiled if it is not there yet.

    Its name depends on the headers beside it too, unless `target` names it. Raises Unsupported
    with the compiler's message if it does not compile.
    """
    path = SOURCES / source
    command = [compiler(language), "-O2", "-shared", "-fPIC", *flags]
    if sys.platform == "darwin":
        command += ["-undefined", "dynamic_lookup"]
    headers = sorted(path.parent.glob("*.h"))
    contents = [path.read_bytes(), *(p for h in headers for p in (h.name.encode(), h.read_bytes()))]
    parts = [*contents, *map(str.encode, command), sys.version.encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    target = target or folder() / f"{path.stem}-{digest}.so"
    if not target.exists():
        _compile([*command, f"-I{path.parent}", str(path)], target)
    return target


@functools.cache
def load_core() -> ModuleType:
    """The C core as a module. Raises Unsupported if it cannot be compiled or loaded here."""
    if os.name != "posix":
        raise Unsupported(f"the compiled core does not support {sys.platform}", expected="POSIX")
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        raise Unsupported(
            "the compiled core needs Python's C headers",
            expected=str(headers / "Python.h"),
            hint="apt-get install python3-dev, or leave it: the Python core works without",
        )
    path = library("module.c", (f"-I{headers}", "-pthread", "-Wno-deprecated-declarations"))
    loader = importlib.machinery.ExtensionFileLoader("holdfast.memory._core", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    if spec is None:
        raise Unsupported(f"cannot load {path}", expected="an extension module of this Python")
    try:
        module = importlib.util.module_from_spec(spec)
    except ImportError as exc:
        raise Unsupported(
            f"cannot load {path}: {exc}", expected="an extension module of this Python"
        ) from exc
    loader.exec_module(module)
    return module


@functools.cache
def core() -> Any:
    """The core that pools of this process use: compiled if possible, else Python."""
    chosen = Config.load().core
    if chosen not in CHOICES:
        raise BadInput(f"cannot use HOLDFAST_CORE={chosen!r}", expected=f"one of {CHOICES}")
    if chosen == "python":
        return python_core
    try:
        return load_core()
    except HoldfastError as exc:
        if chosen == "compiled":
            raise
        if isinstance(exc.__cause__, subprocess.CalledProcessError):
            _warn_of(exc.__cause__)
        return python_core


def require_compiled(core: object, who: str) -> None:
    """Raises Unsupported, naming `who` needs it, if `core` is not a compiled one."""
    try:
        kind = load_core().Core
    except HoldfastError as exc:
        raise Unsupported(
            f"{who} needs the compiled core: {exc.what}", expected=exc.expected, hint=exc.hint
        ) from exc
    if not isinstance(core, kind):
        raise Unsupported(
            f"{who} needs the compiled core: this pool has the Python one",
            expected="a pool made without HOLDFAST_CORE=python",
        )


def module_of(core: object) -> Any:
    """The module that `core` is an instance of: the compiled one or the Python one."""
    return python_core if isinstance(core, python_core.Core) else load_core()


def folder() -> Path:
    """Where compiled code is stored."""
    config = Config.load()
    return config.build_dir or config.cache_dir / "build"


def _warn_of(failure: subprocess.CalledProcessError) -> None:
    """Warn why there is no compiled core, unless only a system header is missing."""
    lines = failure.stderr.strip().splitlines() or [f"it ended with status {failure.returncode}"]
    line = next((line for line in lines if "error:" in line), lines[0]).strip()
    missing = _MISSING_HEADER.search(line)
    texts = [path.read_text("utf-8") for path in SOURCES.glob("*.[ch]")]
    ours = {name for text in texts for name in re.findall(r'#include "([^"]+)"', text)}
    if missing and missing[1] not in ours:
        return
    warnings.warn(
        f"the compiled core does not compile here, the slower Python core is used: {line}\n"
        "  try: another compiler, named by $CC; HOLDFAST_CORE=python says that this is wanted",
        RuntimeWarning,
        stacklevel=3,
    )


def _compile(command: list[str], target: Path) -> None:
    draft = target.with_name(f".{secrets.token_hex(8)}.so")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.touch()  # if the folder is not writable, this error is clearer than the linker's
        subprocess.run(
            [*command, "-o", str(draft)],
            check=True,
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | {"LC_ALL": "C"},  # `_warn_of` reads it
        )
        draft.replace(target)
    except subprocess.CalledProcessError as exc:
        raise Unsupported(
            f"{Path(command[0]).name} could not compile {Path(command[-1]).name}: "
            f"{exc.stderr.strip()[-2000:]}",
            expected="a C compiler that works",
        ) from exc
    except OSError as exc:
        raise Unsupported(
            f"cannot write compiled code to {target.parent}: {exc.strerror}",
            expected="a folder that can be written to",
            hint="HOLDFAST_BUILD_DIR=FOLDER",
        ) from exc
    finally:
        with contextlib.suppress(OSError):  # it may not exist
            draft.unlink()

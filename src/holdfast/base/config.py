"""Settings: the caller's options, else `HOLDFAST_*` variables, else defaults.

Holdfast reads these variables only through `Config.load`.
"""

from __future__ import annotations

import difflib
import functools
import os
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.codec import about
from holdfast.base.errors import BadInput

PREFIX = "HOLDFAST_"


def default_cache_dir(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """The user's cache folder on this system."""
    home = Path.home()
    if platform == "darwin":
        return home / "Library" / "Caches" / "holdfast"
    if platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "holdfast"
    return Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "holdfast"


def default_history_dir(environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """The user's folder for the history of runs on this system."""
    if platform in ("darwin", "win32"):
        return default_cache_dir(environ, platform) / "runs"
    state = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "holdfast" / "runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting of Holdfast. The variable for `cache_dir` is HOLDFAST_CACHE_DIR, and so on."""

    cache_dir: Path = about("folder for measurements and other files that can be made again")
    root: Path = about("where sys/ and proc/ are read from (topology)", default=Path("/"))
    simulate: str | None = about(
        'a made-up machine instead of this one, such as "2x16GB,1x64GB:far" (topology)',
        default=None,
    )
    probes: tuple[str, ...] | None = about(
        "comma-separated names of the probes to ask; all when not set (topology)", default=None
    )
    probe_timeout_s: float = about(
        "seconds after which a probe that runs in its own process is given up (topology)",
        default=60.0,
    )
    core: str = about(
        "which core the memory pools use: auto, compiled or python (memory)", default="auto"
    )
    build_dir: Path | None = about(
        "folder for code compiled here; build/ in the cache folder when not set (memory)",
        default=None,
    )
    svm_provider: str | None = about(
        "which provider allocates shared virtual memory: retryix, opencl, numa or simulated; the "
        "first that works when not set (memory.svm)",
        default=None,
    )
    retryix_library: Path | None = about(
        "the shared library of the retryix provider (memory.svm)", default=None
    )
    engine: str = about(
        "which engine computes on devices without one: numpy or opencl (compute)",
        default="numpy",
    )
    opencl_mapping: str = about(
        "how OpenCL kernels lay out their work: auto (by the kind of device), cpu or gpu (compute)",
        default="auto",
    )
    opencl_options: str = about(
        "more options for the OpenCL compiler, such as -cl-opt-disable (compute)",
        default="",
    )
    opencl_memory: str = about(
        "memory of OpenCL arrays: buffers, or svm where the device has it (memory)",
        default="buffers",
    )
    opencl_random: str = about(
        "where large random arrays for OpenCL are drawn: host (the same as torch) or device"
        " (compute)",
        default="host",
    )
    clblast: str = about(
        "whether CLBlast is used where it is installed and measured faster: auto or off (compute)",
        default="auto",
    )
    strict: bool = about(
        "refuse ops that an engine has no kernel for; else the host computes them (compute)",
        default=False,
    )
    torch_shim: str = about(
        "whether the torch device uses its C++ shim: auto (once it was built), on or off (compute)",
        default="auto",
    )
    hosts: str | None = about(
        'several processes as one: "auto", or HOST:PORT,INDEX/COUNT; alone when not set (xla)',
        default=None,
    )
    offer: bool = about(
        "whether other programs of this user may inspect a process that uses Holdfast (dashboard)",
        default=True,
    )
    runtime_dir: Path | None = about(
        "folder for the sockets of processes that can be inspected, and nothing else; one of this"
        " user's when not set (dashboard)",
        default=None,
    )
    history: int = about("how many runs are remembered; 0 remembers none (pipeline)", default=200)
    history_dir: Path = about(
        "folder for the history of runs and their small pictures (pipeline)",
        default_factory=lambda: default_history_dir({}),
    )
    report_s: float = about(
        "seconds that Memory Report may search for what holds tensors (nodes)", default=1.5
    )
    debug: bool = about("show Python tracebacks for errors (command line)", default=False)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **options: Any) -> Config:
        """Settings from `options` (None means not given), then `environ`, then defaults.

        Raises BadInput that names the variable or option whose value cannot be used.
        """
        environ = os.environ if environ is None else environ
        known = set(_hints(cls))
        unknown = sorted(set(options) - known)
        if unknown:
            raise BadInput(
                f"unknown setting {unknown[0]!r}", expected=f"one of {', '.join(sorted(known))}"
            )
        values: dict[str, Any] = {
            "cache_dir": default_cache_dir(environ),
            "history_dir": default_history_dir(environ),
        }
        for name, hint in _hints(cls).items():
            variable = variable_for(name)
            if options.get(name) is not None:
                values[name] = _convert(hint, options[name], name)
            elif environ.get(variable):
                values[name] = _convert(hint, environ[variable], variable)
        return cls(**values)


@functools.cache
def _hints(cls: type[Config]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def variable_for(setting: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + setting.upper()


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """`HOLDFAST_*` variables that no setting has, each with the name probably meant, or None."""
    environ = os.environ if environ is None else environ
    known = [variable_for(name) for name in _hints(Config)]
    unknown = sorted(n for n in environ if n.startswith(PREFIX) and n not in known)
    return {n: next(iter(difflib.get_close_matches(n, known, n=1)), None) for n in unknown}


def _convert(hint: Any, value: Any, source: str) -> Any:
    wanted = next((a for a in typing.get_args(hint) if a is not type(None)), hint)
    if typing.get_origin(wanted) is tuple:
        wanted = tuple
    convert, expected = _CONVERTERS[wanted]
    try:
        return convert(value)
    except (TypeError, ValueError, LookupError, RuntimeError) as exc:  # the last for "~nobody/x"
        raise BadInput(f"cannot use {source}={value!r}", expected=expected) from exc


_BOOLEANS: dict[str, bool] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _seconds(value: Any) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError(value)
    return number


def _count(value: Any) -> int:
    number = int(str(value))
    if number < 0:
        raise ValueError(value)
    return number


def _names(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    names = tuple(str(part).strip() for part in parts if str(part).strip())
    if not names:
        raise ValueError(value)
    return names


_CONVERTERS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    str: (str, "text"),
    bool: (
        lambda value: _BOOLEANS[str(value).strip().lower()],
        "1, true, yes, on, 0, false, no or off",
    ),
    int: (_count, "an integer, 0 or more"),
    float: (_seconds, "a number above 0"),
    tuple: (_names, "names separated by commas"),
    Path: (lambda value: Path(value).expanduser(), "a path"),
}

"""Runs a Python program as `python` would, and records what it does to memory.

The recording is written when the program ends, fails or is stopped by Ctrl-C, and its exit status
is kept. A program that is killed or leaves by `os._exit`, and a process that it forked, leave none.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import threading
import types
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.base.errors import BadInput
from holdfast.memory.profile.recorder import DEFAULT_SOURCES, Recorder

INTERRUPTED = 130  # the status of a program that Ctrl-C ended


def run_script(
    argv: list[str],
    module: bool,
    out: Path,
    depth: int = 16,
    sources: Iterable[str] = DEFAULT_SOURCES,
) -> int:
    """Run `argv[0]`, a script or a module, with its arguments; write the recording to `out`.

    Returns the exit status. An error of the program is trimmed as Python shows it. Raises BadInput
    if there is no such script or module.
    """

    if not module and not Path(argv[0]).exists():
        raise BadInput(f"there is no file {argv[0]!r}", expected="a Python script")
    pid = os.getpid()
    recorder = Recorder(sources, depth, " ".join(argv))
    before = sys.argv, sys.path[:]
    main = sys.modules["__main__"]
    kept: Any = None
    recorder.start()
    try:
        sys.argv = list(argv)
        status, kept = _run_for_status(argv[0], module)
    finally:
        sys.argv, sys.path[:] = before
        sys.modules["__main__"] = main
        recording = recorder.stop()  # before `kept` is freed: the program's variables count
        del kept
    if os.getpid() == pid:
        recording.save(out)
    return status


def _run_for_status(name: str, module: bool) -> tuple[int, Any]:
    """The exit status, and an object that keeps the program's variables alive."""
    try:
        kept = _run(name, module)
        for thread in threading.enumerate():  # as Python does when it ends
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    except SystemExit as exc:
        return _status_of(exc), exc
    except KeyboardInterrupt as exc:
        _show(exc)
        return INTERRUPTED, exc
    except BaseException as exc:
        # runpy reports by an ImportError that there was no module to run
        if module and isinstance(exc, ImportError) and _program_part(exc.__traceback__) is None:
            raise BadInput(f"cannot run the module {name!r}: {exc}", expected="a module") from exc
        _show(exc)
        return 1, exc
    return 0, kept


def _run(name: str, module: bool) -> Any:
    if module:
        sys.path[0] = str(Path.cwd())
        return runpy.run_module(name, run_name="__main__", alter_sys=True)
    sys.path[0] = str(Path(name).resolve().parent)
    if not Path(name).is_file() or zipfile.is_zipfile(name):  # with a __main__.py inside
        return runpy.run_path(name, run_name="__main__")
    # Not by runpy: it removes the program's module while threads of it may still run.
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=str(Path(name).absolute()), __builtins__=builtins)
    sys.modules["__main__"] = main
    exec(compile(Path(name).read_bytes(), name, "exec"), main.__dict__)
    return main


def _status_of(exc: SystemExit) -> int:
    if exc.code is None:
        return 0
    if isinstance(exc.code, int):
        return exc.code & 0xFF
    sys.stderr.write(f"{exc.code}\n")
    return 1


def _show(exc: BaseException) -> None:
    trimmed = exc.with_traceback(_program_part(exc.__traceback__))
    sys.excepthook(type(exc), trimmed, trimmed.__traceback__)


def _program_part(traceback: TracebackType | None) -> TracebackType | None:
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while traceback is not None and traceback.tb_frame.f_code.co_filename in ours:
        traceback = traceback.tb_next
    return traceback

"""Calls a function in a child process, for code that uses vendor libraries.

A driver that crashes ends only the child, one that hangs is killed after the time limit, and no
device context stays in the caller. The answer comes in a file, because drivers print to standard
output. A HoldfastError is raised here with its class and parts. No process and no file outlives the
call, also after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from holdfast.base import errors
from holdfast.base.announce import never_offer


class Children(contextlib.AbstractContextManager["Children"]):
    """Calls in child processes; leaving the block kills those that still run."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self._lock = threading.Lock()

    def call(self, target: str, arguments: list[Any], *, timeout_s: float) -> Any:
        """See `call` below. May be used from several threads at once."""
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            answer = Path(folder) / "answer.json"
            child = self._start([target, json.dumps(arguments), str(answer)])
            try:
                _, stderr = child.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as exc:
                raise errors.OutOfTime(
                    f"no answer from a child process within {timeout_s:g} s",
                    expected="a driver that answers",
                    hint="a longer HOLDFAST_PROBE_TIMEOUT_S, or look for a driver that hangs",
                ) from exc
            finally:
                self._end(child)
            if not answer.exists():
                raise _crash(child.returncode, stderr.decode(errors="replace"))
            told = json.loads(answer.read_text())
            if "error" in told:
                cls = getattr(errors, told["error"]["class"], errors.Unsupported)
                raise cls(**told["error"]["parts"])
            return told["result"]

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise errors.Unsupported("cannot start a call: the block has ended")
            child = subprocess.Popen(
                [sys.executable, "-m", __name__, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            self._running.add(child)
            return child

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(child)
        child.kill()  # does nothing if it has ended
        child.wait()
        if child.stderr is not None:
            child.stderr.close()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            for child in self._running:
                child.kill()


def call(target: str, arguments: list[Any], *, timeout_s: float) -> Any:
    """Call "module:function" with JSON values. Raises OutOfTime, or Unsupported if it crashed."""
    with Children() as children:
        return children.call(target, arguments, timeout_s=timeout_s)


def _crash(code: int, stderr: str) -> errors.Unsupported:
    how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
    last = stderr.strip().splitlines()[-1:] or ["nothing on standard error"]
    return errors.Unsupported(
        f"its process {how}: {last[0]}", expected="a driver that answers without crashing"
    )


def _main(target: str, arguments: str, answer: str) -> None:
    never_offer()
    module, _, function = target.partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(*json.loads(arguments))
        text = json.dumps({"result": result})
    except errors.HoldfastError as exc:
        parts = {"what": exc.what, "expected": exc.expected, "hint": exc.hint}
        text = json.dumps({"error": {"class": type(exc).__name__, "parts": parts}})
    except Exception as exc:  # noqa: BLE001  a vendor's library can raise anything
        parts = {"what": f"{type(exc).__name__}: {exc}"}
        text = json.dumps({"error": {"class": "Unsupported", "parts": parts}})
    Path(answer).write_text(text)


if __name__ == "__main__":
    _main(*sys.argv[1:])

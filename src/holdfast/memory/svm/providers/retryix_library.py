"""Loads and calls a vendor's library with the C functions of `retryix.h`.

Calls into one library are serialized. Each string is freed once, whatever it contains; no memory is
freed twice; Ctrl-C during a call loses nothing that the call returned.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from ctypes import c_int, c_size_t, c_void_p
from itertools import starmap
from pathlib import Path
from typing import Any

from holdfast.base.errors import Absent, Unsupported

TOPOLOGY = "retryix_discover_svm_topology_json"
ALLOC = "retryix_svm_alloc_topology_aware"
FREE = "retryix_svm_free"
AFFINITY = "retryix_set_workload_topology_affinity"
STATISTICS = "retryix_svm_get_statistics"
METRICS = "retryix_svm_get_topology_metrics"
MIGRATE = "retryix_svm_migrate_between_domains"
FREE_STRING = "retryix_free_string"

# Strings are c_void_p too: ctypes would copy a c_char_p, and lose the pointer to free.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    TOPOLOGY: (c_void_p, []),
    ALLOC: (c_void_p, [c_size_t, c_int]),
    FREE: (c_int, [c_void_p]),
    AFFINITY: (c_int, [c_void_p, c_int]),
    STATISTICS: (c_void_p, []),
    METRICS: (c_void_p, [c_void_p]),
    MIGRATE: (c_int, [c_void_p, c_size_t, c_int, c_int]),
}
NOWHERE = -1  # the domain that resets the affinity
_QUOTED = 60  # characters of a bad answer in an error

_opening = threading.Lock()
_opened: dict[int, Library] = {}  # by the loader's handle, the same for the same file


class Library:
    """One loaded library. `open_library` makes it, once for each file."""

    def __init__(self, path: Path, functions: ctypes.CDLL) -> None:
        self.path = path
        # Reentrant: the garbage collector may run inside and free memory.
        self.lock = threading.RLock()
        self.remarks: list[str] = []
        self._held: dict[int, int] = {}  # bytes by address
        self._bound: dict[object, tuple[int, int]] = {}  # address and domain by grant
        self._functions = {name: getattr(functions, name) for name in SIGNATURES}
        for name, (result, arguments) in SIGNATURES.items():
            self._functions[name].restype = result
            self._functions[name].argtypes = arguments
        self._free_string = _free_of(functions)

    # ---- JSON

    def document(self, function: str, *arguments: int | None) -> dict[str, Any]:
        """Call a function that returns a JSON object. Raises Unsupported with its name."""
        raw = self._text(function, *arguments)
        if raw is None:
            raise Unsupported(
                f"{self.describe(function)} returned NULL", expected="a text with a JSON object"
            )
        return self._parse(function, raw)

    def document_or_none(self, function: str, *arguments: int | None) -> dict[str, Any] | None:
        """Like `document`, but None if the function returned NULL."""
        raw = self._text(function, *arguments)
        return None if raw is None else self._parse(function, raw)

    def describe(self, function: str) -> str:
        """Name a function and its file, for an error text."""
        return f"{function}() of {self.path}"

    def _text(self, function: str, *arguments: int | None) -> bytes | None:
        found: list[int | None] = []
        with self.lock:
            try:
                self._call(found, function, *arguments)
                return ctypes.string_at(found[0]) if found[0] else None
            finally:
                if found and found[0]:
                    self._free_string(found[0])

    def _parse(self, function: str, raw: bytes) -> dict[str, Any]:
        try:
            document = json.loads(raw.decode())
        except UnicodeDecodeError as exc:
            what = f"byte {raw[exc.start]:#04x} at {exc.start} is not UTF-8"
        except json.JSONDecodeError as exc:
            what = f"{exc.msg}: character {exc.pos}"
        except RecursionError:
            what = "nested too deeply"
        except ValueError:
            what = "a number with thousands of digits"
        else:
            if isinstance(document, dict):
                return document
            what = "no object"
        raise Unsupported(
            f"{self.describe(function)} returned a text that cannot be used: {what}",
            expected="a JSON object in UTF-8",
            hint=f"report it to the library's vendor; the text begins with {_beginning(raw)}",
        )

    # ---- memory

    def obtain(self, found: list[int], size: int, domain: int) -> None:
        """Have the library allocate, and append the address to `found`, even if Ctrl-C is raised.

        Nothing is appended if the library returned NULL, or memory that overlaps other memory of
        it; the latter raises Unsupported.
        """
        returned: list[int | None] = []
        with self.lock:
            try:
                self._call(returned, ALLOC, size, domain)
            finally:
                address = returned[0] if returned else None
                twin = self._overlapping(address, size) if address else None
                if address and twin is None:
                    self._held[address] = size
                    found.append(address)
        if address and twin is not None:  # not freed: the other one would go
            raise Unsupported(
                f"{self.describe(ALLOC)} returned {address:#x} for {size} bytes, while the "
                f"{self._held.get(twin, 0)} bytes it returned at {twin:#x} were not freed",
                expected="memory that overlaps no other",
                hint="report it to the library's vendor; both would write to the same bytes",
            )

    def release(self, held: list[int], codes: list[int]) -> None:
        """Have the library free the memory at `held[0]`, and clear `held`.

        `codes` gets what the library returned. After Ctrl-C, call it again with both lists: nothing
        is freed twice, even if the address was reused. Raises Unsupported if the library fails to
        free it; then the memory is still there.
        """
        with self.lock:
            if not held:
                return
            [address] = held
            if codes != [0]:
                codes.clear()
                self._call(codes, FREE, address)
            if codes == [0]:
                self._held.pop(address, None)
                held.clear()
                return
        raise Unsupported(
            f"the memory at {address:#x} was not freed: {self.describe(FREE)} "
            f"returned {error(codes[0])}",
            expected="0",
            hint="free it again; until then it is allocated and counted",
        )

    def migrate(self, codes: list[int], address: int, size: int, source: int, target: int) -> None:
        """Have the library move memory, and append what it returned to `codes`."""
        with self.lock:
            self._call(codes, MIGRATE, address, size, source, target)

    def _overlapping(self, address: int, size: int) -> int | None:
        if address in self._held:
            return address
        end = address + size
        return next((a for a, s in self._held.items() if a < end and address < a + s), None)

    # ---- affinity: the library has one at a time

    def bind(self, who: object, address: int, domain: int) -> None:
        """Run the work next to a domain, until `unbind(who)` or a later `bind`.

        Raises Unsupported if the library refuses.
        """
        codes: list[int] = []
        with self.lock:
            try:
                self._call(codes, AFFINITY, address, domain)
            finally:
                if codes == [0]:
                    self._bound[who] = address, domain
        if codes != [0]:
            raise Unsupported(
                f"the work cannot run next to domain {domain}: {self.describe(AFFINITY)} "
                f"returned {error(codes[0])}",
                expected="0",
                hint="allocate without set_affinity",
            )

    def unbind(self, who: object) -> None:
        """Drop the affinity of `who`: the latest of the others applies. An error is a remark."""
        codes: list[int] = []
        with self.lock:
            if self._bound.pop(who, None) is None:
                return
            # Memory may be freed before its affinity is dropped.
            others = [wish for wish in self._bound.values() if wish[0] in self._held]
            address, domain = others[-1] if others else (None, NOWHERE)
            self._call(codes, AFFINITY, address, domain)
            if codes != [0]:
                remark = f"an affinity was not reset: {AFFINITY}() returned {error(codes[0])}"
                self.remarks += [remark] if remark not in self.remarks else []

    def _call(self, results: list[Any], function: str, *arguments: int | None) -> None:
        """Call a function and store its result in one C call: after Ctrl-C during a long call,
        Python would raise before an assignment.
        """
        results.extend(starmap(self._functions[function], [arguments]))


def open_library(path: Path) -> Library:
    """Load a library. Raises Absent if there is no file, Unsupported if it cannot be used."""
    if not path.is_file():
        raise Absent(
            f"there is no file {path}",
            expected="the shared library of the provider 'retryix'",
            hint="HOLDFAST_RETRYIX_LIBRARY, or --library, names it",
        )
    with _opening:
        try:
            functions = ctypes.CDLL(str(path.resolve()))
        except OSError as exc:
            raise Unsupported(
                f"cannot load {path}: {str(exc).removeprefix(f'{path.resolve()}: ')}",
                expected="a shared library for this machine",
            ) from exc
        missing = [name for name in SIGNATURES if not hasattr(functions, name)]
        if missing:
            raise Unsupported(
                f"{path} lacks {', '.join(missing)}",
                expected="a library with the seven functions of retryix.h",
            )
        return _opened.setdefault(functions._handle, Library(path, functions))


def error(code: int) -> str:
    meaning = os.strerror(-code) if code < 0 else "neither 0 nor a negative errno"
    return f"{code} ({meaning})"


def _free_of(functions: ctypes.CDLL) -> Any:
    if hasattr(functions, FREE_STRING):
        free = getattr(functions, FREE_STRING)
    else:
        free = ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None).free
    free.restype, free.argtypes = None, [c_void_p]
    return free


def _beginning(raw: bytes) -> str:
    text = raw[: 4 * _QUOTED].decode(errors="backslashreplace")
    return repr(text[:_QUOTED]) + ("..." if len(text) > _QUOTED else "")

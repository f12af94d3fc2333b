"""The `retryix` provider: shared virtual memory of a vendor's library, through `retryix.h`.

Covers: what the library's answers mean, and answers that mean nothing.
Leaves to others: calling it (retryix_library), where memory belongs (placement).
Promise: where memory lies is what the library says, and is never called verified; an answer that
cannot be used is an error that names the function and the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeGuard

from holdfast.base.codec import decode
from holdfast.base.config import Config
from holdfast.base.errors import Absent, BadInput, OutOfMemory, Unsupported, UseAfterFree
from holdfast.base.units import format_bytes
from holdfast.memory.svm import affinity
from holdfast.memory.svm.allocation import Allocation
from holdfast.memory.svm.interface import Provider
from holdfast.memory.svm.model import (
    PAGE_BYTES,
    Chunk,
    Domain,
    Layout,
    Metrics,
    Placement,
    Statistics,
    Where,
)
from holdfast.memory.svm.retryix_library import (
    METRICS,
    STATISTICS,
    TOPOLOGY,
    Library,
    error,
    open_library,
)

SAID = "as the library says"
PLACED = "where it was put; the library does not say"
STAYED = "the library says that they are where they were"
_LARGEST_INT = 2**31 - 1  # of C
_FIELDS = {field.name for field in dataclasses.fields(Domain)}


class RetryixProvider(Provider):
    """Memory of the library that `library`, or the setting `retryix_library`, names."""

    name = "retryix"

    def __init__(self, config: Config | None = None, *, library: str | Path | None = None) -> None:
        super().__init__(config)
        path = library or self.config.retryix_library
        if path is None:
            raise Absent(
                "no library is named for the provider 'retryix'",
                expected="a shared library with the functions that retryix.h states",
                hint="set HOLDFAST_RETRYIX_LIBRARY to its path",
            )
        self.library = open_library(Path(path).expanduser())
        self.discover()  # a library that cannot even tell its domains is passed over

    def discover(self, refresh: bool = False) -> Layout:
        """The library's domains; it is asked every time."""
        document = self.library.document(TOPOLOGY)
        return Layout(
            provider=self.name,
            domains=_domains(document, self.library),
            remarks=tuple(self.library.remarks),
            document=document,
        )

    def _obtain(self, size: int, placement: Placement) -> RetryixBacking:
        first, *more = placement.domains
        if more:
            raise Unsupported(
                "memory of 'retryix' cannot be spread over several domains",
                expected="one domain, which is what the library takes",
                hint=f"domain={first}, or a smaller size",
            )
        backing = RetryixBacking(self.library, size, first)
        try:
            backing.obtain()
        except BaseException:
            backing.close()
            raise
        return backing

    def set_affinity(self, handle: Allocation) -> affinity.Grant | None:
        """Have the library run the work beside the memory until it is freed.

        Raises Unsupported where the library refuses.
        """
        record = self.ledger.record(handle)
        with record.lock:
            self.ledger.record(handle)  # another thread may have given it back
            backing = record.backing
            if record.grant is None and isinstance(backing, RetryixBacking):
                grant = LibraryGrant(self.library, record.placement.cpus)
                record.grant = grant  # before the call: Ctrl-C may come out of it
                try:
                    self.library.bind(grant, backing.address, backing.domain)
                except Unsupported:
                    record.grant = None
                    raise
            return record.grant

    def statistics(self) -> Statistics:
        """What was handed out, taken back and moved; `document` is what the library counts."""
        return dataclasses.replace(super().statistics(), document=self.library.document(STATISTICS))

    def metrics(self, handle: Allocation | None = None) -> Metrics:
        """How the memory lies; `document` is what the library says about it."""
        found = super().metrics(handle)
        if handle is None:
            return dataclasses.replace(found, document=self.library.document(METRICS, None))
        record = self.ledger.record(handle)
        with record.lock:
            self.ledger.record(handle)  # the library must not be asked about freed memory
            document = self.library.document(METRICS, handle.address)
        return dataclasses.replace(found, document=document)


class LibraryGrant(affinity.Grant):
    """That the work runs beside some memory of a library, until it is given back."""

    def __init__(self, library: Library, cpus: Iterable[int]) -> None:
        super().__init__(frozenset(cpus), None)  # how many threads, the library does not say
        self._library = library

    def give_back(self) -> None:
        """It is not wanted any more. A second time does nothing."""
        self._library.unbind(self)


class RetryixBacking:
    """One allocation of a library."""

    moves_under_views = False  # retryix.h promises a library that nobody looks
    moves_whole = True

    def __init__(self, library: Library, size: int, domain: int) -> None:
        self.address = 0
        self._held: list[int] = []  # its address, while the library has it handed out
        self._freed: list[int] = []  # what the library returned when it freed it
        self.domain = domain  # where it was put, or moved to
        self._library = library
        self._size = size
        self._pages = -(-size // PAGE_BYTES)

    def obtain(self) -> None:
        """Have the library allocate. Raises OutOfMemory, and Unsupported for memory of others."""
        self._library.obtain(self._held, self._size, self.domain)
        self.address = next(iter(self._held), 0)
        if not self._held:
            raise OutOfMemory(
                f"{self._library.path} has no {format_bytes(self._size)} on domain {self.domain}",
                expected="that much memory there",
                hint="a smaller size, another domain, or freeing something first",
            )

    def map(self) -> None:
        """The host always sees it, as long as it is there."""
        self._check()

    def unmap(self) -> None:
        """Nothing to do."""

    def where(self) -> Where:
        """What the library says, else the domain it was asked for."""
        self._check()
        document = self._library.document_or_none(METRICS, self.address) or {}
        pages = _pages(document, self._pages, self._library)
        if pages is None:
            return Where(pages={self.domain: self._pages}, method=PLACED)
        return Where(pages=pages, method=SAID)

    def move(self, offset: int, length: int, source: int, target: int) -> Chunk:
        """Have the library move it."""
        before = self.where()
        count = before.pages.get(source, 0)
        elsewhere = before.total - count
        if not count:
            return Chunk(elsewhere=elsewhere)
        code = self._have_moved(source, target, whole=not elsewhere)
        if code:
            return Chunk(
                elsewhere=elsewhere, not_moved={f"the library returned {error(code)}": count}
            )
        left = min(count, self.where().pages.get(source, 0))
        return Chunk(
            moved=count - left, elsewhere=elsewhere, not_moved={STAYED: left} if left else {}
        )

    def _have_moved(self, source: int, target: int, *, whole: bool) -> int:
        codes: list[int] = []
        try:
            self._library.migrate(codes, self.address, self._size, source, target)
        finally:
            if codes == [0] and whole:
                self.domain = target
        return codes[0]

    def moved(self, target: int) -> None:
        """Nothing to do: the library knows."""

    def close(self) -> None:
        """Have the library free it. Raises Unsupported where it does not."""
        self._library.release(self._held, self._freed)

    def _check(self) -> None:
        # Ctrl-C while the library frees memory comes out when the memory is gone.
        if not self._held:
            raise UseAfterFree(
                f"the memory at {self.address:#x} was given back and cannot be used",
                expected="an allocation that was not given back yet",
                hint="allocate again; what was in it is gone",
            )


# ---- what a library says


def _domains(document: dict[str, Any], library: Library) -> tuple[Domain, ...]:
    listed = document.get("domains")
    try:
        if not isinstance(listed, list) or not listed:
            raise BadInput("it lists no domains", expected='a list under "domains"')
        domains = tuple(_domain(entry, f"domains[{i}]") for i, entry in enumerate(listed))
        _check_unique(domains)
    except BadInput as exc:
        raise Unsupported(
            f"{library.called(TOPOLOGY)} describes what cannot be used: {exc.what}",
            expected=exc.expected,
            hint="tell who made the library; retryix.h states what it returns",
        ) from exc
    return domains


def _domain(entry: Any, path: str) -> Domain:
    """One domain; null is the same as nothing, and what is not read here is left alone."""
    if isinstance(entry, dict):
        entry = {k: v for k, v in entry.items() if k in _FIELDS and v is not None}
        entry.setdefault("name", f"domain:{entry.get('id')}")
    domain = decode(Domain, entry, path)
    if domain.id > _LARGEST_INT:
        raise BadInput(f"{path}.id is {domain.id}", expected=f"at most {_LARGEST_INT}")
    figures = {
        "id": domain.id,
        "total_bytes": domain.total_bytes,
        "free_bytes": domain.free_bytes,
        "cpus": min(domain.cpus, default=0),
    }
    for name, value in figures.items():
        if value is not None and value < 0:
            raise BadInput(f"{path}.{name} has {value}", expected="no negative numbers")
    return domain


def _check_unique(domains: tuple[Domain, ...]) -> None:
    seen: set[int] = set()
    for i, domain in enumerate(domains):
        if domain.id in seen:
            raise BadInput(f"domains[{i}].id is {domain.id} again", expected="each id once")
        seen.add(domain.id)


def _pages(document: dict[str, Any], count: int, library: Library) -> dict[int, int] | None:
    """Pages by domain out of the metrics of an allocation; None where they are not in there."""
    pages, domain = document.get("pages"), document.get("domain")
    if pages is None and domain is None:
        return None
    if pages is None and _is_count(domain):
        return {domain: count}
    if isinstance(pages, dict) and all(
        k.isascii() and k.isdigit() and _is_count(v) for k, v in pages.items()
    ):
        return {int(k): v for k, v in sorted(pages.items(), key=lambda item: int(item[0])) if v}
    said = f'"pages": {pages!r}' if pages is not None else f'"domain": {domain!r}'
    raise Unsupported(
        f"{library.called(METRICS)} says {said[:80]}",
        expected='"pages": {"0": 12}, or "domain": 0, with numbers from 0 on',
        hint="tell who made the library; retryix.h states what it returns",
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

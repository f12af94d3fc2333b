"""The `retryix` provider: shared virtual memory of a vendor's library with the API of `retryix.h`.

Pages are where the library reports them, never marked as verified. A bad answer raises an error
that names the function and the file.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeGuard, cast

from holdfast.base.codec import decode
from holdfast.base.config import Config
from holdfast.base.errors import Absent, BadInput, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.svm import affinity
from holdfast.memory.svm.interface import Allocation, Provider
from holdfast.memory.svm.ledger import Backing, Record, freed_error
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
from holdfast.memory.svm.providers.retryix_library import (
    METRICS,
    STATISTICS,
    TOPOLOGY,
    Library,
    error,
    open_library,
)

REPORTED = "as the library reports"
PLACED = "where it was placed; the library does not report it"
STAYED = "the library reports them where they were"
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
                expected="a shared library with the functions of retryix.h",
                hint="set HOLDFAST_RETRYIX_LIBRARY to its path",
            )
        self.library = open_library(Path(path).expanduser())
        self.discover()  # raises if the library cannot list its domains

    def discover(self, refresh: bool = False) -> Layout:
        """The domains, which the library lists anew every time."""
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
        return RetryixBacking(self.library, size, first)

    def _prepare(self, backing: RetryixBacking, size: int, placement: Placement) -> None:
        backing.obtain()

    def _grant(self, record: Record) -> affinity.Grant:
        return LibraryGrant(self.library, record)

    def statistics(self) -> Statistics:
        """What was allocated, freed and migrated; `document` has the library's own counters."""
        return dataclasses.replace(super().statistics(), document=self.library.document(STATISTICS))

    def metrics(self, handle: Allocation | None = None) -> Metrics:
        """Local and remote pages; `document` has the library's own metrics."""
        found = super().metrics(handle)
        if handle is None:
            return dataclasses.replace(found, document=self.library.document(METRICS, None))
        record = self.ledger.record(handle)
        with record.lock:
            self.ledger.record(handle)  # the library must not be asked about freed memory
            document = self.library.document(METRICS, handle.address)
        return dataclasses.replace(found, document=document)


class LibraryGrant(affinity.Grant):
    """An affinity that the library sets; `bind` raises Unsupported if it refuses."""

    def __init__(self, library: Library, record: Record) -> None:
        super().__init__(record.placement.cpus, None)  # the library does not report threads
        self._library, self._backing = library, cast("RetryixBacking", record.backing)

    def bind(self) -> None:
        self._library.bind(self, self._backing.address, self._backing.domain)

    def release(self) -> None:
        self._library.unbind(self)


class RetryixBacking(Backing):
    """One allocation of a library."""

    moves_under_views = False  # retryix.h: nobody accesses the memory meanwhile
    moves_whole = True

    def __init__(self, library: Library, size: int, domain: int) -> None:
        self.address = 0
        self._held: list[int] = []  # its address, while it is allocated
        self._freed: list[int] = []  # what the library returned on freeing
        self.domain = domain  # where it was placed or moved
        self._library = library
        self._size = size
        self._pages = -(-size // PAGE_BYTES)

    def obtain(self) -> None:
        """Have the library allocate. Raises OutOfMemory, or Unsupported for overlapping memory."""
        self._library.obtain(self._held, self._size, self.domain)
        self.address = next(iter(self._held), 0)
        if not self._held:
            raise OutOfMemory(
                f"{self._library.path} has no {format_bytes(self._size)} on domain {self.domain}",
                expected="that much memory there",
                hint="a smaller size, another domain, or freeing something first",
            )

    def map(self) -> None:
        """Nothing to map; raises UseAfterFree if it is gone."""
        self._check()

    def where(self) -> Where:
        """What the library reports, else the domain it was placed in."""
        self._check()
        document = self._library.document_or_none(METRICS, self.address) or {}
        pages = _pages(document, self._pages, self._library)
        if pages is None:
            return Where(pages={self.domain: self._pages}, method=PLACED)
        return Where(pages=pages, method=REPORTED)

    def move(self, offset: int, length: int, source: int, target: int) -> Chunk:
        before = self.where()
        count = before.pages.get(source, 0)
        elsewhere = before.total - count
        if not count:
            return Chunk(elsewhere=elsewhere)
        code = self._call_migrate(source, target, whole=not elsewhere)
        if code:
            return Chunk(
                elsewhere=elsewhere, not_moved={f"the library returned {error(code)}": count}
            )
        left = min(count, self.where().pages.get(source, 0))
        return Chunk(
            moved=count - left, elsewhere=elsewhere, not_moved={STAYED: left} if left else {}
        )

    def _call_migrate(self, source: int, target: int, *, whole: bool) -> int:
        codes: list[int] = []
        try:
            self._library.migrate(codes, self.address, self._size, source, target)
        finally:
            if codes == [0] and whole:
                self.domain = target
        return codes[0]

    def close(self) -> None:
        """Have the library free it. Raises Unsupported if that fails."""
        self._library.release(self._held, self._freed)

    def _check(self) -> None:
        # Ctrl-C while the library frees memory is raised after the memory is gone.
        if not self._held:
            raise freed_error(f"the memory at {self.address:#x}", freeing=False)


def _domains(document: dict[str, Any], library: Library) -> tuple[Domain, ...]:
    listed = document.get("domains")
    try:
        if not isinstance(listed, list) or not listed:
            raise BadInput("it lists no domains", expected='a list under "domains"')
        domains = tuple(_domain(entry, f"domains[{i}]") for i, entry in enumerate(listed))
        ids = [domain.id for domain in domains]
        again = next((i for i, one in enumerate(ids) if one in ids[:i]), None)
        if again is not None:
            raise BadInput(f"domains[{again}].id is {ids[again]} again", expected="each id once")
    except BadInput as exc:
        raise Unsupported(
            f"{library.describe(TOPOLOGY)} returned a bad topology: {exc.what}",
            expected=exc.expected,
            hint="report it to the library's vendor; retryix.h states what it returns",
        ) from exc
    return domains


def _domain(entry: Any, path: str) -> Domain:
    """Decode one domain; null counts as missing, unknown fields are ignored."""
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


def _pages(document: dict[str, Any], count: int, library: Library) -> dict[int, int] | None:
    """Pages by domain from the metrics of an allocation; None if they have none."""
    pages, domain = document.get("pages"), document.get("domain")
    if pages is None and domain is None:
        return None
    if pages is None and _is_count(domain):
        return {domain: count}
    if isinstance(pages, dict) and all(
        k.isascii() and k.isdigit() and _is_count(v) for k, v in pages.items()
    ):
        return {int(k): v for k, v in sorted(pages.items(), key=lambda item: int(item[0])) if v}
    answer = f'"pages": {pages!r}' if pages is not None else f'"domain": {domain!r}'
    raise Unsupported(
        f"{library.describe(METRICS)} returned {answer[:80]}",
        expected='"pages": {"0": 12}, or "domain": 0, with integers from 0 on',
        hint="report it to the library's vendor; retryix.h states what it returns",
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

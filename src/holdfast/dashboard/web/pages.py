"""Static files of the page.

Names are looked up in a list of the files, so nothing outside of the folder is served.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from holdfast.dashboard.web.refusals import NoSuchPage

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".woff2": "font/woff2",
}


class _Kept(NamedTuple):
    stamp: tuple[int, int]
    tag: str
    data: bytes


class Pages:
    """Files of a folder, read again when they change."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._kept: dict[str, _Kept] = {}

    def answer(self, request: web.Request, name: str) -> web.Response:
        """Serve a file; 304 if the browser has it. Raises NoSuchPage."""
        kept = self._file(name)
        headers = {"ETag": kept.tag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == kept.tag:
            return web.Response(status=304, headers=headers)
        kind = TYPES[Path(name).suffix]
        charset = None if kind.startswith(("image/png", "font/")) else "utf-8"
        return web.Response(body=kept.data, content_type=kind, charset=charset, headers=headers)

    def names(self) -> dict[str, Path]:
        """What is served, by its path below the folder."""
        files = (path for path in self._folder.rglob("*") if path.suffix in TYPES)
        return {path.relative_to(self._folder).as_posix(): path for path in files if path.is_file()}

    def _file(self, name: str) -> _Kept:
        path = self.names().get(name)
        if path is None:
            raise NoSuchPage(f"there is no page {name[:80]!r}", hint="/")
        seen = path.stat()
        stamp = (seen.st_mtime_ns, seen.st_size)
        kept = self._kept.get(name)
        if kept is None or kept.stamp != stamp:
            data = path.read_bytes()
            kept = _Kept(stamp, f'"{hashlib.sha256(data).hexdigest()[:32]}"', data)
            self._kept[name] = kept
        return kept

"""Rewrites links that work on GitHub for the documentation site.

Changes only targets of links and pictures, and nothing inside code.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTSIDE = "repository"  # the folder of the site for files outside docs/
# Code comes first, so that links inside it are skipped; a label may contain code.
_CODE = r"^```.*?^```[^\n]*$|`[^`\n]+(?:\n[^`\n]+)?`"
_LABEL = r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\("
_LINK = re.compile(
    rf"{_CODE}|(?P<label>{_LABEL})(?P<link>[^)\s]+)(?P<end>(?:\s+\"[^\"]*\")?\))",
    re.DOTALL | re.MULTILINE,
)


def source_of(uri: str) -> str:
    """The file of the repository that a page of the site shows."""
    inside = posixpath.relpath(uri, OUTSIDE)
    return posixpath.join("docs", uri) if inside.startswith("..") else inside


def uri_of(source: str) -> str:
    """The address of a file of the repository on the site."""
    inside = posixpath.relpath(source, "docs")
    return posixpath.join(OUTSIDE, source) if inside.startswith("..") else inside


def targets(source: str, text: str) -> Iterator[str]:
    """Files of the repository that the page `source` links to."""
    for match in _LINK.finditer(text):
        target = _resolve(source, match["link"])
        if target is not None:
            yield target


def rewrite(uri: str, text: str) -> str:
    """The text of the page at `uri` with links for the site."""
    source = source_of(uri)

    def replace(match: re.Match[str]) -> str:
        target = _resolve(source, match["link"])
        if target is None:
            return match[0]
        _, mark, anchor = match["link"].partition("#")
        link = posixpath.relpath(uri_of(target), posixpath.dirname(uri))
        return f"{match['label']}{link}{mark}{anchor}{match['end']}"

    return _LINK.sub(replace, text)


def outside_docs(pages: Iterable[str]) -> dict[str, Path]:
    """Files outside docs/ that `pages` link to, directly or indirectly: uri -> file."""
    found: dict[str, Path] = {}
    waiting = list(pages)
    while waiting:
        source = waiting.pop()
        for target in targets(source, (ROOT / source).read_text(encoding="utf-8")):
            if target.startswith("docs/") or uri_of(target) in found:
                continue
            found[uri_of(target)] = ROOT / target
            if target.endswith(".md"):
                waiting.append(target)
    return found


def _resolve(source: str, link: str | None) -> str | None:
    """The file of the repository that a link points to; None for other hosts and for anchors."""
    if link is None:  # code
        return None
    path, _, _ = link.partition("#")
    if not path or "://" in link or link.startswith(("mailto:", "/")):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if (ROOT / target).is_dir():
        target = posixpath.join(target, "README.md")
    return target if (ROOT / target).is_file() else None

"""Links that are right on GitHub, made right on the documentation site.

Covers: where a file of the repository is on the site, the links of a page rewritten for it, the
files outside docs/ that pages lead to.  Leaves to others: adding those files (docs_hooks).
Promise: only the targets of links and pictures change, and nothing inside code does.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTSIDE = "repository"  # the folder of the site for what lies outside docs/
# Code comes first, so that what looks like a link inside it is passed over; a label may hold code.
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
    """Where a file of the repository is on the site."""
    inside = posixpath.relpath(source, "docs")
    return posixpath.join(OUTSIDE, source) if inside.startswith("..") else inside


def targets(source: str, text: str) -> Iterator[str]:
    """Files of the repository that the page `source` leads to."""
    for match in _LINK.finditer(text):
        target = _resolved(source, match["link"])
        if target is not None:
            yield target


def rewritten(uri: str, text: str) -> str:
    """The text of the page at `uri` with links that are right on the site."""
    source = source_of(uri)

    def changed(match: re.Match[str]) -> str:
        target = _resolved(source, match["link"])
        if target is None:
            return match[0]
        _, mark, anchor = match["link"].partition("#")
        link = posixpath.relpath(uri_of(target), posixpath.dirname(uri))
        return f"{match['label']}{link}{mark}{anchor}{match['end']}"

    return _LINK.sub(changed, text)


def outside_docs(pages: Iterable[str]) -> dict[str, Path]:
    """Files outside docs/ that `pages` lead to, and those that these lead to: uri -> file."""
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


def _resolved(source: str, link: str | None) -> str | None:
    """The file of the repository a link leads to; None for other hosts and for anchors alone."""
    if link is None:  # code
        return None
    path, _, _ = link.partition("#")
    if not path or "://" in link or link.startswith(("mailto:", "/")):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if (ROOT / target).is_dir():
        target = posixpath.join(target, "README.md")
    return target if (ROOT / target).is_file() else None

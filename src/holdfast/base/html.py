"""HTML pages that need no network: the frame, the policy, escaped text, bytes over time.

A page runs only its own scripts and styles. All text in it is data, never markup. `assets/` has
what all pages share (`common.js`) and the charts of `series.Panel` (`timeline.js`, `timeline.css`).
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.codec import encode
from holdfast.base.errors import BadInput
from holdfast.base.files import write_whole
from holdfast.base.series import Panel

ASSETS = Path(__file__).with_name("assets")
_STAGES = {"load": "rest", "text": "c4", "denoise": "c2", "decode": "c3"}  # classes of the style
_OTHER_STAGES = ("c5", "c6", "c7", "c0", "c1")


@dataclass(frozen=True)
class Section:
    """A section that another layer adds to a page.

    `body` is HTML without scripts and without inline styles: the policy allows only the styles and
    scripts of the page, and those given here. Text in it must be escaped.
    """

    name: str
    body: str
    style: str = ""
    script: str = ""


def page(
    title: str, body: str, style: str, script: str = "", sections: Sequence[Section] = ()
) -> str:
    """A whole page. `body` may contain the marker `<!-- sections -->`."""
    styles = list(dict.fromkeys([style, *(one.style for one in sections if one.style)]))
    scripts = list(dict.fromkeys([*(one.script for one in sections if one.script), script]))
    more = "".join(
        f'<section class="more" aria-label="{escape(one.name)}">\n{one.body}\n</section>\n'
        for one in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(styles, scripts)}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        '<meta name="color-scheme" content="light dark"/>\n'
        '<meta name="referrer" content="no-referrer"/>\n<link rel="icon" href="data:,"/>\n'
        f"<title>{escape(title)}</title>\n"
        + "".join(f"<style>{text}</style>\n" for text in styles)
        + f"</head>\n<body>\n{body.replace('<!-- sections -->', more)}\n"
        + "".join(f"<script>{text}</script>\n" for text in scripts if text)
        + "</body>\n</html>\n"
    )


def policy(styles: Iterable[str], scripts: Iterable[str]) -> str:
    """The Content-Security-Policy of a page: these styles and scripts, and nothing else."""
    return (
        f"default-src 'none'; style-src {_hashes(styles)}; script-src {_hashes(scripts)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def escape(value: object) -> str:
    """Text for HTML: escaped, without characters that HTML or UTF-8 cannot hold."""
    sound = str(value).encode("utf-8", "replace").decode()
    return html.escape("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sound))


def read_script(*files: Path) -> str:
    """The script of a page: what all pages share, then these files."""
    return "".join(path.read_text(encoding="utf-8") for path in (ASSETS / "common.js", *files))


def tiles(values: Mapping[str, str]) -> str:
    """Figures with their names below."""
    rows = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in values.items())
    return f'<dl class="tiles">{"".join(rows)}</dl>'


def bar(share: float, look: str = "") -> str:
    """A bar of a table, filled up to `share` of 1."""
    width = 90 * min(max(share, 0.0), 1.0)
    return (
        f'<svg class="bar {look}" width="90" height="8" aria-hidden="true"><rect class="back" '
        f'width="90" height="8" rx="3"/><rect width="{width:.1f}" height="8" rx="3"/></svg>'
    )


def write(path: Path, text: str) -> Path:
    """Write a page atomically. Raises BadInput with the system's reason."""
    try:
        write_whole(path, text)
    except OSError as exc:
        raise BadInput(
            f"cannot write {str(path)!r}: {exc.strerror}", expected="a path in a folder that exists"
        ) from exc
    return path


# ---- bytes over time


def stage_colours(names: Iterable[str]) -> dict[str, str]:
    """The class of the style that colours each stage."""
    others = itertools.cycle(_OTHER_STAGES)
    return {name: _STAGES.get(name) or next(others) for name in dict.fromkeys(names)}


def palette(theme: str) -> dict[str, str]:
    """The colours of these pages by name; `theme` is "light" or "dark"."""
    css = (ASSETS / "timeline.css").read_text(encoding="utf-8")
    light, dark = (dict(re.findall(r"--(\w+): (#\w+)", part)) for part in css.split("}")[:2])
    return {"light": light, "dark": dark}[theme]


def timeline_page(
    title: str,
    panels: Sequence[Panel],
    duration_s: float,
    body: str,
    marks: Sequence[tuple[float, str, int, int | None]] = (),
    sections: Sequence[Section] = (),
) -> str:
    """A page with a chart for each panel in `<main id="app">` of `body`; one axis for all.

    `marks` are steps of stages: time in seconds, stage, steps done, and of how many.
    """
    data: dict[str, Any] = {
        "duration_s": duration_s,
        "panels": encode(tuple(panels)),
        "marks": marks,
        "colours": stage_colours(s.name for panel in panels for s in panel.stages),
    }
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return page(
        title,
        f'{body}\n<div id="tip" hidden="hidden"></div>\n'
        f'<script type="application/json" id="data">{text}</script>',
        (ASSETS / "timeline.css").read_text(encoding="utf-8"),
        read_script(ASSETS / "timeline.js"),
        sections,
    )

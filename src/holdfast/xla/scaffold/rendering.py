"""The files of a pack, made from the templates beside this file. Nothing is written.

A template is the file itself with placeholders such as `$$model`. A line that ends with `#video` or
`#picture` is for one kind of model alone; `#known` is for classes that Holdfast has a port of,
`#new` for all others. An unknown placeholder is an error.
"""

from __future__ import annotations

import importlib.resources
import re
from dataclasses import asdict

from holdfast.xla.port import PORTS
from holdfast.xla.scaffold.classes import defaults_for, draws_videos
from holdfast.xla.scaffold.names import Names

FILES = (
    *("__init__.py", "nodes.py", "port.py", "utils.py", "splash_attention.py"),
    *("test_comfyui_api.py", "README.md", "pyproject.toml"),
)
_KIND = re.compile(r"  #(video|picture|known|new)$")


def render(names: Names, cls: str) -> dict[str, str]:
    """The text of every file of the pack, by its name."""
    base = port_of(cls, names.model)
    kinds = {"video" if draws_videos(cls) else "picture", "known" if base else "new"}
    words = _placeholders(names, cls) | {"base": base or ""}
    folder = importlib.resources.files("holdfast.xla.scaffold") / "templates"
    texts = {file: (folder / f"{file}.template").read_text(encoding="utf-8") for file in FILES}
    return {file: _fill(_select_lines(kinds, text), words) for file, text in texts.items()}


def port_of(cls: str, model: str) -> str | None:
    """The port of Holdfast for a class; of several, the one whose name the model's begins with."""
    fits = [name for name in PORTS if PORTS[name].network == cls]
    word = re.sub("[^a-z0-9]", "", model.lower())
    return next((name for name in fits if word.startswith(name)), fits[0] if fits else None)


def _fill(text: str, words: dict[str, str]) -> str:
    """Longer words first: `$$model_id` is not the model and "_id"."""
    for word in sorted(words, key=len, reverse=True):
        text = text.replace(f"$${word}", words[word])
    if "$$" in text:
        raise LookupError(f"a template has an unknown word: {text[text.index('$$') :][:40]!r}")
    return text


def _select_lines(kinds: set[str], text: str) -> str:
    lines = []
    for line in text.splitlines():
        marked = _KIND.search(line)
        if marked is None:
            lines.append(line)
        elif marked[1] in kinds:
            lines.append(line[: marked.start()])
    return "\n".join(lines) + "\n"


def _placeholders(names: Names, cls: str) -> dict[str, str]:
    first = defaults_for(cls, names.model)
    return {
        "model": names.model,
        "Name": names.prefix,
        "folder": names.folder,
        "port": names.port,
        "project": names.folder.lower().replace("_", "-"),
        "cls": cls,
        **{name: str(value) for name, value in asdict(first).items()},
    }

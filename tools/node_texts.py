"""Writes the texts of the ComfyUI nodes that follow from their classes and locales/.

These are the lists of inputs and outputs in the help pages of web/docs, and the page for languages
without one. Texts in locales/ and the other text of a page are written by hand. Only files that
change are written.

    python -m tools.node_texts                # after a change of a node's inputs, outputs or texts
    python -m tools.node_texts --translated   # when zh and zh-TW are up to date
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.nodes import LOCALES, NODE_CLASS_MAPPINGS, WEB

DOCS = WEB / "docs"
TRANSLATED = Path(__file__).parents[1] / "tests" / "nodes" / "translated.json"
LANGUAGES = ("en", "zh", "zh-TW")
KINDS = ("main", "nodeDefs", "settings", "commands")
MOST_OPTIONS = 8  # longer lists, such as those of files, are left out of a page


class Words(NamedTuple):
    """Headings of a page, and the words of its lists."""

    inputs: str
    outputs: str
    example: str
    wrong: str
    entry: str  # one input or output: {label}, {facts}, {text}
    comma: str
    default: str
    optional: str
    anything: str
    on: str
    off: str


WORDS = {
    "en": Words(
        *("Inputs", "Outputs", "Example", "What can go wrong"),
        *("- {label} ({facts}): {text}", ", ", "default {}"),
        *("optional", "anything", "on", "off"),
    ),
    "zh": Words(
        *("输入", "输出", "示例", "可能遇到的问题"),
        *("- {label}（{facts}）：{text}", "，", "默认 {}"),
        *("可选", "任意类型", "开", "关"),
    ),
    "zh-TW": Words(
        *("輸入", "輸出", "範例", "可能遇到的問題"),
        *("- {label}（{facts}）：{text}", "，", "預設 {}"),
        *("選填", "任意類型", "開", "關"),
    ),
}


class Input(NamedTuple):
    """One input of a node's class."""

    name: str
    kind: Any
    options: dict[str, Any]
    optional: bool


def inputs(node: type[Any]) -> Iterator[Input]:
    """The inputs that a user sees."""
    for group, members in node.INPUT_TYPES().items():
        if group == "hidden":
            continue
        for name, (kind, *rest) in members.items():
            yield Input(name, kind, rest[0] if rest else {}, group == "optional")


def english() -> dict[str, Any]:
    """The English texts of the nodes, which their classes read."""
    return load("en", "nodeDefs")


def key(name: str) -> str:
    """A name as the frontend looks it up: a dot would go one level down."""
    return name.replace(".", "_")


def plain(text: str) -> str:
    """Without the quotes that vue-i18n needs around its special characters."""
    return re.sub(r"\{'(.)'\}", r"\1", text)


# ---- help pages


def page(language: str, name: str) -> Path:
    """The help page of a node in a language."""
    return DOCS / name / f"{language}.md"


def other_page(name: str) -> Path:
    """The help page of a node for languages without one."""
    return DOCS / f"{name}.md"


def refresh(text: str, language: str, name: str, texts: dict[str, Any]) -> str:
    """Update the first lines and the lists of a page."""
    words, node = WORDS[language], NODE_CLASS_MAPPINGS[name]
    body = text.split("\n", 4)[4]  # title, empty, id and category, empty
    head = f"# {plain(texts['display_name'])}\n\n`{name}` · {node.CATEGORY}\n\n"
    body = _fill_section(body, words.inputs, _inputs(words, node, texts))
    return head + _fill_section(body, words.outputs, _outputs(words, node, texts))


def _fill_section(body: str, heading: str, entries: list[str]) -> str:
    return re.sub(
        rf"^## {heading}\n.*?(?=^## |\Z)",
        lambda _: "\n".join([f"## {heading}", "", *entries, "", ""]),
        body,
        flags=re.MULTILINE | re.DOTALL,
    )


def _inputs(words: Words, node: type[Any], texts: dict[str, Any]) -> list[str]:
    """A list of inputs; ComfyUI's column is too narrow for a table."""
    return [
        _entry(words, given.name, _facts(given, words), texts["inputs"][key(given.name)])
        for given in inputs(node)
    ]


def _outputs(words: Words, node: type[Any], texts: dict[str, Any]) -> list[str]:
    return [
        _entry(words, name, [_kind(kind, words)], texts["outputs"][str(index)])
        for index, (name, kind) in enumerate(zip(node.RETURN_NAMES, node.RETURN_TYPES, strict=True))
    ]


def _entry(words: Words, name: str, facts: list[str], texts: dict[str, str]) -> str:
    same = plain(texts["name"]) == name
    label = f"`{name}`" if same else f"**{_escape(texts['name'])}** `{name}`"
    text = _escape(texts["tooltip"])
    return words.entry.format(label=label, facts=words.comma.join(facts), text=text)


def _facts(given: Input, words: Words) -> list[str]:
    value = given.options.get("default")
    if isinstance(given.kind, (list, tuple)) and value is None:
        value = given.kind[0] if given.kind else None
    kind = _kind(given.kind, words)
    if isinstance(value, bool):
        return [kind, words.default.format(words.on if value else words.off)]
    if value is None or value == "":
        return [kind, words.optional] if given.optional else [kind]
    return [kind, words.default.format(f"`{value}`")]


def _kind(kind: Any, words: Words) -> str:
    if kind == "*":
        return words.anything
    if isinstance(kind, str):
        return kind.replace(",", " / ")
    few = len(kind) <= MOST_OPTIONS
    return " / ".join(f"`{option}`" for option in kind) if few else "COMBO"


def _escape(text: str) -> str:
    """Escape text for Markdown."""
    line = plain(text).replace("\n", " ").replace("<", "&lt;")
    return re.sub(r"(\*)", r"\\\1", line)


# ---- translations


def prints() -> dict[str, str]:
    """A short hash of the English texts of each node and of each other file."""
    parts = english() | {kind: load("en", kind) for kind in KINDS if kind != "nodeDefs"}
    return {
        name: hashlib.sha256(dump(part).encode()).hexdigest()[:12] for name, part in parts.items()
    }


# ---- writing


def load(language: str, kind: str) -> dict[str, Any]:
    """One of the files of a language."""
    return json.loads((LOCALES / language / f"{kind}.json").read_text("utf-8"))


def dump(texts: dict[str, Any]) -> str:
    """The content of a file of texts."""
    return json.dumps(texts, ensure_ascii=False, indent=2) + "\n"


def wanted() -> Iterator[tuple[Path, str]]:
    """Every file that is written here, with its content; only pages that exist."""
    for language in LANGUAGES:
        texts = english() if language == "en" else load(language, "nodeDefs")
        for name in NODE_CLASS_MAPPINGS:
            path = page(language, name)
            if not path.exists() or name not in texts:
                continue
            text = refresh(path.read_text("utf-8"), language, name, texts[name])
            yield path, text
            if language == "en":
                yield other_page(name), text


def main() -> int:
    """Write the files that are out of date."""
    if "--translated" in sys.argv[1:]:
        TRANSLATED.write_text(dump(prints()), "utf-8")
    for path, text in wanted():
        if not path.exists() or path.read_text("utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            sys.stdout.write(f"written: {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

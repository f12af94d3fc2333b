"""What MkDocs calls while it builds the documentation site (`mkdocs.yml`).

Covers: pages that are made while building (reference, benchmark tables), files of the repository
that pages link to, the switch between languages, the navigation.
Leaves to others: what these pages say (docs_reference, docs_benchmarks), links (docs_links).
Promise: nothing is fetched, and nothing in docs/ is written.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools import docs_benchmarks, docs_links, docs_reference

LANGUAGES = {"en": "English", "zh-TW": "繁體中文", "zh-CN": "简体中文"}
HOME = {
    "en": "index.md",
    "zh-TW": "repository/README.zh-TW.md",
    "zh-CN": "repository/README.zh-CN.md",
}
MARKS = {
    "<!-- the tables of all results -->": docs_benchmarks.tables,
    "<!-- the modules -->": docs_reference.listing,
}


def on_config(config: Any) -> Any:
    """Fill the parts of the navigation that follow from what there is."""
    docs = Path(config.docs_dir)
    for section in config.nav:
        if "Tutorials" in section:
            section["Tutorials"] = _with_translations(section["Tutorials"], docs)
        elif "Reference" in section:
            pages = [{m.name: m.uri} for m in docs_reference.modules()]
            section["Reference"] = [f"{docs_reference.FOLDER}/index.md", *pages]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here, and what pages link to outside docs/."""
    for module in docs_reference.modules():
        files.append(File.generated(config, module.uri, content=docs_reference.page(module)))
    shown = [posixpath.join("docs", f.src_uri) for f in files if _is_written(f)]
    readmes = {"README.md"} | {docs_links.source_of(uri) for uri in HOME.values()}
    shown += [name for name in sorted(readmes) if (docs_links.ROOT / name).is_file()]
    outside = docs_links.outside_docs(shown)
    outside |= {docs_links.uri_of(n): docs_links.ROOT / n for n in shown if "/" not in n}
    outside |= {
        docs_links.uri_of(path.relative_to(docs_links.ROOT).as_posix()): path
        for path in docs_benchmarks.files()
    }
    for uri, path in outside.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Put tables in their places, and make links right for the site."""
    markdown = docs_links.rewritten(page.file.src_uri, markdown)
    for mark, made in MARKS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, made())
    return markdown


def on_page_context(context: Any, page: Page, config: Any, nav: Any) -> Any:
    """The languages in the page's head lead to the same page, else to that language's first one."""
    files = {file.src_uri: file for file in context["pages"]}
    found = []
    for language, name in LANGUAGES.items():
        same = _in_language(page.file.src_uri, language)
        uri = same if same in files else HOME[language]
        if uri in files:
            found.append({"name": name, "link": files[uri].url, "lang": language})
    config.extra["alternate"] = found
    return context


def on_post_page(output: str, page: Page, config: Any) -> str:
    """Say which language a page is in.

    Links to the others stand in the page's head too, where a script would ask for the site's map
    of each; from the file system it may not.
    """
    language = _language(page.file.src_uri)
    output = re.sub(r'\s*<link rel="alternate"[^>]*>', "", output)
    return output.replace('<html lang="en"', f'<html lang="{language}"', 1)


def _is_written(file: File) -> bool:
    return file.src_uri.endswith(".md") and file.generated_by is None


def _language(uri: str) -> str:
    return next((name for name in LANGUAGES if uri.endswith(f".{name}.md")), "en")


def _in_language(uri: str, language: str) -> str:
    """The address of a page in another language, whether there is one or not."""
    now = _language(uri)
    stem = uri.removesuffix(".md" if now == "en" else f".{now}.md")
    if posixpath.basename(stem) == "README" and language == "en":
        return "index.md" if now == "en" else "repository/README.md"
    return f"{stem}.md" if language == "en" else f"{stem}.{language}.md"


def _with_translations(english: list[str], docs: Path) -> list[Any]:
    """Pages, and those of them that there are in other languages in parts of their own."""
    parts = []
    for language in (name for name in LANGUAGES if name != "en"):
        found = [_in_language(uri, language) for uri in english]
        parts.append({LANGUAGES[language]: [uri for uri in found if (docs / uri).is_file()]})
    return [*english, *(part for part in parts if all(part.values()))]

"""Hooks of MkDocs (`mkdocs.yml`): generated pages, linked files, languages, navigation.

Downloads nothing, and writes nothing in docs/.
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
    """Add the existing tutorials and reference pages to the navigation."""
    docs = Path(config.docs_dir)
    for section in config.nav:
        if "Tutorials" in section:
            section["Tutorials"] = _with_translations(section["Tutorials"], docs)
        elif "Reference" in section:
            pages = [{m.name: m.uri} for m in docs_reference.modules()]
            section["Reference"] = [f"{docs_reference.FOLDER}/index.md", *pages]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and linked files outside docs/."""
    for module in docs_reference.modules():
        files.append(File.generated(config, module.uri, content=docs_reference.page(module)))
    pages = [posixpath.join("docs", f.src_uri) for f in files if _is_written(f)]
    readmes = {"README.md"} | {docs_links.source_of(uri) for uri in HOME.values()}
    pages += [name for name in sorted(readmes) if (docs_links.ROOT / name).is_file()]
    outside = docs_links.outside_docs(pages)
    outside |= {docs_links.uri_of(n): docs_links.ROOT / n for n in pages if "/" not in n}
    outside |= {
        docs_links.uri_of(path.relative_to(docs_links.ROOT).as_posix()): path
        for path in docs_benchmarks.files()
    }
    for uri, path in outside.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Insert the generated tables, and rewrite links for the site."""
    markdown = docs_links.rewrite(page.file.src_uri, markdown)
    for mark, make in MARKS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return markdown


def on_page_context(context: Any, page: Page, config: Any, nav: Any) -> Any:
    """Link the same page in other languages, or their first page if it is not translated."""
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
    """Set the language of a page, and drop the alternate links in its head.

    A script would load the site map of each of these links, which fails from the file system.
    """
    language = _language(page.file.src_uri)
    output = re.sub(r'\s*<link rel="alternate"[^>]*>', "", output)
    return output.replace('<html lang="en"', f'<html lang="{language}"', 1)


def _is_written(file: File) -> bool:
    return file.src_uri.endswith(".md") and file.generated_by is None


def _language(uri: str) -> str:
    return next((name for name in LANGUAGES if uri.endswith(f".{name}.md")), "en")


def _in_language(uri: str, language: str) -> str:
    """The address a page would have in another language."""
    now = _language(uri)
    stem = uri.removesuffix(".md" if now == "en" else f".{now}.md")
    if posixpath.basename(stem) == "README" and language == "en":
        return "index.md" if now == "en" else "repository/README.md"
    return f"{stem}.md" if language == "en" else f"{stem}.{language}.md"


def _with_translations(english: list[str], docs: Path) -> list[Any]:
    """Pages, and a section for each language with their translations."""
    parts = []
    for language in (name for name in LANGUAGES if name != "en"):
        found = [_in_language(uri, language) for uri in english]
        parts.append({LANGUAGES[language]: [uri for uri in found if (docs / uri).is_file()]})
    return [*english, *(part for part in parts if all(part.values()))]

"""The files of the page, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import holdfast.dashboard

STATIC = Path(holdfast.dashboard.__file__).parent / "web" / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
LANGUAGES = ("en", "zh-TW", "zh-CN")


def _texts(language: str) -> dict[str, str]:
    text = (STATIC / "texts" / f"{language}.js").read_text(encoding="utf-8")
    found = re.findall(r"^  (?:'([^']+)'|(\w+)): '((?:[^'\\]|\\.)*)',?$", text, re.M)
    return {quoted or plain: value for quoted, plain, value in found}


def _everything() -> str:
    files = [*SCRIPTS, *STATIC.glob("*.css"), STATIC / "index.html"]
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_every_text_is_there_in_every_language_with_the_same_gaps(language: str) -> None:
    english, other = _texts("en"), _texts(language)
    assert len(english) > 100
    assert list(other) == list(english)
    for key, text in english.items():
        gaps = re.findall(r"\{\w+\}", text)
        assert sorted(re.findall(r"\{\w+\}", other[key])) == sorted(gaps), key


def test_every_text_that_is_asked_for_is_there() -> None:
    english = _texts("en")
    asked = set(re.findall(r"\bsay\('([^'`]+)'", _everything()))
    assert len(asked) > 60
    assert asked - set(english) == set()


def test_every_kind_of_model_stage_and_status_has_its_words() -> None:
    from typing import get_args

    from holdfast.dashboard.snapshot.snapshot import Keeper, Stage

    english = _texts("en")
    names = [f"{kind}.{keeper}" for keeper in get_args(Keeper) for kind in ("fixed", "keeper")]
    names += [f"stage.{stage}" for stage in get_args(Stage)]
    names += [f"status.{status}" for status in ("done", "stopped", "failed")]
    assert set(names) <= set(english)


def test_the_page_names_no_address_of_the_network() -> None:
    found = re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]{2,}[^\s\"'`]*", _everything())
    assert found == ["http://www.w3.org/2000/svg"]


@pytest.mark.parametrize("word", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write"])
def test_no_text_is_ever_read_as_markup(word: str) -> None:
    assert word not in _everything()


def test_nothing_is_run_from_a_text() -> None:
    text = _everything()
    assert re.findall(r"\beval\(|new Function\(|<script>|\son\w+=", text) == []
    assert " style=" not in text


def test_every_file_that_is_referred_to_is_there() -> None:
    for script in SCRIPTS:
        for name in re.findall(r"from '(\.[^']+)'", script.read_text(encoding="utf-8")):
            assert (script.parent / name).is_file(), (script.name, name)
    for name in re.findall(r"/static/([\w.-]+)", _everything()):
        assert (STATIC / name).is_file(), name


def test_the_page_stays_small() -> None:
    sizes = {file: file.stat().st_size for file in STATIC.rglob("*") if file.is_file()}
    assert sum(sizes.values()) < 160_000
    assert all(len(script.read_text().splitlines()) <= 400 for script in SCRIPTS)

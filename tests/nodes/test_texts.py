"""Texts of the ComfyUI pack: each node and each thing of the panel, in three languages.

They run over what NODE_CLASS_MAPPINGS holds: a new node fails here until its texts are written.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.nodes import LOCALES, NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from tools import node_texts
from tools.node_texts import DOCS, KINDS, LANGUAGES, WORDS, inputs, load, page, plain

NODES = sorted(NODE_CLASS_MAPPINGS)
CHINESE = ("zh", "zh-TW")
ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "comfyui.md"

# What stays as it is in Chinese: products, formats, units, functions, names of nodes and inputs.
PRODUCTS = re.findall(
    r"\S+",
    """
    Holdfast ComfyUI Python PyTorch torch NumPy JAX XLA OpenCL CUDA ROCm NUMA SVM Linux RetryIX
    retryix opencl numa simulated CPU GPU TPU RAM VRAM HTML LoRA VAE Flux Wan KSampler Conv IMAGE
    relu sigmoid tanh mse mae add multiply matmul max latent array tensor int bf16 fp16 GiB MiB GB
    MB s W x b A B C D FLUX FluxGuidance CLIP T5 UMT5 Hub diffusers dev auto Latent Checkpoint CFG
    heun token NaN tiny-flux tiny-wan
    """,
)


def texts(language: str) -> dict[str, Any]:
    return {kind: load(language, kind) for kind in KINDS}


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(tree, str):
        yield path, tree
        return
    for name, branch in tree.items():
        yield from leaves(branch, (*path, name))


def shape(name: str) -> set[tuple[str, ...]]:
    """The keys that a node has to have, as its class is."""
    node = NODE_CLASS_MAPPINGS[name]
    named = [("inputs", node_texts.key(given.name)) for given in inputs(node)]
    named += [("outputs", str(index)) for index in range(len(node.RETURN_TYPES))]
    both = {(*place, word) for place in named for word in ("name", "tooltip")}
    return both | {("display_name",), ("description",)}


# ---- classes and their texts


@pytest.mark.parametrize("name", NODES)
def test_a_class_has_a_text_for_everything_it_shows(name: str) -> None:
    node = NODE_CLASS_MAPPINGS[name]
    assert node.DESCRIPTION.strip()
    assert NODE_DISPLAY_NAME_MAPPINGS[name].strip()
    assert len(node.RETURN_TYPES) == len(node.RETURN_NAMES) == len(node.OUTPUT_TOOLTIPS)
    assert all(text.strip() for text in node.OUTPUT_TOOLTIPS)
    assert [given.name for given in inputs(node) if not given.options.get("tooltip")] == []


def test_every_node_with_a_display_name_is_a_node() -> None:
    assert set(NODE_DISPLAY_NAME_MAPPINGS) == set(NODE_CLASS_MAPPINGS)


def test_generated_files_are_as_the_classes_are() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in node_texts.wanted()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    assert stale == [], "write them with: python -m tools.node_texts"


# ---- the same keys in every language


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", NODES)
def test_a_node_has_all_its_texts_and_no_other(name: str, language: str) -> None:
    found = dict(leaves(load(language, "nodeDefs").get(name, {})))
    assert set(found) == shape(name)
    assert [place for place, text in found.items() if not text.strip()] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_of_a_node_that_is_not_there(language: str) -> None:
    assert list(load(language, "nodeDefs")) == list(NODE_CLASS_MAPPINGS)


@pytest.mark.parametrize("language", CHINESE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_language_has_the_keys_of_english(kind: str, language: str) -> None:
    ours = {place for place, _ in leaves(load("en", kind))}
    assert {place for place, _ in leaves(load(language, kind))} == ours


def test_files_of_texts_are_written_as_the_tool_writes_them() -> None:
    for language in LANGUAGES:
        assert {path.stem for path in (LOCALES / language).glob("*")} == set(KINDS)
        for kind in KINDS:
            written = (LOCALES / language / f"{kind}.json").read_text("utf-8")
            assert written == node_texts.dump(json.loads(written))


def test_translations_are_of_the_english_that_is_there_now() -> None:
    translated = json.loads(node_texts.TRANSLATED.read_text("utf-8"))
    now = node_texts.prints()
    changed = sorted(name for name in now | translated if now.get(name) != translated.get(name))
    assert changed == [], (
        "their English has changed: bring zh and zh-TW up to date, then "
        "python -m tools.node_texts --translated"
    )


# ---- placeholders, and what vue-i18n would take for syntax


def placeholders(text: str) -> list[str]:
    return sorted(re.findall(r"\{(\w+)\}", text))


@pytest.mark.parametrize("language", CHINESE)
def test_placeholders_are_those_of_english(language: str) -> None:
    english = dict(leaves(texts("en")))
    other = dict(leaves(texts(language)))
    assert {place: placeholders(text) for place, text in other.items()} == {
        place: placeholders(text) for place, text in english.items()
    }


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_in_a_text_is_syntax_but_placeholders(language: str) -> None:
    loose = {
        place: text
        for place, text in leaves(texts(language))
        if re.search(r"[{}@|]", re.sub(r"\{\w+\}|\{'.'\}", "", text))
    }
    assert loose == {}


@pytest.mark.parametrize("language", LANGUAGES)
def test_node_texts_have_no_placeholders(language: str) -> None:
    assert [t for _, t in leaves(load(language, "nodeDefs")) if placeholders(t)] == []


def test_a_text_survives_vue_i18n() -> None:
    assert plain("a {'|'} b, {'{'}c{'}'} and d{'@'}e") == "a | b, {c} and d@e"


# ---- Chinese is Chinese


def known_words() -> set[str]:
    """Words that may be English in a Chinese text."""
    words = set(PRODUCTS)
    for name, node in NODE_CLASS_MAPPINGS.items():
        words |= {name, *node.RETURN_NAMES}
        for given in inputs(node):
            words.add(given.name)
            if isinstance(given.kind, list | tuple):
                words |= set(re.findall(WORD, " ".join(map(str, given.kind))))
    return words


WORD = r"[A-Za-z][A-Za-z0-9_-]*"
# Paths, examples of prompts, environment variables, options, methods.
SPECIAL = r"[\w.-]+/[\w.-]+|「[a-z ]+」|“[a-z ]+”|\{\w+\}|HOLDFAST_\w+|--[\w-]+|\.\w+\(\)"


def english_words(text: str) -> list[str]:
    known = known_words()
    return [
        word for word in re.findall(WORD, re.sub(SPECIAL, "", plain(text))) if word not in known
    ]


@pytest.mark.parametrize("language", CHINESE)
def test_no_english_is_left(language: str) -> None:
    left = {place: english_words(text) for place, text in leaves(texts(language))}
    assert {place: words for place, words in left.items() if words} == {}


@pytest.mark.parametrize("language", CHINESE)
def test_every_tooltip_and_description_is_translated(language: str) -> None:
    sentences = {
        place: text
        for place, text in leaves(load(language, "nodeDefs"))
        if place[-1] in ("tooltip", "description", "display_name")
    }
    assert [p for p, text in sentences.items() if not re.search(r"[\u4e00-\u9fff]", text)] == []


# Traditional and simplified forms; words that the other side has other words for.
PAIRS = """
    節节 點点 圖图 執执 預预 設设 頻频 寬宽 張张 載载 釋释 視视 輸输 選选 這这 與与 來来 個个
    會会 對对 應应 當当 為为 從从 後后 時时 間间 結结 編编 碼码 樣样 記记 憶忆 體体 內内 檔档
    資资 夾夹 數数 據据 帶带 線线 權权 並并 將将 請请 錯错 誤误 訊讯 無无 開开 關关 啟启 顯显
    層层 環环 變变 標标 題题
"""
WORDS_TW = (
    "內存",
    "默認",
    "文件夾",
    "服務器",
    "信息",
    "視頻",
    "線程",
    "帶寬",
    "字節",
    "緩存",
    "數據",
)
WORDS_ZH = (
    "记忆体",
    "预设",
    "资料",
    "伺服器",
    "资讯",
    "影像",
    "执行绪",
    "频宽",
    "位元组",
    "快取",
    "影格",
)


def of_the_other(language: str) -> list[str]:
    """Characters, words and quotation marks that are wrong in a language."""
    traditional, simplified = zip(*re.findall(r"(\S)(\S)", PAIRS), strict=True)
    if language == "zh-TW":
        return [*simplified, *WORDS_TW, "“", "”"]
    return [*traditional, *WORDS_ZH, "「", "」"]


def pages(language: str) -> dict[tuple[str, ...], str]:
    return {
        ("page", name): page(language, name).read_text("utf-8")
        for name in NODES
        if page(language, name).exists()
    }


@pytest.mark.parametrize("language", CHINESE)
def test_the_two_kinds_of_chinese_are_kept_apart(language: str) -> None:
    everything = dict(leaves(texts(language))) | pages(language)
    foreign = of_the_other(language)
    mixed = {place: [w for w in foreign if w in text] for place, text in everything.items()}
    assert {place: words for place, words in mixed.items() if words} == {}


# ---- help pages


def section(text: str, heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return found[1].strip() if found else ""


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", NODES)
def test_a_node_has_a_help_page_with_everything(name: str, language: str) -> None:
    text, words = page(language, name).read_text("utf-8"), WORDS[language]
    node = NODE_CLASS_MAPPINGS[name]
    headings = re.findall(r"^## (.*)$", text, re.M)
    assert headings == [words.inputs, words.outputs, words.example, words.wrong]
    assert len(text.split("\n## ")[0].split("\n\n", 2)[2]) > 30, "it does not say what it does"
    for given in inputs(node):
        assert f"`{given.name}`" in section(text, words.inputs)
    for output in node.RETURN_NAMES:
        assert f"`{output}`" in section(text, words.outputs)
    assert len(section(text, words.example)) > 30
    assert section(text, words.wrong).count("\n- **") >= 1


@pytest.mark.parametrize("name", NODES)
def test_pages_of_a_node_say_the_same_in_every_language(name: str) -> None:
    of = {language: page(language, name).read_text("utf-8") for language in LANGUAGES}
    problems = {section(text, WORDS[k].wrong).count("\n- **") for k, text in of.items()}
    assert len(problems) == 1
    blocks = [re.findall(r"^```.*?^```", text, re.M | re.S) for text in of.values()]
    assert blocks[0] == blocks[1] == blocks[2]


@pytest.mark.parametrize("name", NODES)
def test_help_pages_name_inputs_outputs_and_files_that_exist(name: str) -> None:
    english = set(re.findall(r"`([a-z]+_[a-z_]+)`", page("en", name).read_text("utf-8")))
    for language in CHINESE:
        found = set(re.findall(r"`([a-z]+_[a-z_]+)`", page(language, name).read_text("utf-8")))
        assert found == english
    known = {word for word in known_words() if "_" in word}
    templates = {path.stem for path in (LOCALES.parent / "example_workflows").glob("*.json")}
    assert english - known - templates == set()


def test_there_is_no_page_of_a_node_that_is_not_there() -> None:
    wanted = {f"{name}/{language}.md" for name in NODES for language in LANGUAGES}
    wanted |= {f"{name}.md" for name in NODES}
    found = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert found == wanted


LINK = r"!?\[[^\]]*\]\(([^)\s]+)\)"


@pytest.mark.parametrize(
    "path", sorted(DOCS.rglob("*.md")), ids=lambda p: p.relative_to(DOCS).as_posix()
)
def test_a_help_page_links_only_where_comfyui_can_go(path: Path) -> None:
    """The frontend puts its base before pictures alone: other links have to be whole."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S)
    for found in re.finditer(LINK, text):
        target = found[1]
        if found[0].startswith("!") and not target.startswith("http"):
            assert (DOCS / target).is_file(), target
        else:
            assert target.startswith("https://"), target


@pytest.mark.parametrize("name", NODES)
def test_python_in_a_help_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # what it writes goes there
    for block in re.findall(
        r"^```python\n(.*?)^```", page("en", name).read_text("utf-8"), re.M | re.S
    ):
        exec(compile(block, f"help of {name}", "exec"), {})


# ---- the guide


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_of_the_guide_work() -> None:
    text = GUIDE.read_text("utf-8")
    for target in re.findall(LINK, text):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        file = GUIDE.parent / name if name else GUIDE
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.read_text("utf-8")), target


def test_the_guide_names_every_node() -> None:
    text = GUIDE.read_text("utf-8")
    missing = [name for name in NODES if NODE_DISPLAY_NAME_MAPPINGS[name] not in text]
    assert missing == []

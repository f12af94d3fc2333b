from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import BadInput
from holdfast.pipeline.batch import SUFFIXES, Job, Options, Row, plan
from holdfast.pipeline.batch.jobs import slug
from holdfast.pipeline.output import media
from tests.pipeline.batch.fakes import jobs, rows


def _plan(values: list[dict[str, Any]], **options: Any) -> list[Job]:
    listed = [Row(f"line {n}", v) for n, v in enumerate(values, 1)]
    return plan(listed, Options(**{"model": "m", **options}), "prompts.jsonl")


def test_the_suffixes_are_those_of_media() -> None:
    assert tuple(media.FORMATS) == SUFFIXES


def test_a_line_beats_the_options_and_the_options_beat_the_model() -> None:
    made = _plan([{"prompt": "a", "steps": 4}, {"prompt": "b"}], defaults={"steps": 9, "width": 64})
    assert [dict(job.settings) for job in made] == [
        {"prompt": "a", "steps": 4, "width": 64, "seed": 0},
        {"prompt": "b", "steps": 9, "width": 64, "seed": 1},
    ]


def test_lines_without_a_seed_count_up_from_the_base() -> None:
    made = _plan([{"prompt": "a"}, {"prompt": "b", "seed": 3}, {"prompt": "c"}], seed=100)
    assert [job.settings["seed"] for job in made] == [100, 3, 102]


@given(st.lists(st.sampled_from("aabbc"), max_size=8), st.randoms(use_true_random=False))
def test_moving_lines_about_changes_no_identity(prompts: list[str], order: random.Random) -> None:
    moved = list(prompts)
    order.shuffle(moved)
    before, after = jobs(*prompts), jobs(*moved)
    assert {job.identity for job in before} == {job.identity for job in after}
    assert len({job.identity for job in before}) == len(prompts)


def test_changing_one_line_changes_one_identity() -> None:
    before, after = jobs("a", "b", "c"), jobs("a", "B", "c")
    assert [x.identity == y.identity for x, y in zip(before, after, strict=True)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"model": "other"},
        {"precision": "fp32"},
        {"seed": 1},
        {"suffix": ".webp"},
        {"fps": 9},
        {"defaults": {"steps": 2}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_whatever_changes_the_picture_changes_the_identity(options: dict) -> None:
    assert _plan([{"prompt": "a"}])[0].identity != _plan([{"prompt": "a"}], **options)[0].identity


def test_a_seed_of_ones_own_does_not_depend_on_the_base() -> None:
    values = [{"prompt": "a", "seed": 3}]
    assert _plan(values)[0].identity == _plan(values, seed=9)[0].identity


def test_names_come_from_the_position_and_the_prompt() -> None:
    made = jobs("A cat, über-fluffy!", "日本", "x" * 99)
    assert [job.name(".png") for job in made] == [
        "0000-a-cat-uber-fluffy.png",
        "0001-picture.png",
        f"0002-{'x' * 40}.png",
    ]
    assert slug("a" * 39 + " b") == "a" * 39


def test_a_name_that_is_given_decides_the_format() -> None:
    job = _plan([{"prompt": "a", "out": "sub/A.WebP"}], suffix=".png")[0]
    assert (job.name(".png"), job.suffix) == ("sub/A.WebP", ".webp")


def test_names_that_collide_or_are_no_pictures_are_refused() -> None:
    values = [{"prompt": "a", "out": out} for out in ("a.png", "A.PNG", "b", "c.txt")]
    with pytest.raises(BadInput) as caught:
        _plan(values)
    assert str(caught.value) == (
        "cannot use 'prompts.jsonl': 3 bad lines, nothing was started\n"
        "  line 2: out is 'A.PNG', the same file as in line 1\n"
        "  line 3: out is 'b', which is no kind of picture or video\n"
        "  line 4: out is 'c.txt', which is no kind of picture or video\n"
        "  expected: a file for each picture, ending in .png, .webp, .jpg, .jpeg, .gif, .mp4"
    )


def test_options_are_held_to_the_rules_of_lines() -> None:
    with pytest.raises(BadInput) as caught:
        plan(rows("a"), Options(model="m", defaults={"steps": 0}), "prompts.jsonl")
    assert str(caught.value) == (
        "cannot use these options: steps is 0, not an integer from 1\n"
        "  expected: values that a line of the file could have"
    )
    with pytest.raises(BadInput, match="seed is -1"):
        plan(rows("a"), Options(model="m", seed=-1), "prompts.jsonl")

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import BadInput
from holdfast.pipeline.run.settings import Limits, settle

PICTURE = Limits(height=128, width=128, multiple_of=16, steps=20, guidance=2.0)
VIDEO = Limits(
    height=64,
    width=64,
    multiple_of=16,
    steps=20,
    guidance=5.0,
    num_frames=9,
    frame_step=4,
)


def test_what_is_left_open_takes_the_models_default() -> None:
    settings = settle(PICTURE, "a seven", seed=1)
    assert (settings.height, settings.width, settings.steps) == (128, 128, 20)
    assert (settings.guidance, settings.num_frames, settings.negative) == (2.0, 1, None)


def test_a_seed_that_is_left_open_is_another_one_each_time() -> None:
    assert len({settle(PICTURE, "a seven").seed for _ in range(20)}) == 20


def test_numbers_may_come_as_text() -> None:
    settings = settle(PICTURE, "a seven", height="64", steps="7", seed="12", guidance="3.5")
    assert (settings.height, settings.steps, settings.seed) == (64, 7, 12)
    assert settings.guidance == 3.5


def test_a_large_seed_keeps_every_digit() -> None:
    assert settle(PICTURE, "a seven", seed=2**63 - 1).seed == 2**63 - 1
    assert settle(PICTURE, "a seven", seed=str(2**53 + 1)).seed == 2**53 + 1


def test_a_folders_defaults_take_the_place_of_the_familys() -> None:
    limits = PICTURE.with_defaults({"height": 256, "prompt": "not a limit", "steps": 4})
    assert (limits.height, limits.width, limits.steps) == (256, 128, 4)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"height": 100},
            "cannot draw height=100\n  expected: a multiple of 16 from 16 to 8192\n"
            "  try: height 96",
        ),
        (
            {"width": 0},
            "cannot draw width=0\n  expected: a multiple of 16 from 16 to 8192",
        ),
        (
            {"width": -64},
            "cannot draw width=-64\n  expected: a multiple of 16 from 16 to 8192",
        ),
        (
            {"height": 10**9},
            "cannot draw height=1000000000\n  expected: a multiple of 16 from 16 to 8192",
        ),
        (
            {"height": "tall"},
            "cannot draw height='tall'\n  expected: a multiple of 16 from 16 to 8192",
        ),
        ({"steps": 0}, "cannot use steps=0\n  expected: an integer from 1 to 1000"),
        ({"steps": 1001}, "cannot use steps=1001\n  expected: an integer from 1 to 1000"),
        ({"steps": 2.5}, "cannot use steps=2.5\n  expected: an integer from 1 to 1000"),
        ({"steps": True}, "cannot use steps=True\n  expected: an integer from 1 to 1000"),
        (
            {"seed": -1},
            "cannot use seed=-1\n  expected: an integer from 0 to 9223372036854775807",
        ),
        (
            {"guidance": "nan"},
            "cannot use guidance='nan'\n  expected: a number from 0 to 100",
        ),
        (
            {"num_frames": 5},
            "cannot draw num_frames=5: this model draws single pictures\n"
            "  expected: 1, or nothing\n  try: a video model such as tiny-wan",
        ),
    ],
)
def test_a_setting_that_cannot_be_drawn_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput) as caught:
        settle(PICTURE, "a seven", **given)
    assert str(caught.value) == text


def test_the_frames_of_a_video_come_in_steps() -> None:
    assert settle(VIDEO, "a seven").num_frames == 9
    assert settle(VIDEO, "a seven", num_frames=13).num_frames == 13
    with pytest.raises(BadInput) as caught:
        settle(VIDEO, "a seven", num_frames=11)
    assert str(caught.value) == (
        "cannot draw num_frames=11\n"
        "  expected: 1 more than a multiple of 4\n"
        "  try: num_frames 9 or 13"
    )


def test_a_negative_prompt_is_refused_where_the_model_has_no_use_for_it() -> None:
    limits = dataclasses.replace(PICTURE, takes_negative=False)
    with pytest.raises(BadInput, match="cannot use a negative prompt"):
        settle(limits, "a seven", negative="an eight")


def test_numbers_may_come_from_numpy() -> None:
    settings = settle(PICTURE, "a seven", steps=np.int64(3), guidance=np.float32(2.5))
    assert (settings.steps, settings.guidance) == (3, 2.5)
    assert type(settings.steps) is int


def test_half_a_character_is_no_text() -> None:
    with pytest.raises(BadInput) as caught:
        settle(PICTURE, "bad \udcff byte")
    assert str(caught.value) == (
        "cannot use a prompt with half a character at position 4\n  expected: text in UTF-8"
    )


def test_a_prompt_is_text_of_bearable_length() -> None:
    with pytest.raises(BadInput, match="cannot use prompt=7"):
        settle(PICTURE, 7)
    with pytest.raises(BadInput, match="cannot use a prompt of 100001 characters"):
        settle(PICTURE, "x" * 100_001)


def test_a_negative_prompt_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        settle(PICTURE, "a seven", negative="an eight", guidance=1)
    assert str(caught.value) == (
        "cannot use a negative prompt with guidance=1: there is nothing to guide away from it\n"
        "  expected: a guidance above 1\n"
        "  try: guidance 3"
    )

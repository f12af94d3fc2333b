from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import BadInput
from holdfast.base.units import format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GB", 2 * 10**9),
        ("512MiB", 512 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("2g", 2 * 2**30),
        ("10", 10),
        ("0", 0),
        (" 7 kb ", 7000),
        (".5KiB", 512),
        ("1_000B", 1000),
        (4096, 4096),
    ],
)
def test_a_size_is_read_as_people_write_it(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


def test_a_percentage_is_taken_of_the_whole() -> None:
    assert parse_bytes("80%", of=1000) == 800
    assert parse_bytes("12.5 %", of=800) == 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "foo",
            "cannot read 'foo' as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
        (
            "2XB",
            "cannot read '2XB' as a size in bytes: unknown unit 'XB'\n"
            "  expected: one of B, KB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB or %",
        ),
        (
            -1,
            'a size cannot be negative: -1\n  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
        (
            "80%",
            "cannot read '80%' as a size in bytes: a percentage has no total here\n"
            '  expected: an absolute size such as "2GB" or "512MiB"',
        ),
        (
            True,
            "cannot read True as a size in bytes\n"
            '  expected: a size such as "2GB", "512MiB" or "80%"',
        ),
    ],
)
def test_text_that_is_no_size_is_refused(text: str | int, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_bytes(text)
    assert str(caught.value) == message


EXPECTED = '\n  expected: a size such as "2GB", "512MiB" or "80%"'
TOO_LARGE = "a size cannot be 2**200 bytes or more" + EXPECTED


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("9" * 400, TOO_LARGE),
        ("9" * 50 + "PB", TOO_LARGE),
        (2**200, TOO_LARGE),
        (10**5000, TOO_LARGE),
        ("9" * 5000, "cannot read a number of 5000 digits as a size in bytes" + EXPECTED),
        ("9" * 5000 + "%", "cannot read a number of 5000 digits as a size in bytes" + EXPECTED),
        (-(10**5000), "a size cannot be negative" + EXPECTED),
    ],
    ids=["400 digits", "many petabytes", "2**200", "10**5000", "5000 digits", "%", "-10**5000"],
)
def test_numbers_beyond_all_machines_are_refused(size: str | int, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_bytes(size, of=1000)
    assert str(caught.value) == message


def test_the_largest_number_is_read() -> None:
    assert parse_bytes(str(2**200 - 1)) == parse_bytes(2**200 - 1) == 2**200 - 1


@pytest.mark.parametrize("exact", [False, True])
def test_a_count_of_any_size_is_written(exact: bool) -> None:
    assert format_bytes(10**400, exact=exact) == "2**1328 B or more"
    assert format_bytes(-(1 << 20000), exact=exact) == "-2**20000 B or more"
    assert format_bytes(2**200 - 1).endswith(" PB")


def test_more_than_everything_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        parse_bytes("120%", of=2 * 10**9)
    assert str(caught.value) == "cannot take '120%' of 2.0 GB\n  expected: at most 100%"


@pytest.mark.parametrize(
    ("count", "text", "binary"),
    [
        (0, "0 B", "0 B"),
        (999, "999 B", "999 B"),
        (23_800_000_000, "23.8 GB", "22.2 GiB"),
        (139 * 2**30, "149 GB", "139 GiB"),
        (-2048, "-2.0 KB", "-2.0 KiB"),
    ],
)
def test_a_count_is_written_for_people(count: int, text: str, binary: str) -> None:
    assert format_bytes(count) == text
    assert format_bytes(count, binary=True) == binary


@given(st.integers(min_value=0, max_value=2**64) | st.integers(0, 2**200 - 1))
def test_exact_text_reads_back_as_the_same_count(count: int) -> None:
    assert parse_bytes(format_bytes(count, exact=True)) == count


@given(st.integers(min_value=1, max_value=2**60), st.booleans())
def test_rounded_text_is_within_five_percent(count: int, binary: bool) -> None:
    assert parse_bytes(format_bytes(count, binary=binary)) == pytest.approx(count, rel=0.05)


@given(st.text(max_size=12))
def test_any_text_gives_a_size_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(BadInput):
        assert parse_bytes(text, of=100) >= 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.84, "0.8 s"), (53.4, "53 s"), (240, "4 min"), (7800, "2 h 10 min")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text

from __future__ import annotations

import io
import random
import sys
from array import array
from pathlib import Path

import pytest

from holdfast.base.errors import BadInput, MissingDependency
from holdfast.memory.profile.recording import Recording
from holdfast.memory.profile.timeline import Chart, Series, Timeline, thin_series
from tests.memory import samples
from tests.memory.samples import MS


def test_the_total_has_a_value_after_every_event() -> None:
    series = Timeline(samples.few()).series()["total"]
    assert list(series.times_ns) == [t * MS for t in (5, 10, 20, 25, 30, 40, 50)]
    assert list(series.bytes) == [0, 100, 130, 130, 150, 120, 100]


@pytest.mark.parametrize("by", ["place", "tag", "location"])
def test_the_parts_add_up_to_the_total(by: str) -> None:
    timeline = Timeline(samples.unet(2))
    parts = timeline.series(by, top=3)  # type: ignore[arg-type]
    sums = [sum(values) for values in zip(*(s.bytes for s in parts.values()), strict=True)]
    assert sums == list(timeline.series()["total"].bytes)


def test_names_come_in_the_order_of_the_most_they_held() -> None:
    parts = Timeline(samples.few()).series("place")
    assert {name: max(series.bytes) for name, series in parts.items()} == {
        "pool cuda:0 (weights)": 100,
        "torch cpu": 50,
    }
    assert list(Timeline(samples.few()).series("tag", top=1)) == ["(no tag)", "others"]


def test_series_by_anything_else_are_refused() -> None:
    with pytest.raises(BadInput) as caught:
        Timeline(samples.few()).series("colour")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "cannot make series by 'colour'\n"
        '  expected: "total", "place", "tag" or "location"'
    )  # fmt: skip


@pytest.mark.parametrize("points", [4, 5, 50, 999])
def test_thinning_keeps_the_ends_and_both_extremes(points: int) -> None:
    rng = random.Random(points)
    times = sorted(rng.randrange(10**6) ** 2 for _ in range(20_000))
    series = Series(times, [rng.randrange(10**9) for _ in times])
    thinned = thin_series(series, points)
    assert len(thinned.bytes) <= points
    assert (max(thinned.bytes), min(thinned.bytes)) == (max(series.bytes), min(series.bytes))
    assert (thinned.times_ns[0], thinned.times_ns[-1]) == (times[0], times[-1])
    assert set(zip(*thinned, strict=True)) <= set(zip(*series, strict=True))
    assert list(thinned.times_ns) == sorted(thinned.times_ns)


def test_every_stretch_of_time_keeps_its_own_peak() -> None:
    times = list(range(10_000))
    values = [1000 if t % 1000 == 500 else 0 for t in times]
    thinned = thin_series(Series(times, values), 60)
    assert [t for t, v in zip(*thinned, strict=True) if v == 1000] == list(range(500, 10_000, 1000))


def test_a_short_series_stays_as_it_is() -> None:
    series = Series(array("q", [1, 2]), array("q", [5, 6]))
    assert thin_series(series, 10) == ([1, 2], [5, 6])


def test_the_chart_shows_the_shape_in_letters() -> None:
    assert Timeline(samples.few()).chart(30, 4).splitlines() == [
        " 150 B┤       ▄▄▄▄████▂▂▂▂",
        "      │   ▅▅▅▅████████████▅▅▅",
        "  75 B┤   ███████████████████",
        "      │   ███████████████████",
        "   0 B┼──────────────────────",
        "       0              60.0 ms",
        "       peak 150 B, 30.0 ms after the start",
    ]


def test_plotting_without_a_path_prints_the_chart(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Timeline(samples.unet(1)).plot()
    assert isinstance(shown, Chart)
    assert capsys.readouterr().out == f"{shown}\n"
    assert repr(shown) == str(shown)
    assert "█" in shown


def test_a_peak_of_one_event_is_seen_in_the_narrowest_chart() -> None:
    chart = Timeline(samples.few()).chart(12, 2)
    assert "█" in chart.splitlines()[0]


def test_the_chart_fits_an_output_of_plain_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Timeline(samples.few()).plot()
    sys.stdout.flush()
    assert b"150 B+" in raw.getvalue()
    assert b"#" in raw.getvalue()


def test_plotting_works_where_there_is_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert "peak 150 B" in str(Timeline(samples.few()).plot())


def test_an_empty_recording_has_a_chart() -> None:
    assert "peak 0 B" in Timeline(Recording()).chart()


@pytest.mark.parametrize("made", [samples.unet(1), samples.few(), Recording()], ids=len)
@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")]
)
def test_pictures_are_drawn(made: Recording, name: str, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    assert Timeline(made).plot(path) == path
    assert path.read_bytes().startswith(start)


def test_a_title_is_no_formula(tmp_path: Path) -> None:
    made = samples.few()
    made.title = "$\\frac{ $x"
    assert Timeline(made).save(tmp_path / "a.svg").stat().st_size > 0


def test_a_picture_without_matplotlib_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency) as caught:
        Timeline(samples.few()).save(tmp_path / "a.png")
    assert str(caught.value) == (
        "cannot draw a picture: matplotlib is not installed\n"
        "  expected: matplotlib 3.9 or newer\n"
        "  try: pip install 'holdfast[plot]', or a name that ends in .html"
    )


def test_html_is_the_page(tmp_path: Path) -> None:
    path = Timeline(samples.few()).save(str(tmp_path / "a.html"))
    assert path.read_text().startswith("<!DOCTYPE html>")


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        Timeline(samples.few()).save("a.gif")
    assert str(caught.value) == (
        "cannot tell from 'a.gif' what to write\n"
        "  expected: a name that ends in .html or one of .png, .svg, .pdf"
    )


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "no" / "a.png"
    with pytest.raises(BadInput) as caught:
        Timeline(samples.few()).save(path)
    assert str(caught.value) == (
        f"cannot write {str(path)!r}: No such file or directory\n"
        "  expected: a path in a folder that exists"
    )

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import BadInput
from holdfast.memory.profile.recording import Event, Kind, Lifetime, MemoryPlace, Recording
from tests.memory import samples

EXPECTED = "\n  expected: a .hfmem file written by `holdfast mem record` or Recording.save"


def _changed(path: Path, **changes: Any) -> Path:
    """The recording of `few` with parts of its file replaced."""
    samples.few().save(path)
    with zipfile.ZipFile(path) as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    head = json.loads(parts["head.json"])
    head.update(changes.pop("head", {}))
    parts |= {"head.json": json.dumps(head).encode()} | changes
    with zipfile.ZipFile(path, "w") as packed:
        for name, data in parts.items():
            if data is not None:
                packed.writestr(name, data)
    return path


@pytest.mark.parametrize("made", [Recording(), samples.few(), samples.unet(1)], ids=len)
def test_what_was_saved_is_loaded_equal(made: Recording, tmp_path: Path) -> None:
    assert made.save(tmp_path / "a.hfmem") == tmp_path / "a.hfmem"
    assert Recording.load(tmp_path / "a.hfmem") == made


def test_a_file_that_was_there_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.hfmem"
    samples.unet(1).save(path)
    samples.few().save(path)
    assert Recording.load(path) == samples.few()
    assert list(tmp_path.iterdir()) == [path]


def test_events_come_back_as_they_were_added() -> None:
    made, event = (
        Recording(places_table=[MemoryPlace("pool", "cpu")]),
        Event(5, Kind.FREE, 9, 0, 0, 0, 0),
    )
    made.add(event)
    assert list(made.events()) == [event]
    assert len(made) == 1


def test_a_free_from_before_the_recording_is_no_lifetime() -> None:
    lives = samples.few().lifetimes()
    assert [(life.size, life.start_ns, life.end_ns) for life in lives] == [
        (100, 10 * samples.MS, None),
        (30, 20 * samples.MS, 40 * samples.MS),
        (20, 30 * samples.MS, 50 * samples.MS),
    ]


def test_a_second_alloc_at_an_address_ends_the_first_in_its_own_place_alone() -> None:
    made = Recording(places_table=[MemoryPlace("pool", "cpu"), MemoryPlace("pool", "cuda:0")])
    made.add(Event(1, Kind.ALLOC, 64, 10, 0, 0, 0))
    made.add(Event(2, Kind.ALLOC, 64, 20, 0, 1, 0))
    made.add(Event(3, Kind.ALLOC, 64, 30, 0, 0, 0))
    assert made.lifetimes() == [
        Lifetime(64, 10, 1, 3, 0, 0, 0),
        Lifetime(64, 20, 2, None, 0, 1, 0),
        Lifetime(64, 30, 3, None, 0, 0, 0),
    ]


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "no.hfmem"
    with pytest.raises(BadInput) as caught:
        Recording.load(path)
    assert str(caught.value) == f"there is no file {str(path)!r}{EXPECTED}"


def test_a_folder_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        Recording.load(tmp_path)
    assert str(caught.value) == f"cannot read {str(tmp_path)!r}: Is a directory{EXPECTED}"


def test_text_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.hfmem"
    path.write_text("hello")
    with pytest.raises(BadInput) as caught:
        Recording.load(path)
    assert str(caught.value) == (
        f"{str(path)!r} is not a memory recording: File is not a zip file{EXPECTED}"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head": {"holdfast_recording": 9}}, "it has version 9, this Holdfast reads 1"),
        ({"head": {"events": 8}}, "its columns have [7] rows, not 8"),
        ({"head": {"tags_table": [""]}}, "its tags point past the end of their table"),
        ({"kinds": b"\x07" * 7}, "its kinds point past the end of their table"),
        ({"series/0/bytes": b"\0" * 8}, "its series 'rss' has 3 times, 1 values"),
        ({"kinds": None}, "\"There is no item named 'kinds' in the archive\""),
        ({"head.json": b"[1]"}, "'list' object has no attribute 'get'"),
    ],
)  # fmt: skip
def test_a_broken_recording_is_refused_with_what_is_wrong(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = _changed(tmp_path / "a.hfmem", **changes)
    with pytest.raises(BadInput) as caught:
        Recording.load(path)
    assert str(caught.value) == f"{str(path)!r} is not a memory recording: {reason}{EXPECTED}"


def test_damage_anywhere_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.hfmem", random.Random(0)
    sound = samples.few().save(path).read_bytes()
    refused = 0
    for _ in range(400):
        data = bytearray(sound)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            assert Recording.load(path) == samples.few()
        except BadInput:
            refused += 1
    assert refused > 100


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.hfmem"
    data = samples.few().save(path).read_bytes()
    for length in range(0, len(data), 37):
        path.write_bytes(data[:length])
        with pytest.raises(BadInput):
            Recording.load(path)

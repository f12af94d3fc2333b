from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from PIL import Image

from holdfast.base.errors import BadInput, Unsupported
from holdfast.pipeline.output.media import (
    FORMATS,
    check_target,
    encode,
    read_settings,
    save,
)

SUFFIXES = list(FORMATS)
SETTINGS = {
    "model": "tiny-sd",
    "prompt": 'a lighthouse, "naïve" 灯台 🌊\nsecond line <b>',
    "negative": "blurry",
    "seed": 7,
    "steps": 20,
    "guidance": 7.5,
    "width": 96,
    "height": 64,
    "extra": {"deep": [1, None, True]},
}


def _frames(count: int = 1, height: int = 64, width: int = 96) -> numpy.ndarray:
    """Smooth colours that move from frame to frame."""
    y, x = numpy.mgrid[0:height, 0:width]
    frames = [
        numpy.stack([x * 200 // width + 5 * i, y * 250 // height, numpy.full_like(x, 60 + i)], -1)
        for i in range(count)
    ]
    return numpy.stack(frames).astype(numpy.uint8)


def _decoded(content: bytes, suffix: str) -> numpy.ndarray:
    if suffix == ".mp4":
        import av

        with av.open(io.BytesIO(content)) as container:
            frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
        return numpy.stack(frames)
    with Image.open(io.BytesIO(content)) as picture:
        frames = []
        for number in range(getattr(picture, "n_frames", 1)):
            picture.seek(number)
            frames.append(numpy.asarray(picture.convert("RGB")))
    return numpy.stack(frames)


# ---- round trips


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_settings_come_back_from_every_format(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    save(path, _frames(), SETTINGS)
    assert read_settings(path) == SETTINGS
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "x" * 10_000,
        "灯" * 3_400,
        "🌊" * 100_000,
        "many words " * 9_000,
        "holdfast: {}\n\0\r\t\x1b",
        "not text: \udcff",
    ],
    ids=["empty", "10 kB", "10 kB Chinese", "400 kB", "99 kB", "control", "bad bytes"],
)
def test_prompts_of_any_kind_survive(suffix: str, prompt: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    settings = {"prompt": prompt, "negative": prompt, "steps": 1}
    save(path, _frames(height=8, width=8), settings)
    assert read_settings(path) == settings


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_input_gives_the_same_bytes(suffix: str) -> None:
    frames = _frames(5 if FORMATS[suffix].video else 1)
    first = encode(frames, suffix, SETTINGS)
    assert all(encode(frames.copy(), suffix, dict(SETTINGS)) == first for _ in range(8))


@pytest.mark.parametrize("suffix", [".png", ".webp"])
@pytest.mark.parametrize(("height", "width"), [(64, 96), (1, 1), (33, 47)])
def test_lossless_formats_keep_every_pixel(suffix: str, height: int, width: int) -> None:
    noise = numpy.random.default_rng(1).integers(0, 256, (1, height, width, 3), numpy.uint8)
    assert numpy.array_equal(_decoded(encode(noise, suffix, {}), suffix), noise)


@pytest.mark.parametrize(("suffix", "limit"), [(".jpg", 1.5), (".gif", 4), (".mp4", 3)])
def test_lossy_formats_stay_near(suffix: str, limit: float) -> None:
    frames = _frames(9 if FORMATS[suffix].video else 1)
    shown = _decoded(encode(frames, suffix, {}), suffix)
    assert shown.shape == frames.shape
    assert numpy.abs(shown.astype(int) - frames).mean() < limit


def test_a_gif_lasts_as_long_as_its_frames() -> None:
    with Image.open(io.BytesIO(encode(_frames(16), ".gif", {}, fps=8))) as picture:
        durations = []
        for number in range(picture.n_frames):
            picture.seek(number)
            durations.append(picture.info["duration"])
        assert picture.info["loop"] == 0
    assert len(durations) == 16
    assert set(durations) == {120, 130}
    assert sum(durations) == 2000


def test_a_gif_is_never_so_fast_that_browsers_slow_it_down() -> None:
    with Image.open(io.BytesIO(encode(_frames(3), ".gif", {}, fps=120))) as picture:
        assert picture.info["duration"] == 20


def test_an_mp4_is_what_browsers_play() -> None:
    import av

    content = encode(_frames(16), ".mp4", SETTINGS, fps=12)
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert (context.name, context.pix_fmt, context.colorspace) == ("h264", "yuv420p", 1)
        assert (stream.frames, stream.average_rate) == (16, 12)
        assert container.metadata["description"] == SETTINGS["prompt"]
    assert content.index(b"moov") < content.index(b"mdat")


@pytest.mark.parametrize(("height", "width"), [(63, 95), (1, 1), (40, 301)])
def test_an_mp4_with_odd_sides_repeats_the_last_row_and_column(height: int, width: int) -> None:
    frames = _frames(3, height, width)
    shown = _decoded(encode(frames, ".mp4", {}), ".mp4")
    assert shown.shape == (3, height + height % 2, width + width % 2, 3)
    assert numpy.abs(shown[:, :height, :width].astype(int) - frames).mean() < 6


# ---- for other programs


def test_a_png_tells_other_programs_what_it_is() -> None:
    with Image.open(io.BytesIO(encode(_frames(), ".png", SETTINGS))) as picture:
        texts = dict(picture.info)
    assert json.loads(texts.pop("holdfast")) == SETTINGS
    assert texts == {
        "Description": SETTINGS["prompt"],
        "parameters": 'a lighthouse, "naïve" 灯台 🌊\nsecond line <b>\n'
        "Negative prompt: blurry\n"
        "Steps: 20, CFG scale: 7.5, Seed: 7, Model: tiny-sd, Size: 96x64",
    }


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_the_prompt_is_the_description_of_a_picture(suffix: str) -> None:
    with Image.open(io.BytesIO(encode(_frames(), suffix, {"prompt": "a cat"}))) as picture:
        assert picture.getexif()[0x010E] == "a cat"


def test_values_that_json_does_not_know_become_text(tmp_path: Path) -> None:
    save(tmp_path / "a.png", _frames(), {"folder": Path("x"), "dtype": numpy.dtype("f4")})
    assert read_settings(tmp_path / "a.png") == {"folder": "x", "dtype": "float32"}


def test_settings_that_are_no_settings_are_refused() -> None:
    with pytest.raises(BadInput) as caught:
        encode(_frames(), ".png", {"a": {(1, 2): 3}})
    assert str(caught.value) == (
        "cannot write these settings: "
        "keys must be str, int, float, bool or None, not tuple\n"
        "  expected: names and values"
    )


# ---- before the run


@pytest.mark.parametrize(
    "name", ["a.png", "A.PNG", "a.b.jpeg", "a.webp", "a.jpg", "a.gif", "a.mp4"]
)
def test_a_good_target_is_accepted_and_not_touched(name: str, tmp_path: Path) -> None:
    check_target(tmp_path / name, 1)
    assert list(tmp_path.iterdir()) == []
    save(tmp_path / name, _frames(), {})
    check_target(tmp_path / name, 1)


@pytest.mark.parametrize("name", ["a.gif", "a.mp4"])
def test_a_video_takes_any_number_of_frames(name: str, tmp_path: Path) -> None:
    check_target(tmp_path / name, 81)


@pytest.mark.parametrize(
    ("name", "why", "hint"),
    [
        ("cat.pgn", "unknown format '.pgn'", "cat.png"),
        ("cat.jpge", "unknown format '.jpge'", "cat.jpg"),
        ("cat.mov", "unknown format '.mov'", "cat.mp4"),
        ("cat.WEBM", "unknown format '.WEBM'", "cat.mp4"),
        ("cat.tiff", "unknown format '.tiff'", "cat.png"),
        ("cat.bmp", "unknown format '.bmp'", "cat.png"),
        ("cat", "its name does not say which format", "cat.png"),
    ],
)
def test_an_unknown_suffix_is_refused(name: str, why: str, hint: str) -> None:
    message = (
        f"cannot write {name!r}: {why}\n"
        "  expected: one of .png, .webp, .jpg, .jpeg, .gif, .mp4\n"
        f"  try: {hint}"
    )
    with pytest.raises(BadInput) as caught:
        check_target(Path(name), 1)
    assert str(caught.value) == message
    with pytest.raises(BadInput) as caught:
        save(Path(name), _frames(), {})
    assert str(caught.value) == message


def test_several_frames_do_not_go_into_a_picture(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        check_target(Path("cat.png"), 16)
    assert str(caught.value) == (
        "cannot write 16 frames to 'cat.png': a PNG file holds one\n"
        "  expected: .gif or .mp4 for a video\n"
        "  try: cat.gif or cat.mp4"
    )
    with pytest.raises(BadInput) as caught:
        save(tmp_path / "cat.jpg", _frames(2), {})
    assert str(caught.value) == (
        "cannot write 2 frames to '.jpg': a JPEG file holds one\n"
        "  expected: .gif or .mp4 for a video\n"
        "  try: .gif or .mp4"
    )


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "my out" / "deep"
    with pytest.raises(BadInput) as caught:
        check_target(folder / "a.png", 1)
    assert str(caught.value) == (
        f"cannot write '{folder}/a.png': there is no folder '{folder}'\n"
        "  expected: a path in a folder that exists\n"
        f"  try: mkdir -p '{folder}'"
    )


@pytest.mark.parametrize("rest", ["a.png", "deep/a.png"])
def test_a_file_is_no_folder(rest: str, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    with pytest.raises(BadInput) as caught:
        check_target(tmp_path / "notes" / rest, 1)
    assert str(caught.value) == (
        f"cannot write '{tmp_path}/notes/{rest}': '{tmp_path}/notes' is not a folder\n"
        "  expected: a path in a folder that exists"
    )


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(BadInput) as caught:
        check_target(tmp_path / "a.png", 1)
    assert str(caught.value) == (
        f"cannot write '{tmp_path}/a.png': it is a folder\n"
        "  expected: the name of a file\n"
        f"  try: {tmp_path}/a.png/picture.png"
    )


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 260 + ".png")
    with pytest.raises(BadInput) as caught:
        check_target(path, 1)
    assert str(caught.value) == (
        f"cannot write '{path}': File name too long\n"
        "  expected: a name that the disk can take\n"
        "  try: a shorter name"
    )


# ---- frames that do not fit


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        (numpy.zeros((1, 8, 8, 3), "f4"), "shape [1, 8, 8, 3] and type float32"),
        (numpy.zeros((8, 8, 3), "u1"), "shape [8, 8, 3] and type uint8"),
        (numpy.zeros((1, 8, 8, 4), "u1"), "shape [1, 8, 8, 4] and type uint8"),
        (numpy.zeros((0, 8, 8, 3), "u1"), "shape [0, 8, 8, 3] and type uint8"),
        (numpy.zeros((1, 0, 8, 3), "u1"), "shape [1, 0, 8, 3] and type uint8"),
    ],
)
def test_arrays_that_are_no_frames_are_refused(frames: numpy.ndarray, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        encode(frames, ".gif", {})
    assert str(caught.value) == (
        f"cannot write frames of {what}\n"
        "  expected: uint8 of shape [frame, height, width, 3], and at least one pixel"
    )


def test_frames_that_are_too_large_for_a_format_are_refused() -> None:
    with pytest.raises(BadInput) as caught:
        encode(numpy.zeros((1, 2, 16384, 3), "u1"), ".webp", {})
    assert str(caught.value) == (
        "cannot write 16384x2 pixels as WebP\n"
        "  expected: sides of at most 16383 pixels\n"
        "  try: .png"
    )


@pytest.mark.parametrize("suffix", [s for s in SUFFIXES if s != ".png"])
def test_the_longest_side_can_be_written(suffix: str) -> None:
    longest = FORMATS[suffix].longest_side
    content = encode(numpy.zeros((1, 2, longest, 3), "u1"), suffix, {})
    assert _decoded(content, suffix).shape == (1, 2, longest, 3)


def test_frames_need_a_speed_and_a_known_format() -> None:
    with pytest.raises(BadInput) as caught:
        encode(_frames(2), ".gif", {}, fps=0)
    assert str(caught.value) == "cannot write 0 frames a second\n  expected: 1 to 240"
    with pytest.raises(BadInput) as caught:
        encode(_frames(), ".bmp", {})
    assert str(caught.value) == (
        "unknown format '.bmp'\n  expected: one of .png, .webp, .jpg, .jpeg, .gif, .mp4"
    )


# ---- disks that refuse

HEAD = """
import os, resource, sys
import numpy
from pathlib import Path
from holdfast.base.errors import HoldfastError
from holdfast.pipeline.output.media import check_target, read_settings, save
path = Path(sys.argv[1])
noise = numpy.random.default_rng(1).integers(0, 256, (1, 256, 256, 3), numpy.uint8)
"""
IN_A_NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount"]


def _child(program: str, path: Path, *, disk: str | None = None) -> list[str]:
    """What a program of its own prints; `disk` has options for a small disk around `path`."""
    body = "".join(f"\n    {line}" for line in program.strip().splitlines())
    tail = "\nexcept HoldfastError as exc:\n    print(type(exc).__name__, exc, sep='\\n')"
    command = [sys.executable, "-W", "error", "-c", HEAD + "try:" + body + tail, str(path)]
    if disk:
        mount = f'mount -t tmpfs -o {disk} none "$0" && exec "$@"'
        command = [*IN_A_NAMESPACE, "sh", "-c", mount, str(path.parent), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


@pytest.fixture
def mountable(tmp_path: Path) -> Path:
    """A folder on which a child can mount a small disk."""
    try:
        command = [*IN_A_NAMESPACE, "mount", "-t", "tmpfs", "none", str(tmp_path)]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system does not let a program mount a disk of its own")
    return tmp_path


def test_a_file_that_may_not_grow_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    program = "resource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999))\nsave(path, noise, {})"
    assert _child(program, path) == [
        "BadInput",
        f"cannot write '{path}' (197 KB): File too large",
        "  expected: a file within the limit on sizes",
        "  try: ulimit -f unlimited",
    ]
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.symlink_to("/dev/full")
    with pytest.raises(BadInput) as caught:
        save(path, _frames(), {})
    size = len(encode(_frames(), ".png", {}))
    assert str(caught.value) == (
        f"cannot write '{path}' ({size} B): No space left on device\n"
        "  expected: room on the disk for it\n"
        "  try: free some space, or write to another disk"
    )


def test_a_disk_that_fills_up_is_left_as_it_was(mountable: Path) -> None:
    path = mountable / "a.png"
    program = """
path.write_bytes(b"old")
try:
    save(path, noise, {})
finally:
    print(os.listdir(path.parent), path.read_bytes())
"""
    assert _child(program, path, disk="size=64k") == [
        "['a.png'] b'old'",
        "BadInput",
        f"cannot write '{path}' (197 KB): No space left on device",
        "  expected: room on the disk for it",
        "  try: free some space, or write to another disk",
    ]


def test_a_disk_that_cannot_be_written_is_refused_before_the_run(mountable: Path) -> None:
    path = mountable / "a.png"
    assert _child("check_target(path, 1)", path, disk="ro") == [
        "BadInput",
        f"cannot write '{path}': Read-only file system",
        "  expected: a disk that can be written",
        "  try: write to another disk",
    ]


def test_a_folder_of_others_is_refused_before_the_run() -> None:
    path = Path("/picture.png")
    program = "if os.geteuid() == 0:\n    os.seteuid(65534)\ncheck_target(path, 1)"
    assert _child(program, path) == [
        "BadInput",
        "cannot write '/picture.png': Permission denied",
        "  expected: a folder that you may write to",
        "  try: write to a folder of your own",
    ]


def test_a_folder_that_went_away_during_the_run_is_an_error_in_three_parts(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "a.png"
    with pytest.raises(BadInput) as caught:
        save(path, _frames(), {})
    size = len(encode(_frames(), ".png", {}))
    assert str(caught.value) == (
        f"cannot write '{path}' ({size} B): No such file or directory\n"
        "  expected: a path in a folder that can be written\n"
        "  try: write to another folder"
    )


def test_ctrl_c_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def interrupted(number: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(path, _frames(), {})
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


# ---- the extra for videos


@pytest.mark.parametrize("call", ["check_target(path, 9)", "save(path, noise, {})"])
def test_an_mp4_without_its_package_says_how_to_get_it(call: str, tmp_path: Path) -> None:
    assert _child(f"sys.modules['av'] = None\n{call}", tmp_path / "a.mp4") == [
        "MissingDependency",
        "cannot load format '.mp4': the package 'av' is not installed",
        "  expected: the packages of the extra 'video'",
        "  try: pip install 'holdfast[video]'",
    ]


def test_other_formats_do_without_the_package_for_videos(tmp_path: Path) -> None:
    program = "check_target(path, 1); save(path, noise, {}); read_settings(path)\n"
    assert _child(program + "print('av' in sys.modules)", tmp_path / "a.gif") == ["False"]


def test_a_build_without_an_encoder_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import av

    monkeypatch.setattr(av, "codecs_available", {"mpeg4"})
    with pytest.raises(Unsupported) as caught:
        check_target(tmp_path / "a.mp4", 9)
    assert str(caught.value) == (
        "cannot write .mp4: this build of PyAV has no H.264 encoder\n"
        "  expected: PyAV with libx264, as its wheels on PyPI have it\n"
        "  try: pip install --force-reinstall --only-binary av 'holdfast[video]', or .gif"
    )


# ---- files of others


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_name_of_a_file_does_not_matter_for_reading(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "download").write_bytes(encode(_frames(), suffix, SETTINGS))
    assert read_settings(tmp_path / "download") == SETTINGS


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read_settings(tmp_path / "a.png")
    assert str(caught.value) == (
        f"cannot read '{tmp_path}/a.png': No such file or directory\n"
        "  expected: a picture or video that holdfast wrote"
    )


@pytest.mark.parametrize("content", [b"", b"hello", b"\0\0\0\x20ftypisom", b"\x89PNG\r\n\x1a\n"])
def test_a_file_that_is_no_picture_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_settings(tmp_path / "a.png")
    assert str(caught.value) == (
        f"cannot read '{tmp_path}/a.png': it is damaged, or no PNG, WebP, JPEG, GIF, MP4 file\n"
        "  expected: a picture or video that holdfast wrote"
    )


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("WEBP", {}),
        ("JPEG", {}),
        ("JPEG", {"comment": b"made by \xff"}),
        ("GIF", {"comment": b"made by \xff"}),
        ("GIF", {"comment": b'{"holdfast": 3}'}),
        ("GIF", {"comment": b"[" * 100_000}),
    ],
)
def test_a_picture_of_somebody_else_holds_no_settings(
    form: str, options: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "a.bin"
    Image.new("RGB", (8, 8)).save(path, form, **options)
    with pytest.raises(BadInput) as caught:
        read_settings(path)
    assert str(caught.value) == (
        f"cannot read the settings in '{path}': it holds none\n"
        "  expected: a picture or video that holdfast wrote\n"
        "  try: the original file: many programs and web sites drop them from copies"
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_file_gives_settings_or_a_refusal(suffix: str, tmp_path: Path) -> None:
    whole, dice = encode(_frames(height=16, width=16), suffix, SETTINGS), random.Random(1)
    path = tmp_path / "a"
    for _ in range(150):
        content = bytearray(whole[: dice.randrange(len(whole))] if dice.random() < 0.3 else whole)
        for _ in range(dice.randrange(4)):
            if content:
                content[dice.randrange(len(content))] = dice.randrange(256)
        path.write_bytes(content)
        with contextlib.suppress(BadInput):
            assert isinstance(read_settings(path), dict)

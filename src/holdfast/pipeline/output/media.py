"""Pictures and videos as files, with the settings of the run inside.

Files are written atomically. The same frames and settings give the same bytes with the same
libraries. `read_settings` returns what `encode` was given.
"""

from __future__ import annotations

import difflib
import errno
import io
import json
import shlex
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
from PIL import ExifTags, Image, PngImagePlugin

from holdfast.base.errors import BadInput, Unsupported
from holdfast.base.files import write_whole
from holdfast.base.registry import Entry, Registry
from holdfast.base.units import format_bytes

MAX_FPS = 240  # frames a second
KEY = "holdfast"  # name of the settings in every file format


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: name, whether it holds several frames, longest side in pixels."""

    name: str
    video: bool
    longest_side: int


FORMATS: Mapping[str, Format] = {
    ".png": Format("PNG", video=False, longest_side=2**31 - 1),
    ".webp": Format("WebP", video=False, longest_side=16383),
    ".jpg": Format("JPEG", video=False, longest_side=65500),
    ".jpeg": Format("JPEG", video=False, longest_side=65500),
    ".gif": Format("GIF", video=True, longest_side=65535),
    ".mp4": Format("MP4", video=True, longest_side=16384),
}
_LIBRARIES: Registry[Any] = Registry(
    "format", {".mp4": Entry("av", "H.264 through PyAV", extra="video")}
)
_KIN = {
    ".png": (".bmp", ".tif", ".tiff", ".avif", ".heic", ".ppm"),
    ".mp4": (".mov", ".webm", ".mkv", ".avi", ".mpg", ".mpeg", ".m4v"),
    ".gif": (".apng",),
}
_ONE_OF = f"one of {', '.join(FORMATS)}"
_LARGEST_SEGMENT = 65_000  # bytes; a JPEG counts the length of a segment in 16 bits
_FULL = ("room on the disk for it", "free some space, or write to another disk")
_NOT_YOURS = ("a folder that you may write to", "write to a folder of your own")
_NARROW, _WIDE = b"ASCII\0\0\0", b"UNICODE\0"  # EXIF's prefixes for the encoding of a comment


def check_target(path: Path, num_frames: int) -> None:
    """Check, before any work, that `num_frames` frames can be written to `path`.

    Raises BadInput with what to do about it, MissingDependency for a .mp4 without PyAV.
    """
    suffix = path.suffix.lower()
    try:
        if suffix not in FORMATS and not path.is_dir():
            raise _unknown(path)
    except OSError as exc:
        raise _write_error(path, exc) from exc
    check_folder(path)
    check_format(suffix, num_frames, path)
    if suffix in _LIBRARIES:
        _load_av()


def _unknown(path: Path) -> BadInput:
    suffix = path.suffix.lower()
    kin = next((known for known, others in _KIN.items() if suffix in others), None)
    close = difflib.get_close_matches(suffix, FORMATS, n=1, cutoff=0.75)
    best = kin or (close[0] if close else ".png")
    why = f"unknown format {path.suffix!r}" if suffix else "its name does not say which format"
    return BadInput(
        f"cannot write {str(path)!r}: {why}", expected=_ONE_OF, hint=str(path.with_suffix(best))
    )


def check_format(suffix: str, num_frames: int, path: Path | None = None) -> None:
    """Raise BadInput if the file format cannot hold that many frames."""
    if num_frames == 1 or FORMATS[suffix].video:
        return
    others = [known for known, form in FORMATS.items() if form.video]
    raise BadInput(
        f"cannot write {num_frames} frames to {str(path or suffix)!r}: "
        f"a {FORMATS[suffix].name} file holds one",
        expected=" or ".join(others) + " for a video",
        hint=" or ".join(str(path.with_suffix(other)) if path else other for other in others),
    )


def check_fps(fps: int) -> None:
    """Raise BadInput for a frame rate out of range."""
    if not 1 <= fps <= MAX_FPS:
        raise BadInput(f"cannot write {fps} frames a second", expected=f"1 to {MAX_FPS}")


def check_folder(path: Path) -> None:
    """Raise BadInput if no file can be written to `path`."""
    try:
        path.resolve()
        if path.is_dir():
            raise BadInput(
                f"cannot write {str(path)!r}: it is a folder",
                expected="the name of a file",
                hint=str(path / "picture.png"),
            )
        folder = path.parent
        nearest = next((place for place in (folder, *folder.parents) if place.exists()), None)
        if nearest is not None and not nearest.is_dir():
            raise BadInput(
                f"cannot write {str(path)!r}: {str(nearest)!r} is not a folder",
                expected="a path in a folder that exists",
            )
        if nearest != folder:
            raise BadInput(
                f"cannot write {str(path)!r}: there is no folder {str(folder)!r}",
                expected="a path in a folder that exists",
                hint=f"mkdir -p {shlex.quote(str(folder))}",
            )
        # Permissions do not show quotas and odd file systems.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        raise _write_error(path, exc) from exc
    except RuntimeError as exc:
        raise BadInput(
            f"cannot write {str(path)!r}: it is a link to itself", expected="the name of a file"
        ) from exc


def _write_error(path: Path, exc: OSError, size_bytes: int | None = None) -> BadInput:
    size = "" if size_bytes is None else f" ({format_bytes(size_bytes)})"
    remedies = {
        errno.ENOSPC: _FULL,
        errno.EDQUOT: _FULL,
        errno.EFBIG: ("a file within the limit on sizes", "ulimit -f unlimited"),
        errno.EROFS: ("a disk that can be written", "write to another disk"),
        errno.EACCES: _NOT_YOURS,
        errno.EPERM: _NOT_YOURS,
        errno.ENAMETOOLONG: ("a name that the disk can take", "a shorter name"),
    }
    usual = ("a path in a folder that can be written", "write to another folder")
    expected, hint = remedies.get(exc.errno or 0, usual)
    return BadInput(
        f"cannot write {str(path)!r}{size}: {exc.strerror or exc}", expected=expected, hint=hint
    )


def _load_av() -> Any:
    """PyAV with an encoder for H.264. Raises MissingDependency or Unsupported."""
    av = _LIBRARIES[".mp4"]
    if "libx264" not in av.codecs_available:
        raise Unsupported(
            "cannot write .mp4: this build of PyAV has no H.264 encoder",
            expected="PyAV with libx264, as its wheels on PyPI have it",
            hint="pip install --force-reinstall --only-binary av 'holdfast[video]', or .gif",
        )
    return av


def save(path: Path, frames: numpy.ndarray, settings: Mapping[str, Any], fps: int = 8) -> None:
    """Write `frames` to `path` in the format of its suffix, atomically.

    Raises BadInput with a remedy if the format or the disk refuses them.
    """
    if path.suffix.lower() not in FORMATS:
        raise _unknown(path)
    content = encode(frames, path.suffix, settings, fps)
    try:
        write_whole(path, content)
    except OSError as exc:
        raise _write_error(path, exc, len(content)) from exc


def encode(frames: numpy.ndarray, suffix: str, settings: Mapping[str, Any], fps: int = 8) -> bytes:
    """Encode uint8 `frames` [frame, height, width, colour] with `settings` inside.

    PNG and WebP are lossless. A GIF shows at most 50 frames a second. An MP4 with an odd side
    repeats its last row or column. Values that JSON does not know become text.
    """
    suffix = suffix.lower()
    if suffix not in FORMATS:
        raise BadInput(f"unknown format {suffix!r}", expected=_ONE_OF)
    _check_frames(frames, FORMATS[suffix], fps)
    check_format(suffix, len(frames))
    if suffix == ".mp4":
        return _mp4(frames, settings, fps)
    if suffix == ".gif":
        return _gif(frames, settings, fps)
    picture, file = Image.fromarray(frames[0]), io.BytesIO()
    if suffix in (".jpg", ".jpeg"):
        return _jpeg(picture, settings)
    if suffix == ".png":
        # Not under "prompt": ComfyUI would take that for a workflow, and fail.
        texts = PngImagePlugin.PngInfo()
        texts.add_itxt(KEY, _json(settings))
        if description := _description(settings):
            texts.add_itxt("Description", description)
        if parameters := _parameters(picture, settings):
            texts.add_itxt("parameters", parameters)
        picture.save(file, "PNG", pnginfo=texts)
    else:
        exif = _exif(_description(settings), _pack_settings(settings))
        picture.save(file, "WEBP", lossless=True, exif=exif)
    return file.getvalue()


def _check_frames(frames: numpy.ndarray, form: Format, fps: int) -> None:
    good = frames.dtype == numpy.uint8 and frames.ndim == 4 and frames.shape[3] == 3
    if not good or 0 in frames.shape:
        raise BadInput(
            f"cannot write frames of shape {list(frames.shape)} and type {frames.dtype}",
            expected="uint8 of shape [frame, height, width, 3], and at least one pixel",
        )
    height, width = frames.shape[1:3]
    if max(height, width) > form.longest_side:
        raise BadInput(
            f"cannot write {width}x{height} pixels as {form.name}",
            expected=f"sides of at most {form.longest_side} pixels",
            hint=".png",
        )
    check_fps(fps)


def _parameters(picture: Image.Image, settings: Mapping[str, Any]) -> str | None:
    """The settings in AUTOMATIC1111's text format, which many programs read."""
    if settings.get("steps") is None:
        return None
    labels = {"Steps": "steps", "CFG scale": "guidance", "Seed": "seed", "Model": "model"}
    values = {label: settings.get(name) for label, name in labels.items()}
    values["Size"] = f"{picture.width}x{picture.height}"
    last = ", ".join(f"{label}: {value}" for label, value in values.items() if value is not None)
    lines = [settings.get("prompt") or ""]
    if negative := settings.get("negative"):
        lines.append(f"Negative prompt: {negative}")
    return _clean_text("\n".join([*lines, last]))


def _exif(description: str, comment: str) -> Image.Exif:
    exif = Image.Exif()
    if description:
        exif[ExifTags.Base.ImageDescription] = description.encode()
    narrow = comment.isascii()
    content = _NARROW + comment.encode() if narrow else _WIDE + comment.encode("utf-16-be")
    exif[ExifTags.IFD.Exif] = {ExifTags.Base.UserComment: content}
    return exif


def _jpeg(picture: Image.Image, settings: Mapping[str, Any]) -> bytes:
    """Settings in the EXIF block, or split into comments if they are too long."""
    comment, file = _pack_settings(settings), io.BytesIO()
    for description in (_description(settings), ""):
        exif = _exif(description, comment)
        if len(exif.tobytes()) <= _LARGEST_SEGMENT:
            picture.save(file, "JPEG", quality=95, subsampling=0, exif=exif)
            return file.getvalue()
    picture.save(file, "JPEG", quality=95, subsampling=0)
    content, text = file.getvalue(), comment.encode()
    parts = [text[i : i + _LARGEST_SEGMENT] for i in range(0, len(text), _LARGEST_SEGMENT)]
    segments = [b"\xff\xfe" + (len(part) + 2).to_bytes(2, "big") + part for part in parts]
    place = 4 + int.from_bytes(content[4:6], "big")  # after the header, which has to come first
    return content[:place] + b"".join(segments) + content[place:]


def _gif(frames: numpy.ndarray, settings: Mapping[str, Any], fps: int) -> bytes:
    """One palette for all frames, so that colours do not flicker."""
    pixels = frames.reshape(1, -1, 3)
    palette = Image.fromarray(pixels[:, :: 1 + pixels.shape[1] // 2**20]).quantize(256)
    pictures = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
        for frame in frames
    ]
    # In hundredths of a second, without accumulated rounding; browsers slow frames below two
    # hundredths down to ten.
    starts = [round(100 * i / min(fps, 50)) for i in range(len(frames) + 1)]
    durations_ms = [10 * (end - start) for start, end in pairwise(starts)]
    file = io.BytesIO()
    pictures[0].save(
        file,
        "GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=durations_ms if len(frames) > 1 else 0,
        loop=0,
        comment=f"{_description(settings)}\n{_pack_settings(settings)}".encode(),
    )
    return file.getvalue()


def _mp4(frames: numpy.ndarray, settings: Mapping[str, Any], fps: int) -> bytes:
    av = _load_av()
    frames = numpy.pad(
        frames, ((0, 0), (0, frames.shape[1] % 2), (0, frames.shape[2] % 2), (0, 0)), mode="edge"
    )
    file = io.BytesIO()
    with av.open(
        file,
        "w",
        format="mp4",
        options={"movflags": "faststart"},  # can play before it is fully downloaded
        io_open=lambda *_: io.BytesIO(file.getvalue()),  # faststart reads the file again
    ) as container:
        container.flags |= av.container.Flags.bitexact.value  # no library versions in the file
        container.metadata.update(
            comment=_pack_settings(settings), description=_description(settings)
        )
        stream = container.add_stream("libx264", rate=fps, options={"crf": "16"})
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "yuv420p"
        context = stream.codec_context
        context.thread_count = 1  # x264's output depends on the number of threads
        context.color_range = context.colorspace = context.color_primaries = context.color_trc = 1
        for frame in frames:
            whole = av.VideoFrame.from_ndarray(numpy.ascontiguousarray(frame), format="rgb24")
            # BT.709, and tagged so: players would guess by the size.
            yuv = whole.reformat(
                format="yuv420p",
                src_colorspace="ITU709",
                dst_colorspace="ITU709",
                src_color_range="JPEG",
                dst_color_range="MPEG",
            )
            container.mux(stream.encode(yuv))
        container.mux(stream.encode(None))
    return file.getvalue()


def _json(settings: object) -> str:
    try:
        text = json.dumps(settings, ensure_ascii=False, default=str)
    except (TypeError, ValueError) as exc:
        raise BadInput(f"cannot write these settings: {exc}", expected="names and values") from exc
    # Non-UTF-8 bytes of a command line arrive as lone surrogates; escape them.
    return text.encode("utf-8", "backslashreplace").decode()


def _pack_settings(settings: Mapping[str, Any]) -> str:
    """One line of JSON, under our key."""
    return _json({KEY: dict(settings)})


def _clean_text(text: object) -> str:
    return str(text).encode("utf-8", "replace").decode().replace("\0", "")


def _description(settings: Mapping[str, Any]) -> str:
    return _clean_text(settings.get("prompt") or "")


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings from a file that `save` wrote, whatever its name is now.

    Raises BadInput if there are none, MissingDependency for a video without PyAV.
    """
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise BadInput(
            f"cannot read {str(path)!r}: {exc.strerror}",
            expected="a picture or video that holdfast wrote",
        ) from exc
    av = _LIBRARIES[".mp4"] if content[4:8] == b"ftyp" else None
    try:
        if av:
            with av.open(io.BytesIO(content)) as container:
                text = container.metadata.get("comment", "")
        else:
            text = _picture_text(content)
    except Exception as exc:  # a damaged file makes the libraries raise anything
        names = dict.fromkeys(form.name for form in FORMATS.values())
        raise BadInput(
            f"cannot read {str(path)!r}: it is damaged, or no {', '.join(names)} file",
            expected="a picture or video that holdfast wrote",
        ) from exc
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    settings = document.get(KEY) if isinstance(document, dict) else None
    if not isinstance(settings, dict):
        raise BadInput(
            f"cannot read the settings in {str(path)!r}: it holds none",
            expected="a picture or video that holdfast wrote",
            hint="the original file: many programs and web sites drop them from copies",
        )
    return settings


def _picture_text(content: bytes) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pixels and foreign tags
        with Image.open(io.BytesIO(content), formats=["PNG", "WEBP", "JPEG", "GIF"]) as picture:
            if picture.format == "PNG":
                return f'{{"{KEY}": {picture.info.get(KEY, "null")}}}'
            if picture.format == "GIF":
                comment = picture.info.get("comment", b"")
                return comment.decode(errors="replace").rpartition("\n")[2]
            parts = [part for name, part in getattr(picture, "applist", []) if name == "COM"]
            comment = b"".join(parts).decode(errors="replace")
            return comment if KEY in comment else _user_comment(picture)


def _user_comment(picture: Image.Image) -> str:
    comment = picture.getexif().get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.UserComment)
    if not isinstance(comment, bytes):
        return ""
    return comment[8:].decode("utf-16-be" if comment[:8] == _WIDE else "ascii", "replace")

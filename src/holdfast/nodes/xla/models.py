"""The model that the TPU nodes share: finding it, loading it once, letting go of it.

Covers: which files a `model_id` means, whether they have changed, the one model that is kept, what
a stage stumbles over in Holdfast's words.
Leaves to others: loading and drawing (pipeline), ComfyUI's folders (host).
Promise: inside of ComfyUI a `model_id` reads nothing but built-in models, ComfyUI's own folders of
models and the hub; in plain Python it may be any path. A model whose files have changed is loaded
anew. Nobody unloads a model that is at work.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import BadInput, HoldfastError, NotFound, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.nodes import host
from holdfast.nodes.xla.sockets import Layout

if TYPE_CHECKING:
    from holdfast.pipeline import Event, Pipeline, Settings

# What the nodes offer, and what holdfast.pipeline calls it.
DEVICES = {
    "auto (TPU, GPU or CPU)": "xla",
    "auto, text encoder on CPU": "text=cpu,denoise=xla,decode=xla",
    "cpu (torch)": "cpu",
    "cuda (torch)": "cuda",
}
AUTO = next(iter(DEVICES))

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LONGEST = 1000
_MOST_FILES = 10_000
# How often the features of each pixel are there at once while a picture is decoded: as measured.
_DECODING = 9
_ALLOWED = "a built-in model, a folder or file in ComfyUI's models folder, or a hub id"
_ADVICE = "tiny-flux or tiny-wan, a name such as FLUX.1-dev in models/diffusers"


# ---- from a name to files


def find(model_id: str) -> str:
    """What `Pipeline.load` is to load for a name from a workflow.

    Raises BadInput for a path that leads out of ComfyUI's folders, NotFound for what is nothing.
    """
    from holdfast.pipeline import built_in

    name = model_id.strip() if isinstance(model_id, str) else ""
    if not name or len(name) > _LONGEST or not name.isprintable():
        raise BadInput(f"cannot use model_id={_short(model_id)}", expected=_ALLOWED, hint=_ADVICE)
    roots = host.model_roots()
    if name in built_in() or roots is None:
        return name
    inside = _inside(name, roots)
    if inside is not None:
        return str(inside)
    if _HUB_ID.fullmatch(name) and not Path(name).exists():  # else the path would be taken
        return name
    raise NotFound(f"cannot find model {_short(name)}", expected=_ALLOWED, hint=_ADVICE)


def refusal(model_id: object) -> str | None:
    """Why a `model_id` will not do, in three parts; None where `find` has no objection."""
    try:
        find(str(model_id))
    except HoldfastError as exc:
        return str(exc)
    return None


def fingerprint(model_id: str) -> str:
    """Another text when a file of the model has another size or time; needs no network.

    Raises what `find` raises.
    """
    from holdfast.pipeline.sources import BUILT_IN

    found = find(model_id)
    built_in = BUILT_IN / found
    path = built_in if built_in.is_dir() and Path(found).name == found else Path(found).expanduser()
    digest = hashlib.sha256(found.encode())
    for name, size, changed_ns in sorted(_files(path)):
        digest.update(f"{name}\0{size}\0{changed_ns}\n".encode())
    return digest.hexdigest()


def _inside(name: str, roots: tuple[Path, ...]) -> Path | None:
    """The file or folder of that name below one of ComfyUI's folders, if it is there.

    Links that somebody has put into these folders are followed; the name itself leads nowhere else.
    """
    path = PurePosixPath(name.replace("\\", "/"))
    below = [root for root in roots if Path(name).is_relative_to(root)]
    outside = path.is_absolute() or Path(name).is_absolute() or Path(name).drive
    if ".." in path.parts or name.startswith("~") or (outside and not below):
        raise BadInput(
            f"cannot load model {_short(name)}: it is outside of ComfyUI's models folders",
            expected=_ALLOWED,
            hint="a link to it in models/diffusers, or extra_model_paths.yaml",
        )
    candidates = [Path(name)] if below else [root / name for root in roots]
    return next((one for one in candidates if one.exists() and one not in roots), None)


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    if path.is_file():
        stat = path.stat()
        yield path.name, stat.st_size, stat.st_mtime_ns
    count = 0
    for folder, _, names in os.walk(path) if path.is_dir() else ():
        for name in names:
            with contextlib.suppress(OSError):  # a link to nothing, or gone meanwhile
                stat = Path(folder, name).stat()
                yield str(Path(folder, name)), stat.st_size, stat.st_mtime_ns
            count += 1
            if count >= _MOST_FILES:
                return


def _short(name: object) -> str:
    shown = repr(name)
    return shown if len(shown) <= 200 else f"{shown[:197]}…{shown[-1]}"


# ---- the one that is kept


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A loaded model. `size_bytes` is what its weights take, on all devices together."""

    model_id: str
    device: str
    fingerprint: str
    pipe: Pipeline = field(repr=False)
    layout: Layout
    size_bytes: int


class Models:
    """A place for one model, so that nodes in a row need not load it again.

    It stays for as long as a node that has used it: ComfyUI forgets its nodes when they are not in
    the workflow any more, and when it is told to free model and node cache.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while a node works
        self.held: Held | None = None
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    def get(self, user: object, model_id: str, device: str, family: str) -> Held:
        """The model, loaded where it is another one or its files have changed."""
        if user not in self._users:
            self._users.add(user)
            weakref.finalize(user, self._left).atexit = False
        wanted = (model_id, device, fingerprint(model_id))
        with self.lock:
            held = self.held
            if held is None or (held.model_id, held.device, held.fingerprint) != wanted:
                self.unload()
                held = self.held = _load(*wanted, family)
            _refuse_family(model_id, held.pipe.source.family, family)
            return held

    def unload(self) -> int | None:
        """Let go of the model; what its weights took, None where there was no model.

        Waits for a node that works with it.
        """
        with self.lock:
            held, self.held = self.held, None
            if held is None:
                return None
            held.pipe.unload()
            return held.size_bytes

    def _left(self) -> None:
        """A node is gone. In plain Python, where nodes come and go, the model stays."""
        used = any(True for _ in self._users)  # its length still counts the one that goes
        if used or host.model_roots() is None or not self.lock.acquire(blocking=False):
            return
        try:
            self.unload()
        finally:
            self.lock.release()


def _load(model_id: str, device: str, print_: str, family: str) -> Held:
    from holdfast.pipeline import Pipeline

    listen = loading_shown()
    if host.model_roots() is not None:
        # JAX would take three quarters of a GPU for itself when it starts, beside ComfyUI.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with _plain_torch(), _passing_stops():
        prepared = Pipeline.prepare(find(model_id), DEVICES.get(device, device), progress=listen)
        _refuse_family(model_id, prepared.source.family, family)
        pipe = prepared.load(listen)
    dtypes, elements = pipe.placement.dtypes, pipe.source.elements()
    size = sum(count * dtypes[name].itemsize for name, count in elements.items() if name in dtypes)
    return Held(model_id, device, print_, pipe, Layout.of(pipe), size)


def refuse_size(held: Held, settings: Settings) -> None:
    """Raise OutOfMemory for a picture that no decoder could make in what is free, before it tries.

    Videos come frame by frame.
    """
    device = held.pipe.devices["decode"]
    features_bytes = _DECODING * held.layout.features * held.pipe.placement.dtypes["vae"].itemsize
    frames_bytes = 3 * 4 * (settings.num_frames or 1)
    need = settings.height * settings.width * (features_bytes + frames_bytes)
    free = device.free_bytes()
    if free is not None and need > free:
        raise OutOfMemory(
            f"cannot draw {settings.width} x {settings.height}: to decode it takes about "
            f"{format_bytes(need)} on {device.name}",
            expected=f"at most the {format_bytes(free)} that are free there",
            hint="a smaller height and width",
        )


def _refuse_family(model_id: str, found: str, wanted: str) -> None:
    if found != wanted:
        names = {"flux": "Flux", "wan": "Wan", "sdxl": "SDXL"}
        raise Unsupported(
            f"cannot draw with {_short(model_id)} in a node for {names[wanted]}: "
            f"it is a model of {names.get(found, found)}",
            expected=f"a model of {names[wanted]}, such as tiny-{wanted}",
            hint=f"the nodes of TPU/{names[found]}" if found in ("flux", "wan") else None,
        )


def loading_shown() -> Callable[[Event], None]:
    """For `Pipeline.load`: moves the bar of the node, and stops if the user wants to."""
    show = host.progress()

    def listen(event: Event) -> None:
        if event.label:
            host.text(f"{event.stage}: {event.label}")
        if event.total:
            show(event.done, event.total)
        else:
            host.check()

    return listen


# ---- at work


@contextlib.contextmanager
def at_work(pipe: Pipeline, stage: str) -> Iterator[None]:
    """Around one stage of a model: no gradients, quiet libraries, failures in Holdfast's words.

    The node says that it may compile, and in the end how long it took.
    ComfyUI runs nodes in torch's inference mode; tensors that leave here can be used outside of it.
    """
    import torch

    from holdfast.pipeline.memory_errors import translated
    from holdfast.pipeline.quiet import quiet
    from holdfast.pipeline.understanding import first_line

    device, began_s = pipe.devices[stage], time.perf_counter()
    host.check()
    if device.preparation is not None:
        host.text(f"{stage}: {device.preparation}")
    try:
        told = translated(f"running {stage!r}", device.name)
        with torch.inference_mode(False), torch.no_grad(), quiet(), told:
            yield
            device.synchronize()
        host.text(f"{stage}: done in {time.perf_counter() - began_s:.1f} s")
    except Exception as exc:
        if isinstance(exc, HoldfastError) or host.is_stop(exc):
            raise
        raise Unsupported(
            f"{pipe.source.model!r} failed in {stage!r}: {first_line(exc)}",
            expected="a model whose parts and settings fit together",
            hint="other settings, or another copy of the model",
        ) from exc


@contextlib.contextmanager
def _plain_torch() -> Iterator[None]:
    """Weights that are loaded here can be used in inference mode and outside of it.

    Files cannot be read while torchax is enabled, as another pack may have it.
    """
    import torch

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if "torchax" in sys.modules:
            from holdfast.xla import TorchaxEnvManager

            stack.enter_context(TorchaxEnvManager.paused())
        yield


@contextlib.contextmanager
def _passing_stops() -> Iterator[None]:
    """A stop that a library has wrapped comes out as it was raised."""
    try:
        yield
    except Exception as exc:
        behind: BaseException | None = exc
        while behind is not None and not host.is_stop(behind):
            behind = behind.__cause__ or behind.__context__
        if behind is None or behind is exc:
            raise
        raise behind from None

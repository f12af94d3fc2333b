"""The one model that the TPU nodes share: find its files, load it, keep it, unload it.

In ComfyUI a `model_id` can only be a built-in model, a path in ComfyUI's model folders or a hub id;
in plain Python any path. A model whose files changed is loaded again. A model in use is not
unloaded.
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
from holdfast.base.interrupts import list_causes
from holdfast.base.units import format_bytes
from holdfast.nodes import host
from holdfast.nodes.xla.sockets import LatentLayout

if TYPE_CHECKING:
    from holdfast.pipeline import Event, Pipeline, Settings

# Choices of the nodes, and the device in holdfast.pipeline.
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
# Copies of the features of each pixel at the peak of decoding, as measured.
_DECODING = 9
_ALLOWED = "a built-in model, a folder or file in ComfyUI's models folder, or a hub id"
_ADVICE = "tiny-flux or tiny-wan, a name such as FLUX.1-dev in models/diffusers"


# ---- from a name to files


def find(model_id: str) -> str:
    """Resolve a name from a workflow to what `Pipeline.load` takes.

    Raises BadInput for a path outside of ComfyUI's folders, NotFound for an unknown model.
    """
    from holdfast.pipeline import built_in

    name = model_id.strip() if isinstance(model_id, str) else ""
    if not name or len(name) > _LONGEST or not name.isprintable():
        raise BadInput(f"cannot use model_id={_quote(model_id)}", expected=_ALLOWED, hint=_ADVICE)
    roots = host.model_roots()
    if name in built_in() or roots is None:
        return name
    inside = _find_inside(name, roots)
    if inside is not None:
        return str(inside)
    if _HUB_ID.fullmatch(name) and not Path(name).exists():  # else the path would be taken
        return name
    raise NotFound(f"cannot find model {_quote(name)}", expected=_ALLOWED, hint=_ADVICE)


def refusal(model_id: object) -> str | None:
    """The error text of `find` for a `model_id`; None if it is fine."""
    try:
        find(str(model_id))
    except HoldfastError as exc:
        return str(exc)
    return None


def fingerprint(model_id: str) -> str:
    """A hash that changes with the size or time of a file of the model; needs no network.

    Raises what `find` raises.
    """
    from holdfast.pipeline.model.sources import BUILT_IN

    found = find(model_id)
    built_in = BUILT_IN / found
    path = built_in if built_in.is_dir() and Path(found).name == found else Path(found).expanduser()
    digest = hashlib.sha256(found.encode())
    for name, size, changed_ns in sorted(_files(path)):
        digest.update(f"{name}\0{size}\0{changed_ns}\n".encode())
    return digest.hexdigest()


def _find_inside(name: str, roots: tuple[Path, ...]) -> Path | None:
    """The file or folder called `name` below one of ComfyUI's folders, or None.

    Links in these folders are followed, but the name itself must not lead out of them.
    """
    path = PurePosixPath(name.replace("\\", "/"))
    below = [root for root in roots if Path(name).is_relative_to(root)]
    outside = path.is_absolute() or Path(name).is_absolute() or Path(name).drive
    if ".." in path.parts or name.startswith("~") or (outside and not below):
        raise BadInput(
            f"cannot load model {_quote(name)}: it is outside of ComfyUI's models folders",
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
            with contextlib.suppress(OSError):  # a broken link, or gone meanwhile
                stat = Path(folder, name).stat()
                yield str(Path(folder, name)), stat.st_size, stat.st_mtime_ns
            count += 1
            if count >= _MOST_FILES:
                return


def _quote(name: object) -> str:
    shown = repr(name)
    return shown if len(shown) <= 200 else f"{shown[:197]}…{shown[-1]}"


# ---- the shared model


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A loaded model. `size_bytes` are its weights on all devices together."""

    model_id: str
    device: str
    fingerprint: str
    pipe: Pipeline = field(repr=False)
    layout: LatentLayout
    size_bytes: int


class Models:
    """Holds one model, so that several nodes need not load it again.

    It stays as long as a node object that used it: ComfyUI drops node objects that are no longer in
    the workflow, and all of them on "free model and node cache".
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while a node uses the model
        self.held: LoadedModel | None = None
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    def get(self, user: object, model_id: str, device: str, family: str) -> LoadedModel:
        """The model, loaded if it is another one or its files changed."""
        if user not in self._users:
            self._users.add(user)
            weakref.finalize(user, self._unload_if_unused).atexit = False
        wanted = (model_id, device, fingerprint(model_id))
        with self.lock:
            held = self.held
            if held is None or (held.model_id, held.device, held.fingerprint) != wanted:
                self.unload()
                held = self.held = _load(*wanted, family)
            _refuse_family(model_id, held.pipe.source.family, family)
            return held

    def unload(self) -> int | None:
        """Unload the model; returns the bytes of its weights, None if there was none.

        Waits for a node that uses it.
        """
        with self.lock:
            held, self.held = self.held, None
            if held is None:
                return None
            held.pipe.unload()
            return held.size_bytes

    def _unload_if_unused(self) -> None:
        """Unload when the last node object is gone; in plain Python the model stays."""
        used = any(True for _ in self._users)  # len() still counts the object that goes
        if used or host.model_roots() is None or not self.lock.acquire(blocking=False):
            return
        try:
            self.unload()
        finally:
            self.lock.release()


def _load(model_id: str, device: str, print_: str, family: str) -> LoadedModel:
    from holdfast.pipeline import Pipeline

    listen = make_load_listener()
    if host.model_roots() is not None:
        # Else JAX would reserve three quarters of the GPU at start.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with _plain_torch(), _unwrap_stops():
        prepared = Pipeline.prepare(find(model_id), DEVICES.get(device, device), progress=listen)
        _refuse_family(model_id, prepared.source.family, family)
        pipe = prepared.load(listen)
    dtypes, elements = pipe.placement.dtypes, pipe.source.elements()
    size = sum(count * dtypes[name].itemsize for name, count in elements.items() if name in dtypes)
    return LoadedModel(model_id, device, print_, pipe, LatentLayout.of(pipe), size)


def refuse_size(held: LoadedModel, settings: Settings) -> None:
    """Raise OutOfMemory for a picture that cannot be decoded in free memory.

    Videos are decoded frame by frame.
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
            f"cannot draw with {_quote(model_id)} in a node for {names[wanted]}: "
            f"it is a model of {names.get(found, found)}",
            expected=f"a model of {names[wanted]}, such as tiny-{wanted}",
            hint=f"the nodes of TPU/{names[found]}" if found in ("flux", "wan") else None,
        )


def make_load_listener() -> Callable[[Event], None]:
    """Make a listener for `Pipeline.load` that moves the node's bar and checks for a stop."""
    show = host.progress()

    def listen(event: Event) -> None:
        if event.label:
            host.text(f"{event.stage}: {event.label}")
        if event.total:
            show(event.done, event.total)
        else:
            host.check()

    return listen


# ---- running a stage


@contextlib.contextmanager
def run_stage(pipe: Pipeline, stage: str) -> Iterator[None]:
    """Run one stage of a model: no gradients, quiet libraries, errors as HoldfastError.

    The node shows that it may compile, and then how long it took. ComfyUI runs nodes in torch's
    inference mode; the stage does not, so its tensors can be used anywhere.
    """
    import torch

    from holdfast.pipeline.model.library_errors import explain_out_of_memory, first_line
    from holdfast.pipeline.model.quiet import quiet

    device, began_s = pipe.devices[stage], time.perf_counter()
    host.check()
    if device.preparation is not None:
        host.text(f"{stage}: {device.preparation}")
    try:
        explained = explain_out_of_memory(f"running {stage!r}", device.name)
        with torch.inference_mode(False), torch.no_grad(), quiet(), explained:
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
    """Leave inference mode, so that loaded weights can be used anywhere, and pause torchax.

    Files cannot be read while torchax is enabled, which another pack may have done.
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
def _unwrap_stops() -> Iterator[None]:
    """Raise ComfyUI's stop itself if a library has wrapped it in another error."""
    try:
        yield
    except Exception as exc:
        stop = next(filter(host.is_stop, list_causes(exc)), exc)
        if stop is exc:
            raise
        raise stop from None

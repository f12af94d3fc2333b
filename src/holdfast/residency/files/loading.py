"""Loads safetensors files into slabs; the module's parameters become views of them.

Weights are in memory once, plus 4 MiB for each thread that converts. The module changes only after
everything was read; an error or interrupt leaves it as it was. Slabs hold tensors in module order,
so that tensors used together are close together.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.base.errors import BadInput, Misuse
from holdfast.base.threads import Team
from holdfast.residency.files import packed
from holdfast.residency.files.checkpoint import TensorInfo, read_header
from holdfast.residency.files.reading import (
    Check,
    FileRange,
    Progress,
    Reading,
    default_threads,
)
from holdfast.residency.files.slots import Weight, exchange, on_meta, temporary_names, weights_of
from holdfast.residency.files.tensors import DTYPES
from holdfast.residency.packing.layouts import Layout
from holdfast.residency.stream import slabs
from holdfast.residency.stream.weights import placeholder

SLAB_BYTES = 128 << 20
ALIGNMENT = 512
# torch copies fewer elements than this on the calling thread; more would start another team of
# threads for each reading thread.
SERIAL = 32767

CONVERTED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # those `dtype` converts

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Slab = Callable[[int], Tensor]
DtypeOf = Callable[[str], torch.dtype | None]
Rename = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class SlabRange:
    """The bytes of a tensor: `nbytes` from `offset` on in slab `slab`."""

    slab: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Loaded:
    """The result of a load. Its `slabs` keep the memory alive: drop it to free the weights.

    `packed` has the layouts and payloads of parameters that stay packed, by their first name. They
    are placeholders in the module: give them to `residency.manage`.
    """

    slabs: tuple[Tensor, ...] = field(repr=False)
    places: Mapping[str, SlabRange] = field(repr=False)  # by the first name of each tensor
    weight_bytes: int
    read_bytes: int
    seconds: float  # of all runs
    packed: Mapping[str, tuple[Layout, Tensor]] = field(default_factory=dict, repr=False)


def load(
    module: nn.Module,
    files: Files,
    *,
    progress: Progress | None = None,
    check: Check | None = None,
    **options: Any,
) -> Loaded:
    """Fill `module` from `files`, with the options of `Loading` and the callbacks of its `run`."""
    return Loading(module, files, **options).run(progress=progress, check=check)


class Loading:
    """A load of weights into a module. After an interrupt, `run()` again resumes it.

    `module` may be on the meta device; its tensors are replaced, as load_state_dict(assign=True)
    does, so old weights stay in memory beside the new ones until the end.
    `dtype` converts floats of 16 to 64 bits; integers and 8-bit dtypes stay as in the file.
    `dtype_of(name)` chooses the dtype of one tensor; None leaves it to `dtype`. By default it is
    `kept_in_fp32`: what the module's class wants kept in float32.
    `slab(nbytes)` returns a 1-D uint8 tensor of at least that size in host memory; by default
    pageable memory.
    `rename(name)` maps a file's name to the module's; None leaves the tensor out.
    `keep_packed` are schemes of packing whose parameters stay packed; all others are decoded.

    Raises BadInput before anything is read: missing or unknown names, different shapes, broken
    files, and tensors that would stay on the meta device because no file has them.
    """

    def __init__(
        self,
        module: nn.Module,
        files: Files,
        *,
        dtype: torch.dtype | None = None,
        dtype_of: DtypeOf | None = None,
        slab: Slab | None = None,
        rename: Rename | None = None,
        keep_packed: Sequence[str] = (),
        threads: int | None = None,
    ) -> None:
        one = isinstance(files, str | os.PathLike)
        paths = [Path(file) for file in ([files] if one else files)]
        self._module = module
        self._targets = _match(module, _tensors(paths, rename), paths)
        choose = dtype_of or kept_in_fp32(module, dtype)
        for target in self._targets:
            usual = dtype if target.stored in CONVERTED else None
            target.dtype = choose(target.weight.name) or usual or target.stored
            target.keep_packed_if(keep_packed)
        sizes = [target.nbytes for target in self._targets]
        self._places, self._slab_sizes = layout(sizes, slab_bytes=SLAB_BYTES)
        self._slab, self._threads = slab or slabs.slab, threads
        self._slabs: list[Tensor] = []
        self._reading: Reading | None = None
        self._seconds = 0.0
        self._is_done = False
        self.total_bytes = sum(target.info.size_bytes for target in self._targets)

    @property
    def done_bytes(self) -> int:
        """Bytes read from the files so far."""
        if self._is_done:
            return self.total_bytes
        return self._reading.done_bytes if self._reading is not None else 0

    def run(self, *, progress: Progress | None = None, check: Check | None = None) -> Loaded:
        """Read what was not read yet, then put the weights into the module.

        `progress(done_bytes, total_bytes)` and `check()` are called in this thread; see
        `Reading.run`. Raises OutOfMemory if a slab cannot be allocated; Misuse after the end.
        """
        if self._is_done:
            raise Misuse("these weights are loaded already", expected="a new Loading for each load")
        begun = time.perf_counter()
        try:
            while len(self._slabs) < len(self._slab_sizes):
                if check is not None:  # before each, as pinning takes a while
                    check()
                size = self._slab_sizes[len(self._slabs)]
                self._slabs.append(_check_slab(self._slab(size), size))
            self._reading = self._reading or Reading(self._parts(), threads=self._threads)
            self._reading.run(progress=progress, check=check)
            self._require_intact(check)
            pairs = [(target.weight, self._value(at)) for at, target in enumerate(self._targets)]
            # Checked again: a plain attribute that aliases a weight was not replaced.
            exchange(pairs, then=lambda: _refuse_meta(self._module, ()))
        finally:
            self._seconds += time.perf_counter() - begun
        return self._finish()

    def _bytes(self, at: int) -> Tensor:
        place = self._places[at]
        return self._slabs[place.slab][place.offset : place.offset + place.nbytes]

    def _value(self, at: int) -> Tensor:
        target = self._targets[at]
        if target.layout is not None:
            return placeholder(target.dtype, target.info.shape)
        return self._bytes(at).view(target.dtype).view(target.info.shape)

    def _parts(self) -> list[FileRange]:
        parts = []
        for at, target in enumerate(self._targets):
            info, raw = target.info, self._bytes(at)
            sink = None
            if not target.is_direct:
                into = raw.view(target.dtype)
                if info.sealed is None:
                    sink = functools.partial(_convert, into, target.stored)
                else:
                    sink = _Whole(target, into).add
            goal = raw if sink is None else None
            parts.append(FileRange(target.path, info.start, info.size_bytes, goal, sink))
        return parts

    def _require_intact(self, check: Check | None) -> None:
        """Compare the checksums of tensors that were read from packed files straight into slabs."""
        sealed = [t.info.sealed is not None and t.is_direct for t in self._targets]
        waiting = deque(at for at, one in enumerate(sealed) if one)
        failed: list[BaseException] = []

        def work() -> None:
            try:
                while not failed:
                    at = waiting.popleft()
                    target = self._targets[at]
                    packed.require_intact(target.path, target.name, target.info, self._bytes(at))
            except IndexError:
                pass  # none is left
            except BaseException as exc:  # noqa: BLE001  raised below
                failed.append(exc)

        with Team() as team:
            for _ in range(min(len(waiting), self._threads or default_threads())):
                team.start(work)
            try:
                team.wait()
            except BaseException:
                waiting.clear()
                raise
        if check is not None:
            check()
        if failed:
            raise failed[0]

    def _finish(self) -> Loaded:
        names = [target.weight.name for target in self._targets]
        places = dict(zip(names, self._places, strict=True))
        memory, weight_bytes = tuple(self._slabs), sum(place.nbytes for place in self._places)
        kept = {
            target.weight.name: (target.layout, self._bytes(at))
            for at, target in enumerate(self._targets)
            if target.layout is not None
        }
        self._is_done, self._reading = True, None
        self._slabs, self._targets = [], []
        return Loaded(memory, places, weight_bytes, self.total_bytes, self._seconds, kept)


# ---- which tensor of which file


@dataclass
class _Target:
    """A weight of the module, the file tensor that fills it, and its final dtype.

    `layout` is set if it stays packed.
    """

    weight: Weight
    name: str  # in the file
    path: Path
    info: TensorInfo
    stored: torch.dtype
    dtype: torch.dtype
    layout: Layout | None = None

    @property
    def nbytes(self) -> int:
        """Its bytes in a slab."""
        if self.layout is not None:
            return self.layout.nbytes
        return self.info.elements * self.dtype.itemsize

    @property
    def is_direct(self) -> bool:
        """Whether the bytes of the file are those of the slab."""
        decoded = self.info.is_packed and self.layout is None
        return self.dtype == self.stored and not decoded

    def keep_packed_if(self, schemes: Sequence[str]) -> None:
        """Keep a parameter packed that is packed by one of these schemes and not converted."""
        layout = self.info.sealed.layout if self.info.sealed is not None else None
        is_parameter = isinstance(self.weight.tensor, nn.Parameter)
        if layout is not None and is_parameter and self.dtype == self.stored:
            self.layout = layout if layout.scheme in schemes else None


class _Whole:
    """Collects the bytes of a tensor in a packed file; then checks, decodes and converts them."""

    def __init__(self, target: _Target, into: Tensor) -> None:
        self._target, self._into = target, into
        self._lock = threading.Lock()
        self._data: Tensor | None = None
        self._missing = target.info.size_bytes

    def add(self, at: int, view: memoryview) -> None:
        """Take the bytes from `at` on; the last ones finish the tensor."""
        with self._lock:
            if self._data is None:
                self._data = torch.empty(self._target.info.size_bytes, dtype=torch.uint8)
            data = self._data
        data[at : at + len(view)] = torch.frombuffer(view, dtype=torch.uint8)
        with self._lock:
            self._missing -= len(view)
            if self._missing:
                return
            self._data = None
        target = self._target
        raw = packed.decode(target.path, target.name, target.info, data)
        self._into.copy_(raw.view(target.stored))


def kept_in_fp32(module: nn.Module, dtype: torch.dtype | None) -> DtypeOf:
    """A `dtype_of` that keeps float32 where the module's class wants it (`_keep_in_fp32_modules`).

    In transformers the plain list applies to float16 only, the strict one to bfloat16 too.
    """
    kept = set(getattr(module, "_keep_in_fp32_modules", None) or ())
    strict = getattr(module, "_keep_in_fp32_modules_strict", kept)
    if dtype != torch.float16:
        kept = set(strict or ())
    short = dtype in (torch.float16, torch.bfloat16)

    def dtype_of(name: str) -> torch.dtype | None:
        return torch.float32 if short and not kept.isdisjoint(name.split(".")) else None

    return dtype_of


FileTensor = tuple[Path, TensorInfo, str]  # the file, the tensor in it, its name there


def _tensors(paths: list[Path], rename: Rename | None) -> dict[str, FileTensor]:
    found: dict[str, FileTensor] = {}
    for path in paths:
        for written, info in read_header(path).items():
            name = rename(written) if rename is not None else written
            if name is None:
                continue
            if name in found:
                raise BadInput(
                    f"cannot load weights: {name!r} is in {str(found[name][0])!r} "
                    f"and in {str(path)!r}",
                    expected="each tensor once",
                    hint="give the files of one model, or leave one out with rename=",
                )
            found[name] = (path, info, written)
    return found


def _match(module: nn.Module, tensors: dict[str, FileTensor], paths: list[Path]) -> list[_Target]:
    weights = weights_of(module)
    about = f"cannot load weights into {type(module).__name__}"
    known = {name for weight in weights for name in weight.names} | temporary_names(module)
    extra = [name for name in tensors if name not in known]
    missing = [w.name for w in weights if not any(name in tensors for name in w.names)]
    if missing:
        where = repr(str(paths[0])) if len(paths) == 1 else f"none of {len(paths)} files"
        verb = "is not in" if len(paths) == 1 else "is in"
        hint = None
        if extra:
            hint = f"the names may differ: there is {_first(extra)}; rename= maps them"
        elif hasattr(module, "tie_weights"):
            hint = "call its tie_weights() first, if it shares its weights with another tensor"
        raise BadInput(
            f"{about}: {_first(missing)} {verb} {where}", expected="all of its tensors", hint=hint
        )
    if extra:
        raise BadInput(
            f"{about}: {str(tensors[extra[0]][0])!r} has {_first(extra)}, which it has not",
            expected="tensors that the module has",
            hint="leave them out: rename=, a function that gives None for their names",
        )
    targets = [_target(about, weight, tensors) for weight in weights]
    _refuse_meta(module, weights)
    return targets


def _refuse_meta(module: nn.Module, weights: Sequence[Weight]) -> None:
    empty = on_meta(module, weights)
    if empty:
        raise BadInput(
            f"cannot load weights into {type(module).__name__}: {_first(empty)} "
            "would stay on the meta device",
            expected="a value: it is in no file, only the module's constructor computes it",
            hint="make the module under accelerate.init_empty_weights(), which computes buffers",
        )


def _target(about: str, weight: Weight, tensors: Mapping[str, FileTensor]) -> _Target:
    name = next(name for name in weight.names if name in tensors)
    path, info, written = tensors[name]
    if info.shape != tuple(weight.tensor.shape):
        raise BadInput(
            f"{about}: {name!r} in {str(path)!r} has the shape {list(info.shape)}",
            expected=f"the shape {list(weight.tensor.shape)}",
            hint="load the weights of this very model, or make the module from their configuration",
        )
    stored = DTYPES.get(info.dtype)
    if stored is None:
        raise BadInput(
            f"{about}: {name!r} in {str(path)!r} has the dtype {info.dtype}",
            expected=f"one of {', '.join(DTYPES)}",
        )
    return _Target(weight, written, path, info, stored, stored)


def _first(names: list[str]) -> str:
    return repr(names[0]) + (f" (and {len(names) - 1} more)" if len(names) > 1 else "")


# ---- slabs


def layout(
    sizes: Sequence[int], *, slab_bytes: int = SLAB_BYTES, alignment: int = ALIGNMENT
) -> tuple[list[SlabRange], list[int]]:
    """Ranges for tensors of these sizes in slabs of about `slab_bytes`, and the slabs' sizes."""
    places: list[SlabRange] = []
    ends: list[int] = []
    for size in sizes:
        start = -(-ends[-1] // alignment) * alignment if ends else 0
        most = slab_bytes if start >= slab_bytes // 2 else 2 * slab_bytes
        if not ends or (start and start + size > most):
            ends.append(0)
            start = 0
        ends[-1] = start + size
        places.append(SlabRange(len(ends) - 1, start, size))
    return places, ends


def _check_slab(slab: Any, nbytes: int) -> Tensor:
    """Return `slab` if it is usable. Raises BadInput."""
    if isinstance(slab, Tensor):
        what = f"a tensor of {list(slab.shape)} {slab.dtype} on {slab.device}"
        flat = slab.ndim == 1 and slab.dtype == torch.uint8 and slab.is_contiguous()
        if flat and slab.device.type == "cpu" and len(slab) >= nbytes:
            return slab
    else:
        what = f"a {type(slab).__name__}"
    raise BadInput(
        f"cannot load weights into {what}",
        expected=f"a slab: a contiguous uint8 tensor of {nbytes} in host memory",
    )


def _convert(target: Tensor, stored: torch.dtype, at: int, view: memoryview) -> None:
    """Convert elements from byte `at` on. `view` has complete ones: sizes divide PIECE_BYTES."""
    elements = torch.frombuffer(view, dtype=stored)
    start = at // stored.itemsize
    into = target[start : start + len(elements)]
    for part, there in zip(elements.split(SERIAL), into.split(SERIAL), strict=True):
        there.copy_(part)


# ---- a network without weights


def build_empty(library: str, cls: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Build the network of a folder's configuration, as from_pretrained does before loading.

    Parameters are on the meta device; buffers that the constructor computes (positions,
    frequencies) have values.
    """
    from accelerate import init_empty_weights

    if library == "diffusers":
        with _default_dtype(dtype), init_empty_weights():
            model = cls.from_config(cls.load_config(folder))
        model.register_to_config(_name_or_path=folder)
        return model
    config = cls.config_class.from_pretrained(folder)
    config.dtype = dtype
    with init_empty_weights():
        model = cls(config)
    model.tie_weights()
    return model


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype in the block, as diffusers does around constructors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

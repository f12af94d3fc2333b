"""The weights of a module as stretches of bytes that can be moved while the module stays itself.

Covers: finding them (tied weights, views, buffers), host copies in slabs, packing, pointing
parameters at device memory and back, the exact way home.
Leaves to others: what is where when (plan, stream).
Promise: Parameter objects, shapes, strides and formats never change; values outlive any move.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast.base.errors import BadInput
from holdfast.residency.packing.pack import Layout, packable, unpack
from holdfast.residency.ring import aligned
from holdfast.residency.slabs import pin, slab

SLAB_BYTES = 256 << 20
WATCHED_BYTES = 64 << 10
_WIDEST = torch.complex128.itemsize


@dataclass(eq=False, slots=True)
class Member:
    """A tensor of the module, and where it lies in its stretch."""

    tensor: torch.Tensor
    path: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_buffer: bool
    home: torch.device
    version: int = 0
    counted: bool = True  # whether torch counts its changes

    def over(self, memory: torch.Tensor) -> torch.Tensor:
        """The same tensor over other bytes: those of the whole stretch."""
        flat = memory[self.offset :]
        flat = flat[: flat.numel() // self.dtype.itemsize * self.dtype.itemsize].view(self.dtype)
        return flat.as_strided(self.shape, self.stride)


@dataclass(eq=False, slots=True)
class Stretch:
    """Bytes that move as one. `host` holds them, packed if there is a `layout`."""

    index: int
    name: str
    raw_bytes: int
    members: list[Member]
    host: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    layout: Layout | None = None
    bound: torch.Tensor | None = None  # device memory its members point at
    changed: bool = False  # whether a run ever changed it
    merged: bool = False  # whether the copy on the device has LoRAs in it
    _views: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    _resting: tuple[tuple[int, int], list[torch.Tensor]] | None = None

    @property
    def payload_bytes(self) -> int:
        """What crosses the link."""
        return self.raw_bytes if self.layout is None else self.layout.nbytes

    @property
    def mutable(self) -> bool:
        """Whether a run may change it."""
        return any(member.is_buffer for member in self.members)

    @property
    def stays(self) -> bool:
        """Whether it is better left on the device: copies that are under way would be old."""
        return self.changed or self._watched

    @property
    def _watched(self) -> bool:
        """Buffers whose bytes are compared, as some kernels (batch norm) change them in secret."""
        secret = any(m.is_buffer and not m.counted for m in self.members)
        return secret or (self.mutable and self.raw_bytes <= WATCHED_BYTES)

    def bind(self, memory: torch.Tensor) -> None:
        """Point the members at device memory that holds the raw bytes."""
        address = memory.data_ptr()
        views = self._views.get(address)
        if views is None:
            views = self._views[address] = [member.over(memory) for member in self.members]
        self.bound = memory
        for member, view in zip(self.members, views, strict=True):
            member.tensor.data = view
            member.version = _version(member.tensor)

    def unbind(self) -> None:
        """Point the members back at the host; what was changed in place is brought home first."""
        if self.bound is None:
            return
        self.bring_home_if_changed()
        self.bound = None
        self.merged = False
        self.rest()

    def bring_home_if_changed(self) -> None:
        """Have the host know what was changed in place on the device."""
        if self.bound is None:
            return
        if self._watched or any(_version(m.tensor) != m.version for m in self.members):
            self.bring_home()

    def forget_views(self) -> None:
        """Let go of device memory that is about to be given back."""
        self._views.clear()

    def bring_home(self) -> None:
        """Take the bytes on the device as the true ones."""
        if self.bound is None:
            return
        raw = self.bound[: self.raw_bytes]
        if self.layout is None:
            fresh = raw.to(self.host.device)
            if not torch.equal(fresh, self.host):
                self.changed = True
                self.host.copy_(fresh)
        else:
            self.changed = True
            self.layout = None
            self.host = slab(self.raw_bytes)
            self.host.copy_(raw)
        for member in self.members:
            member.version = _version(member.tensor)

    def rest(self) -> None:
        """Point the members at the host bytes, or at nothing where those are packed."""
        key = (self.host.data_ptr(), id(self.layout))
        if self._resting is None or self._resting[0] != key:
            packed = self.layout is not None
            views = [_nothing(m) if packed else m.over(self.host) for m in self.members]
            self._resting = (key, views)
        for member, view in zip(self.members, self._resting[1], strict=True):
            member.tensor.data = view

    def raw(self) -> torch.Tensor:
        """The bytes on the host, unpacked into new memory if need be."""
        if self.layout is None:
            return self.host
        target = torch.empty(self.raw_bytes, dtype=torch.uint8)
        unpack(self.host, self.layout, target)
        return target

    def restore(self, unpacked: Callable[[Stretch], torch.Tensor] | None = None) -> None:
        """Give the members memory of their own, where they came from, with the values they have.

        `unpacked` gives the raw bytes of a packed stretch, anywhere; a device does that faster.
        """
        if self.layout is None and not self.host.numel():
            return  # never taken over, or restored already
        with torch.no_grad():
            self.unbind()
            packed = self.layout is not None and unpacked is not None
            raw = unpacked(self) if packed and unpacked is not None else self.raw()
            raw = raw.to(self.members[0].home, copy=True)
        self._views.clear()
        for member in self.members:
            member.tensor.data = member.over(raw)
        self.host, self.layout = torch.empty(0, dtype=torch.uint8), None
        self._resting = None


def _version(tensor: torch.Tensor) -> int:
    """How often it was changed in place, as far as torch counts."""
    try:
        return tensor._version
    except RuntimeError:  # made in inference mode, where it counts nothing
        return 0


def _nothing(member: Member) -> torch.Tensor:
    """The shape and format of a tensor with no memory: reads as NaN (or 0), refuses writes."""
    value = torch.nan if member.dtype.is_floating_point else 0
    return torch.full((), value, dtype=torch.float32).to(member.dtype).expand(member.shape)


# ---- finding them


def owners(module: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """(path, module, whole) in the order of the module; `whole` ones are run by a compiler.

    Nobody can tell when a compiled module uses which of its weights: they count as its own.
    """

    def walk(path: str, part: nn.Module, seen: set[int]) -> Iterator[tuple[str, nn.Module, bool]]:
        if id(part) in seen:
            return
        seen.add(id(part))
        whole = is_compiled(part)
        yield path, part, whole
        if not whole:
            for name, child in part.named_children():
                yield from walk(f"{path}.{name}" if path else name, child, seen)

    yield from walk("", module, set())


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile or TorchScript runs it."""
    return (
        module._compiled_call_impl is not None
        or type(module).__name__ == "OptimizedModule"
        or isinstance(module, torch.jit.ScriptModule)
    )


def own_tensors(module: nn.Module, whole: bool) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """(name, tensor, is a buffer) of the module itself; of all inside for a whole one."""
    for name, tensor in module.named_parameters(recurse=whole, remove_duplicate=False):
        yield name, tensor, False
    for name, tensor in module.named_buffers(recurse=whole, remove_duplicate=False):
        yield name, tensor, True


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes are all there is to it."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return False
    return not is_traceable_wrapper_subclass(tensor)


def find(module: nn.Module) -> tuple[list[Stretch], dict[str, tuple[int, ...]]]:
    """The stretches of a module, and which of them each of its owners has by itself.

    Raises BadInput for weights without values.
    """
    members: dict[int, Member] = {}
    of: dict[str, list[int]] = {}
    for path, part, whole in owners(module):
        for name, tensor, is_buffer in own_tensors(part, whole):
            if not is_plain(tensor) or tensor.numel() == 0:
                continue
            full = f"{path}.{name}" if path else name
            if tensor.is_meta:
                raise BadInput(
                    f"cannot manage {type(module).__name__}: its {full!r} has no values",
                    expected="weights that are loaded",
                    hint="residency.load(module, files) first",
                )
            of.setdefault(path, []).append(id(tensor))
            if id(tensor) not in members:
                members[id(tensor)] = _member(tensor, full, is_buffer)
    stretches = _stretches(list(members.values()))
    home = {id(m.tensor): s.index for s in stretches for m in s.members}
    return stretches, {
        path: tuple(dict.fromkeys(home[key] for key in keys)) for path, keys in of.items()
    }


def _member(tensor: torch.Tensor, path: str, is_buffer: bool) -> Member:
    return Member(
        tensor=tensor,
        path=path,
        offset=tensor.data_ptr(),  # an address until its stretch is known
        dtype=tensor.dtype,
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        is_buffer=is_buffer,
        home=tensor.device,
        counted=not tensor.is_inference(),
    )


def _extent(member: Member) -> int:
    """Bytes from its first element to behind its last."""
    steps = zip(member.shape, member.stride, strict=True)
    return (1 + sum((size - 1) * step for size, step in steps)) * member.dtype.itemsize


def _stretches(members: Sequence[Member]) -> list[Stretch]:
    """Members whose bytes overlap share a stretch; in the order of the module."""
    order = {id(member): i for i, member in enumerate(members)}
    groups: list[list[Member]] = []
    end, device = -1, None
    for member in sorted(members, key=lambda m: (str(m.home), m.offset)):
        if member.home == device and member.offset < end:
            groups[-1].append(member)
        else:
            groups.append([member])
            end, device = -1, member.home
        end = max(end, member.offset + _extent(member))
    groups.sort(key=lambda group: min(order[id(member)] for member in group))
    found: list[Stretch] = []
    for index, group in enumerate(groups):
        begin = min(member.offset for member in group)
        if len({member.dtype for member in group}) > 1:
            begin -= begin % _WIDEST  # so that each begins at a multiple of its own size
        length = max(member.offset + _extent(member) for member in group) - begin
        for member in group:
            member.offset -= begin
        group.sort(key=lambda m: order[id(m)])
        found.append(Stretch(index, group[0].path, length, group))
    return found


# ---- host copies


def take_over(
    stretches: Sequence[Stretch],
    *,
    pinned: bool,
    node: int | None = None,
    packer: Callable[[torch.Tensor, str], tuple[Layout, torch.Tensor] | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Bring the bytes of every stretch into slabs, one slab at a time, and point the module there.

    The memory they came from goes back as it is emptied. With `packer`, what can be packed is.
    When this is broken off, every stretch is either where it was or in its slab.
    """
    total = sum(stretch.raw_bytes for stretch in stretches)
    done = 0
    for group in _slab_groups(stretches):
        payloads = [_payload(stretch, packer) for stretch in group]
        sizes = [aligned(payload.numel()) for _, payload in payloads]
        memory = slab(sum(sizes), node=node)
        from_device = any(payload.device.type != "cpu" for _, payload in payloads)
        if pinned and from_device:
            pin(memory.zero_())  # first: from the device it is ten times as fast then
        offset = 0
        for stretch, (layout, payload), size in zip(group, payloads, sizes, strict=True):
            host = memory[offset : offset + payload.numel()]
            host.copy_(payload)
            stretch.layout, stretch.host = layout, host
            stretch.rest()
            offset += size
            done += stretch.raw_bytes
        del payloads
        if pinned and not from_device:
            pin(memory)
        if progress is not None:
            progress(done, total)


def _slab_groups(stretches: Sequence[Stretch]) -> Iterator[list[Stretch]]:
    group: list[Stretch] = []
    size = 0
    for stretch in stretches:
        if stretch.host.numel() or stretch.layout is not None:
            continue  # taken over before
        if group and size + stretch.raw_bytes > SLAB_BYTES:
            yield group
            group, size = [], 0
        group.append(stretch)
        size += stretch.raw_bytes
    if group:
        yield group


def _payload(
    stretch: Stretch,
    packer: Callable[[torch.Tensor, str], tuple[Layout, torch.Tensor] | None] | None,
) -> tuple[Layout | None, torch.Tensor]:
    raw = _bytes_of(stretch)
    kinds = {member.dtype for member in stretch.members}
    if packer is not None and not stretch.mutable and len(kinds) == 1 and packable(*kinds):
        packed = packer(raw, "bf16" if torch.bfloat16 in kinds else "fp16")
        if packed is not None:
            return packed
    return None, raw


def _bytes_of(stretch: Stretch) -> torch.Tensor:
    """The bytes where they lie now."""
    first = min(stretch.members, key=lambda member: member.offset)
    storage = first.tensor.untyped_storage()
    begin = first.tensor.data_ptr() - first.offset - storage.data_ptr()
    flat = torch.empty(0, dtype=torch.uint8, device=first.tensor.device).set_(storage)
    if begin < 0:  # the stretch begins at a round address before its storage
        flat, begin = torch.cat((flat.new_zeros(-begin), flat)), 0
    return flat[begin : begin + stretch.raw_bytes]


@contextlib.contextmanager
def true_values(stretches: Sequence[Stretch]) -> Iterator[None]:
    """Inside, every member that is not on a device can be read, also if its bytes are packed."""
    packed = [s for s in stretches if s.layout is not None and s.bound is None]
    try:
        for stretch in packed:
            raw = stretch.raw()
            for member in stretch.members:
                member.tensor.data = member.over(raw)
        yield
    finally:
        for stretch in packed:
            stretch.rest()

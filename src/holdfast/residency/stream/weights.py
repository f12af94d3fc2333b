"""The weights of a module as stretches: contiguous byte ranges that move as one.

Finds them (with tied weights, views and buffers), copies them into slabs, and points parameters at
device memory and back. Parameter objects, shapes, strides and dtypes never change, nor do values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from holdfast.base.errors import BadInput
from holdfast.residency.model_management.models.pinned import pin_memory
from holdfast.residency.packing.pack import Layout, is_packable, unpack
from holdfast.residency.stream.ring import aligned
from holdfast.residency.stream.slabs import slab

SLAB_BYTES = 256 << 20
WATCHED_BYTES = 64 << 10
_WIDEST = torch.complex128.itemsize
_FAR = 1 << 62


@dataclass(eq=False, slots=True)
class Member:
    """A tensor of the module and its byte offset in its stretch."""

    tensor: torch.Tensor
    path: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    is_buffer: bool
    home: torch.device
    version: int = 0
    counted: bool = True  # whether torch counts in-place changes (tensor._version)

    def over(self, memory: torch.Tensor) -> torch.Tensor:
        """This tensor as a view of `memory`, which holds the bytes of the whole stretch."""
        flat = memory[self.offset :]
        flat = flat[: flat.numel() // self.dtype.itemsize * self.dtype.itemsize].view(self.dtype)
        return flat.as_strided(self.shape, self.stride)


@dataclass(eq=False, slots=True)
class Stretch:
    """Bytes that move as one. `host` holds them, packed if `layout` is set."""

    index: int
    name: str
    raw_bytes: int
    members: list[Member]
    host: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    layout: Layout | None = None
    bound: torch.Tensor | None = None  # device memory its members point at
    changed: bool = False  # a call has changed it in place
    merged: bool = False  # LoRAs are merged into the device copy
    _views: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    _resting: tuple[tuple[int, int], list[torch.Tensor]] | None = None

    @property
    def payload_bytes(self) -> int:
        """Bytes that are copied over the link."""
        return self.raw_bytes if self.layout is None else self.layout.nbytes

    @property
    def mutable(self) -> bool:
        """Whether a call may change it: buffers."""
        return any(member.is_buffer for member in self.members)

    @property
    def stays(self) -> bool:
        """Whether it should stay on the device, because copies in flight would be stale."""
        return self.changed or self._watched

    @property
    def _watched(self) -> bool:
        """Whether to compare its bytes: some kernels (batch norm) change buffers uncounted."""
        uncounted = any(m.is_buffer and not m.counted for m in self.members)
        return uncounted or (self.mutable and self.raw_bytes <= WATCHED_BYTES)

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
        """Point the members back at host memory, after copying in-place changes there."""
        if self.bound is None:
            return
        self.bring_home_if_changed()
        self.bound = None
        self.merged = False
        self.rest()

    def bring_home_if_changed(self) -> None:
        """Copy in-place changes from the device to the host."""
        if self.bound is None:
            return
        if self._watched or any(_version(m.tensor) != m.version for m in self.members):
            self.bring_home()

    def forget_views(self) -> None:
        """Drop cached views, so that their device memory can be freed."""
        self._views.clear()

    def bring_home(self) -> None:
        """Copy the device bytes to the host, if they differ."""
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
        """Point the members at the host bytes, or at a placeholder where those are packed."""
        key = (self.host.data_ptr(), id(self.layout))
        if self._resting is None or self._resting[0] != key:
            packed = self.layout is not None
            views = [
                placeholder(m.dtype, m.shape) if packed else m.over(self.host) for m in self.members
            ]
            self._resting = (key, views)
        for member, view in zip(self.members, self._resting[1], strict=True):
            member.tensor.data = view

    def raw(self) -> torch.Tensor:
        """The unpacked bytes on the host; new memory if they are packed."""
        if self.layout is None:
            return self.host
        target = torch.empty(self.raw_bytes, dtype=torch.uint8)
        unpack(self.host, self.layout, target)
        return target

    def restore(self, unpacked: Callable[[Stretch], torch.Tensor] | None = None) -> None:
        """Give the members their own memory and values again; `unpacked` decodes, on any device."""
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
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have no version counter
        return 0


def placeholder(dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor over one element: reads as NaN (or 0), refuses writes."""
    value = torch.nan if dtype.is_floating_point else 0
    return torch.full((), value, dtype=torch.float32).to(dtype).expand(tuple(shape))


# ---- finding them


def owners(module: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """(path, module, whole) in order; a compiled module is `whole` and hides its children."""

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
    """(name, tensor, is_buffer) of the module itself; if `whole`, of its children too."""
    for name, tensor in module.named_parameters(recurse=whole, remove_duplicate=False):
        yield name, tensor, False
    for name, tensor in module.named_buffers(recurse=whole, remove_duplicate=False):
        yield name, tensor, True


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary strided tensor: not sparse, quantized or a wrapper subclass."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return False
    return not is_traceable_wrapper_subclass(tensor)


Payloads = Mapping[str, tuple[Layout, torch.Tensor]]  # of packed parameters, by a name of each


def find(
    module: nn.Module, packed: Payloads | None = None
) -> tuple[list[Stretch], dict[str, tuple[int, ...]]]:
    """The stretches of a module, and their indices by path of the owner. Raises BadInput.

    The parameters named in `packed` are placeholders; their stretches hold the payloads.
    """
    given = {id(module.get_parameter(name)): pair for name, pair in (packed or {}).items()}
    end = _FAR

    def address_of(full: str, tensor: torch.Tensor) -> int:
        nonlocal end
        if id(tensor) in given:  # no address of memory is as large
            end += aligned(given[id(tensor)][0].raw_bytes)
            return end - aligned(given[id(tensor)][0].raw_bytes)
        if tensor.is_meta:
            raise BadInput(
                f"cannot manage {type(module).__name__}: its {full!r} has no values",
                expected="weights that are loaded",
                hint="residency.load(module, files) first",
            )
        return tensor.data_ptr()

    def stride_of(tensor: torch.Tensor) -> tuple[int, ...]:
        whole = torch.empty(tensor.shape, device="meta") if id(tensor) in given else tensor
        return tuple(whole.stride())

    stretches, own, _ = group_tensors(owners(module), address_of, stride_of)
    for stretch in stretches:
        if id(stretch.members[0].tensor) in given:
            stretch.layout, stretch.host = given[id(stretch.members[0].tensor)]
            stretch.rest()
    return stretches, own


def group_tensors(
    parts: Iterable[tuple[str, nn.Module, bool]],
    address_of: Callable[[str, torch.Tensor], int],
    stride_of: Callable[[torch.Tensor], tuple[int, ...]] = lambda tensor: tuple(tensor.stride()),
) -> tuple[list[Stretch], dict[str, tuple[int, ...]], dict[str, int]]:
    """Stretches of these owners, their indices by path of the owner, and by name of a tensor."""
    members: dict[int, Member] = {}
    keys: dict[str, dict[str, int]] = {}  # by path and full name
    for path, part, whole in parts:
        for name, tensor, is_buffer in own_tensors(part, whole):
            if not is_plain(tensor) or tensor.numel() == 0:
                continue
            full = f"{path}.{name}" if path else name
            address = address_of(full, tensor)
            keys.setdefault(path, {})[full] = id(tensor)
            if id(tensor) not in members:
                members[id(tensor)] = Member(
                    tensor=tensor,
                    path=full,
                    offset=address,  # until its stretch is known
                    dtype=tensor.dtype,
                    shape=tuple(tensor.shape),
                    stride=stride_of(tensor),
                    is_buffer=is_buffer,
                    home=tensor.device,
                    counted=not tensor.is_inference(),
                )
    stretches = _stretches(list(members.values()))
    home = {id(m.tensor): s.index for s in stretches for m in s.members}
    own = {path: {full: home[key] for full, key in named.items()} for path, named in keys.items()}
    indices = {full: index for named in own.values() for full, index in named.items()}
    return stretches, {path: tuple(dict.fromkeys(i.values())) for path, i in own.items()}, indices


def _extent(member: Member) -> int:
    """Bytes from its first element to the end of its last."""
    steps = zip(member.shape, member.stride, strict=True)
    return (1 + sum((size - 1) * step for size, step in steps)) * member.dtype.itemsize


def _stretches(members: Sequence[Member]) -> list[Stretch]:
    """Group members whose bytes overlap into stretches, in module order."""
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
            begin -= begin % _WIDEST  # aligns every member to its element size
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
    """Move every stretch into slabs, one slab at a time, and point the module at them.

    The old memory is freed as it goes. `packer` packs what it can. What has a payload already stays
    where it is. After an interrupt every stretch is either in its old memory or in its slab.
    """
    if pinned:
        for stretch in stretches:
            if stretch.layout is not None:
                pin_memory(_whole(stretch.host))  # nothing where that is done already
    total = sum(stretch.raw_bytes for stretch in stretches)
    done = sum(stretch.raw_bytes for stretch in stretches if stretch.layout is not None)
    for group in _slab_groups(stretches):
        payloads = [_payload(stretch, packer) for stretch in group]
        sizes = [aligned(payload.numel()) for _, payload in payloads]
        memory = slab(sum(sizes), node=node)
        from_device = any(payload.device.type != "cpu" for _, payload in payloads)
        if pinned and from_device:
            pin_memory(memory.zero_())  # before the copy: from the device it is ten times as fast
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
            pin_memory(memory)  # after filling: many threads have faulted its pages in
        if progress is not None:
            progress(done, total)


def _whole(part: torch.Tensor) -> torch.Tensor:
    """All memory that a tensor is a view of."""
    return torch.empty(0, dtype=torch.uint8).set_(part.untyped_storage())


def _slab_groups(stretches: Sequence[Stretch]) -> Iterator[list[Stretch]]:
    group: list[Stretch] = []
    size = 0
    for stretch in stretches:
        if stretch.host.numel() or stretch.layout is not None:
            continue  # already in a slab
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
    if packer is not None and not stretch.mutable and len(kinds) == 1 and is_packable(*kinds):
        packed = packer(raw, "bf16" if torch.bfloat16 in kinds else "fp16")
        if packed is not None:
            return packed
    return None, raw


def _bytes_of(stretch: Stretch) -> torch.Tensor:
    first = min(stretch.members, key=lambda member: member.offset)
    storage = first.tensor.untyped_storage()
    begin = first.tensor.data_ptr() - first.offset - storage.data_ptr()
    flat = torch.empty(0, dtype=torch.uint8, device=first.tensor.device).set_(storage)
    if begin < 0:  # alignment moved the start of the stretch before its storage
        flat, begin = torch.cat((flat.new_zeros(-begin), flat)), 0
    return flat[begin : begin + stretch.raw_bytes]

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

import holdfast
from holdfast.base.errors import BadInput
from holdfast.residency.packing import codec_torch, layouts
from holdfast.residency.packing import pack as packing
from holdfast.residency.packing.layouts import SCHEMES, TILE, decide
from holdfast.residency.packing.pack import Layout, is_packable, pack, scratch_bytes, unpack

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = (0, 1, 2, 7, 2000, TILE - 1, TILE, TILE + 1, 3 * TILE + 5, 40 * TILE + 3)
MODELS = Path(holdfast.__file__).parent / "pipeline" / "models"
HERE = torch.cuda.is_available()
gpu = [pytest.mark.gpu, pytest.mark.skipif(not HERE, reason="torch sees no CUDA device here")]


def bits(weights: torch.Tensor) -> torch.Tensor:
    return weights.contiguous().view(-1).view(torch.uint8)


def normal(elements: int, dtype: torch.dtype = torch.bfloat16, scale: float = 0.02) -> torch.Tensor:
    generator = torch.Generator().manual_seed(elements)
    return (torch.randn(elements, generator=generator) * scale).to(dtype)


def round_trip(raw: torch.Tensor, kind: str, **options: Any) -> Layout | None:
    """The layout, after checking that what comes back is the same; None if it was not packed."""
    before = raw.clone()
    packed = pack(raw, kind, **options)
    assert torch.equal(raw, before)
    if packed is None:
        return None
    layout, payload = packed
    assert (payload.dtype, payload.shape) == (torch.uint8, (layout.nbytes,))
    target = torch.full_like(raw, 0xA5)
    unpack(payload, layout, target)
    assert torch.equal(raw, target)
    return layout


def exponents_of(weights: torch.Tensor, kind: str) -> list[int]:
    return codec_torch.histogram(bits(weights).view(torch.int16), kind)


@st.composite
def weights(draw: st.DrawFn) -> tuple[str, torch.Tensor]:
    """Normal weights of one or many scales, uniform ones or any bits, with special ones among."""
    kind = draw(st.sampled_from(sorted(DTYPES)))
    elements = draw(st.sampled_from(SIZES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from(("one scale", "many scales", "uniform", "equal", "any bits")))
    if spread == "any bits":
        values = torch.randint(-(2**15), 2**15, (elements,), generator=generator)
        return kind, bits(values.to(torch.int16))
    made = torch.randn(elements, generator=generator) * draw(st.floats(1e-8, 1e4))
    if spread == "many scales":
        made *= torch.rand(elements, generator=generator).mul(draw(st.integers(1, 40))).exp2()
    if spread == "uniform":
        made = torch.rand(elements, generator=generator)
    if spread == "equal":
        made = torch.full((elements,), draw(st.floats(width=16)))
    words = made.to(DTYPES[kind]).view(torch.int16)
    specials = draw(st.lists(st.integers(-(2**15), 2**15 - 1), max_size=4))
    for special in specials if elements else ():
        share = draw(st.sampled_from((1e-4, 0.01, 0.2)))
        places = torch.rand(elements, generator=generator) < share
        places[draw(st.integers(0, elements - 1))] = True
        words[places] = special
    return kind, bits(words)


@settings(max_examples=60)
@given(weights(), st.sampled_from((None, ("flat",), ("ranked",), SCHEMES)))
@example(("bf16", torch.zeros(0, dtype=torch.uint8)), None)
@example(("bf16", torch.zeros(4 * TILE, dtype=torch.uint8)), SCHEMES)
@example(("fp16", bits(torch.full((2 * TILE,), float("nan"), dtype=torch.float16))), SCHEMES)
@example(("bf16", bits(torch.full((2 * TILE,), -0.0, dtype=torch.bfloat16))), SCHEMES)
def test_what_is_packed_comes_back_bit_for_bit(
    made: tuple[str, torch.Tensor], schemes: tuple[str, ...] | None
) -> None:
    kind, raw = made
    layout = round_trip(raw, kind, schemes=schemes)
    if layout is not None:
        assert layout.raw_bytes == raw.numel()
        assert layout.nbytes <= 0.9 * layout.raw_bytes
        assert layout.scheme in (schemes or ("flat",))


@pytest.mark.parametrize("kind", DTYPES)
def test_every_pattern_of_16_bits_survives_among_usual_weights(kind: str) -> None:
    usual = normal(256 * TILE, DTYPES[kind])
    words = usual.view(torch.int16)
    words[::32] = torch.arange(-(2**15), 2**15).to(torch.int16)
    for schemes in ("flat",), ("ranked",):
        layout = round_trip(bits(usual), kind, schemes=schemes)
        if kind == "bf16":
            assert layout is not None
            assert layout.escapes > 0


def test_random_bits_are_not_packed() -> None:
    values = torch.randint(0, 256, (8 * TILE,), dtype=torch.uint8)
    assert pack(values, "bf16", schemes=SCHEMES) is None
    assert pack(values, "fp16", schemes=SCHEMES) is None


def test_a_few_weights_are_not_packed() -> None:
    assert pack(bits(normal(2000)), "bf16", schemes=SCHEMES) is None


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.02, 0.0013])
def test_normal_weights_shrink_as_promised(scale: float) -> None:
    raw = normal(64 * TILE, scale=scale)
    flat = round_trip(bits(raw), "bf16")
    ranked = round_trip(bits(raw), "bf16", schemes=SCHEMES)
    half = round_trip(bits(normal(64 * TILE, torch.float16, scale)), "fp16", schemes=SCHEMES)
    assert flat is not None
    assert ranked is not None
    assert half is not None
    assert flat.nbytes <= 0.76 * flat.raw_bytes
    assert ranked.nbytes <= 0.69 * ranked.raw_bytes
    assert half.nbytes <= 0.88 * half.raw_bytes


@pytest.mark.parametrize("model", ["tiny-flux/transformer", "tiny-sdxl/unet", "tiny-wan/vae"])
def test_trained_weights_shrink_like_normal_ones(model: str) -> None:
    (path,) = (MODELS / model).glob("*.safetensors")
    tensors = [tensor for tensor in load_file(path).values() if tensor.numel() >= 2 * TILE]
    raw = packed = 0
    for tensor in tensors:
        layout = round_trip(bits(tensor.bfloat16()), "bf16", schemes=SCHEMES)
        assert layout is not None
        raw, packed = raw + layout.raw_bytes, packed + layout.nbytes
    assert raw > 2_000_000
    assert packed <= 0.71 * raw


def test_zeros_among_the_weights_get_a_code_of_their_own() -> None:
    sparse = normal(64 * TILE)
    sparse[::5] = 0
    layout = round_trip(bits(sparse), "bf16", schemes=("flat",))
    assert layout is not None
    assert layout.extra == 0
    assert layout.nbytes <= 0.76 * layout.raw_bytes


def test_weights_of_many_scales_get_the_wider_list_or_the_window() -> None:
    spread = normal(64 * TILE) * torch.arange(64 * TILE).remainder(6).exp2()
    ranked = round_trip(bits(spread.bfloat16()), "bf16", schemes=("ranked",))
    either = round_trip(bits(spread.bfloat16()), "bf16", schemes=SCHEMES)
    assert ranked is not None
    assert either is not None
    assert (ranked.width, either.scheme) == (4, "flat")


def test_a_layout_goes_through_json() -> None:
    packed = pack(bits(normal(TILE)), "bf16", schemes=SCHEMES)
    assert packed is not None
    text = json.dumps(dataclasses.asdict(packed[0]))
    assert Layout(**json.loads(text)) == packed[0]


def test_parts_of_a_payload_begin_at_multiples_of_16_and_do_not_overlap() -> None:
    for kind, dtype in DTYPES.items():
        decided = decide(exponents_of(normal(40 * TILE + 3, dtype), kind), kind)
        assert decided is not None
        layout = decided[0]
        parts = [getattr(layout, f.name) for f in dataclasses.fields(layout) if "_at" in f.name]
        assert parts == sorted(parts)
        assert all(part % 16 == 0 for part in (*parts, layout.nbytes))
        assert parts[-1] + 2 * layout.escapes <= layout.nbytes


def test_offsets_and_places_of_a_tensor_above_2_to_the_31_bytes_are_wide_enough() -> None:
    few = exponents_of(normal(64 * TILE), "bf16")
    small = decide([count * 2000 for count in few], "bf16")
    large = decide([count * 5000 for count in few], "bf16")
    assert small is not None
    assert large is not None
    assert (small[0].elements, small[0].index_bytes) == (64 * TILE * 2000, 4)
    assert (large[0].elements, large[0].index_bytes) == (64 * TILE * 5000, 8)
    assert large[0].codes_at > 2**31


def test_places_of_8_bytes_are_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_index_bytes", lambda elements: 8)
    for scheme in SCHEMES:
        layout = round_trip(bits(normal(70 * TILE)), "bf16", schemes=(scheme,))
        assert layout is not None
        assert layout.index_bytes == 8
        assert layout.escapes > 1


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_payload_does_not_depend_on_the_size_of_the_slices(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = bits(normal(70 * TILE + 11))
    usual = pack(raw, "bf16", schemes=(scheme,))
    monkeypatch.setattr(codec_torch, "_PACK_SLICE_CPU", 3 * TILE)
    other = pack(raw, "bf16", schemes=(scheme,))
    assert usual is not None
    assert other is not None
    assert usual[0] == other[0]
    assert torch.equal(usual[1], other[1])


def test_a_payload_may_lie_inside_a_larger_slab_and_the_target_too() -> None:
    raw = bits(normal(2 * TILE + 1))
    for scheme in SCHEMES:
        packed = pack(raw, "bf16", schemes=(scheme,))
        assert packed is not None
        layout, payload = packed
        slab = torch.full((512 + layout.nbytes + 77,), 0xFF, dtype=torch.uint8)
        slab[512 : 512 + layout.nbytes] = payload
        target = torch.zeros(layout.raw_bytes + 4, dtype=torch.uint8)
        unpack(slab[512:], layout, target[2:-2])
        assert torch.equal(target[2:-2], raw)
        assert target[:2].tolist() + target[-2:].tolist() == [0, 0, 0, 0]


def test_weights_at_an_odd_address_can_be_packed() -> None:
    shifted = torch.zeros(2 * TILE + 1, dtype=torch.uint8)
    shifted[1:] = bits(normal(TILE))
    layout = round_trip(shifted[1:], "bf16")
    assert layout is not None


class Watch(TorchDispatchMode):
    """Counts the bytes of live results."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)}
        given |= {
            t.untyped_storage().data_ptr()
            for t in (kwargs or {}).values()
            if isinstance(t, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for tensor in [result] if isinstance(result, torch.Tensor) else []:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in given:
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _gone(self, count: int) -> None:
        self.now -= count


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", DTYPES)
def test_unpacking_takes_no_more_memory_than_promised(
    kind: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(bits(normal(40 * TILE, DTYPES[kind])), kind, schemes=(scheme,))
    if packed is None:
        assert (kind, scheme) == ("fp16", "flat")
        return
    layout, payload = packed
    monkeypatch.setattr(codec_torch, "_DECODE_SLICE_CPU", 40 * TILE)
    target = torch.empty(layout.raw_bytes, dtype=torch.uint8)
    with Watch() as watch:
        unpack(payload, layout, target)
    assert 0 < watch.peak <= scratch_bytes(layout)


def test_memory_for_unpacking_does_not_grow_with_the_tensor() -> None:
    few = exponents_of(normal(64 * TILE), "bf16")
    for scheme in SCHEMES:
        sizes = []
        for times in 100, 10_000:
            decided = decide([count * times for count in few], "bf16", (scheme,))
            assert decided is not None
            sizes.append(scratch_bytes(decided[0], "cpu"))
        assert sizes[0] == sizes[1] < 128 * 2**20


def test_only_floats_of_16_bits_can_be_packed() -> None:
    assert [is_packable(d) for d in (torch.bfloat16, torch.float16)] == [True, True]
    assert [is_packable(d) for d in (torch.float32, torch.int16, torch.uint8)] == [False] * 3
    assert packing.kind_of(torch.bfloat16) == "bf16"
    assert packing.kind_of(torch.float16) == "fp16"
    assert packing.kind_of(torch.float32) is None


def test_a_cpu_unpacks_with_torch_and_says_why() -> None:
    found = packing.decoder("cpu")
    assert (found.way, found.schemes) == ("torch", ("flat",))
    assert found.reason == "Triton is used on cuda devices, not on cpu"


@pytest.mark.parametrize(
    ("trial", "way", "reason"),
    [
        (lambda device: True, "triton", None),
        (lambda device: False, "torch", "Triton's kernels gave wrong bits on this device"),
        (
            lambda device: importlib.import_module("no_such_triton"),
            "torch",
            "Triton cannot be imported: No module named 'no_such_triton'",
        ),
        (
            lambda device: [].pop(),
            "torch",
            "Triton cannot run here: IndexError: pop from empty list",
        ),
    ],
)
def test_a_gpu_gets_triton_if_it_works_there(
    trial: Any, way: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "_try_triton", trial)
    found = packing._decoder.__wrapped__(torch.device("cuda"))
    assert (found.way, found.reason) == (way, reason)
    assert found.schemes == (SCHEMES if way == "triton" else ("flat",))


def test_ctrl_c_while_triton_is_tried_is_not_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(device: torch.device) -> bool:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as exc:
            raise RuntimeError("compiling failed") from exc

    monkeypatch.setattr(packing, "_try_triton", interrupted)
    with pytest.raises(RuntimeError, match="compiling failed"):
        packing._decoder.__wrapped__(torch.device("cuda"))


def test_triton_takes_no_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(bits(normal(TILE)), "bf16")
    assert packed is not None
    found = packing.Decoder("triton", SCHEMES)
    monkeypatch.setattr(packing, "_decoder", lambda device: found)
    assert scratch_bytes(packed[0], "cuda") == 0
    assert scratch_bytes(packed[0]) > 0


def refused(work: Any) -> str:
    with pytest.raises(BadInput) as caught:
        work()
    return str(caught.value)


def test_what_cannot_be_packed_is_refused() -> None:
    assert refused(lambda: pack(bits(normal(9)), "fp32")) == (
        "cannot pack weights of the kind 'fp32'\n  expected: one of bf16, fp16"
    )
    assert refused(lambda: pack(normal(9), "bf16")) == (
        "cannot pack a tensor of bfloat16 with the shape (9,) as bf16\n"
        "  expected: contiguous uint8 of one dimension, two for each weight\n"
        "  try: weight.detach().contiguous().view(-1).view(torch.uint8)"
    )
    assert refused(lambda: pack(bits(normal(9))[:-1], "bf16")) == (
        "cannot pack a tensor of uint8 with the shape (17,) as bf16\n"
        "  expected: contiguous uint8 of one dimension, two for each weight\n"
        "  try: weight.detach().contiguous().view(-1).view(torch.uint8)"
    )
    assert refused(lambda: pack(bits(normal(9)), "bf16", schemes=("huffman",))) == (
        "cannot pack with the schemes ('huffman',)\n  expected: a sequence of some of flat, ranked"
    )


def test_what_cannot_be_unpacked_is_refused_before_anything_is_written() -> None:
    packed = pack(bits(normal(TILE)), "bf16")
    assert packed is not None
    layout, payload = packed
    target = torch.zeros(2 * TILE + 1, dtype=torch.uint8)
    assert refused(lambda: unpack(payload[:-1], layout, target[1:])) == (
        f"cannot unpack a tensor of uint8 with the shape ({layout.nbytes - 1},)\n"
        f"  expected: a payload of {layout.nbytes} bytes: contiguous uint8 of one dimension"
    )
    assert refused(lambda: unpack(payload, layout, target)) == (
        f"cannot unpack into a tensor of uint8 with the shape ({2 * TILE + 1},)\n"
        f"  expected: {2 * TILE} bytes: contiguous uint8 of one dimension"
    )
    assert refused(lambda: unpack(payload, layout, target[1:])) == (
        "cannot unpack: the payload or the target begins at an unaligned byte\n"
        "  expected: the payload at a multiple of 16 bytes, the target at one of 2"
    )
    assert refused(lambda: unpack(payload, layout, target[1:].to("meta"))) == (
        "cannot unpack a payload on cpu into a target on meta\n"
        "  expected: both on one device\n"
        "  try: copy the payload there first: it is the smaller one"
    )
    assert not target.any()


TWIN = """
import torch
from holdfast.residency.packing import layouts, codec_torch, codec_triton
from holdfast.residency.packing.pack import _try_triton, pack
from holdfast.residency.packing.layouts import TILE

def twins(weights, kind, scheme):
    raw = weights.view(torch.uint8)
    layout, payload = pack(raw, kind, schemes=(scheme,))
    one, other = torch.full_like(raw, 1), torch.full_like(raw, 2)
    codec_torch.decode(payload, layout, one)
    codec_triton.decode(payload, layout, other)
    assert torch.equal(one, raw) and torch.equal(other, raw), (kind, scheme, layout)
    return layout

torch.manual_seed(0)
made = torch.randn(3 * TILE + 5) * 0.02
made[100:900] = 0
made[5], made[6], made[7] = float("nan"), float("-inf"), -0.0
seen = set()
for kind, dtype in ("bf16", torch.bfloat16), ("fp16", torch.float16):
    for scheme in ("ranked", "flat") if kind == "bf16" else ("ranked",):
        for size in TILE, 2 * TILE - 3, 3 * TILE:
            seen.add(twins(made[:size].to(dtype), kind, scheme).width)
spread = torch.randn(3 * TILE) * torch.rand(3 * TILE).mul(7).exp2()
seen.add(twins(spread.bfloat16(), "bf16", "ranked").width)
layouts._index_bytes = lambda elements: 8
assert twins(made.bfloat16(), "bf16", "ranked").index_bytes == 8
assert seen == {0, 3, 4}, seen
codec_triton.decode = codec_torch.decode  # quicker than the interpreter
assert _try_triton(torch.device("cpu")), "the trial packs everything it means to"
codec_triton.decode = lambda *arguments: None
assert not _try_triton(torch.device("cpu")), "wrong bits are noticed"
print("the same")
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed here"
)
def test_triton_unpacks_what_torch_unpacks() -> None:
    """In Triton's interpreter, which is chosen when Triton is imported: another process."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", TWIN], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "the same"), done.stderr


class TestOnAGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("scheme", SCHEMES)
    @pytest.mark.parametrize("kind", DTYPES)
    def test_the_gpu_packs_the_same_bytes_and_unpacks_without_waiting(
        self, kind: str, scheme: str
    ) -> None:
        raw = bits(normal(600 * TILE + 9, DTYPES[kind]))
        here, there = (pack(r, kind, schemes=(scheme,)) for r in (raw, raw.cuda()))
        if here is None or there is None:
            assert here is there is None
            assert (kind, scheme) == ("fp16", "flat")
            return
        assert here[0] == there[0]
        assert torch.equal(here[1], there[1].cpu())
        target = torch.zeros(raw.numel(), dtype=torch.uint8, device="cuda")
        packing.decoder("cuda")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it does not see every wait
            torch.cuda.set_sync_debug_mode("error")
            try:
                unpack(there[1], there[0], target)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(target.cpu(), raw)

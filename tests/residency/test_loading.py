from __future__ import annotations

import copy
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from diffusers import WanTransformer3DModel
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from holdfast.base.errors import BadInput, Misuse, OutOfMemory, Unsupported
from holdfast.residency.files import loading, reading
from holdfast.residency.files.loading import Loading, layout, load
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    interrupt_current_processing,
    throw_exception_if_processing_interrupted,
)


class Net(nn.Module):
    """A convolution, a norm with buffers, a scalar, tied weights, and integers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(3, 5, 3)
        self.norm = nn.BatchNorm1d(5)
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)
        self.embed = nn.Embedding(11, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.arange(7))
        self.register_buffer("nothing", torch.empty(0, 3))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    made = Net()
    with torch.no_grad():
        made.norm(torch.randn(4, 5, 6))
    return made


@pytest.fixture
def file(net: Net, tmp_path: Path) -> Path:
    return saved(net, tmp_path / "net.safetensors")


def saved(module: nn.Module, path: Path, leave_out: tuple[str, ...] = ("head.weight",)) -> Path:
    tensors = {k: v.clone() for k, v in module.state_dict().items() if k not in leave_out}
    save_file(tensors, path)
    return path


def on_meta() -> Net:
    with torch.device("meta"):
        return Net()


def assert_same(found: nn.Module, wanted: nn.Module) -> None:
    want, have = wanted.state_dict(), found.state_dict()
    assert list(have) == list(want)
    for name, tensor in want.items():
        assert have[name].dtype == tensor.dtype, name
        assert torch.equal(have[name], tensor), name


def tensors_of(module: nn.Module) -> list[int]:
    return [id(tensor) for tensor in [*module.parameters(), *module.buffers()]]


# ---- what is loaded


def test_a_module_on_meta_gets_every_parameter_and_buffer(net: Net, file: Path) -> None:
    empty = on_meta()
    loaded = load(empty, file)
    assert_same(empty, net)
    assert loaded.weight_bytes == loaded.read_bytes
    assert loaded.weight_bytes == sum(p.nbytes for p in [*net.parameters(), *net.buffers()])


def test_a_real_module_is_filled_as_well_and_its_old_tensors_stay_as_they_were(
    net: Net, file: Path
) -> None:
    other = Net()
    old = other.first.weight
    before = old.detach().clone()
    load(other, [file])
    assert_same(other, net)
    assert torch.equal(old, before)
    assert other.first.weight is not old


def test_ties_and_requires_grad_and_attributes_of_parameters_stay(file: Path) -> None:
    empty = on_meta()
    vars(empty.first.weight)["note"] = "kept"
    load(empty, file)
    assert empty.head.weight is empty.embed.weight
    assert not empty.scale.requires_grad
    assert empty.first.weight.requires_grad
    assert isinstance(empty.first.weight, nn.Parameter)
    assert vars(empty.first.weight) == {"note": "kept"}


def test_either_name_of_a_tied_tensor_will_do(net: Net, tmp_path: Path) -> None:
    file = saved(net, tmp_path / "other.safetensors", leave_out=("embed.weight",))
    empty = on_meta()
    load(empty, file)
    assert_same(empty, net)
    assert empty.head.weight is empty.embed.weight


def test_several_files_make_one_model(net: Net, tmp_path: Path) -> None:
    names = [name for name in net.state_dict() if name != "head.weight"]
    files = [
        saved(net, tmp_path / "a.safetensors", ("head.weight", *names[::2])),
        saved(net, tmp_path / "b.safetensors", ("head.weight", *names[1::2])),
    ]
    empty = on_meta()
    load(empty, files)
    assert_same(empty, net)


def test_names_of_another_layout_are_mapped_or_left_out(net: Net, tmp_path: Path) -> None:
    tensors = {f"model.{k}": v.clone() for k, v in net.state_dict().items()}
    save_file(tensors | {"ema.decay": torch.ones(1)}, tmp_path / "x.safetensors")
    empty = on_meta()
    load(
        empty,
        str(tmp_path / "x.safetensors"),
        rename=lambda name: name.removeprefix("model.") if name.startswith("model.") else None,
    )
    assert_same(empty, net)


def test_a_recurrent_layer_computes_with_its_new_weights(tmp_path: Path) -> None:
    wanted = nn.LSTM(3, 4)
    file = saved(wanted, tmp_path / "x.safetensors")
    with torch.device("meta"):
        empty = nn.LSTM(3, 4)
    load(empty, file)
    numbers = torch.randn(2, 1, 3)
    assert torch.equal(empty(numbers)[0], wanted(numbers)[0])


def test_a_text_encoder_of_transformers_shares_its_embedding(tmp_path: Path) -> None:
    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    wanted = T5EncoderModel(config).eval()
    wanted.save_pretrained(tmp_path)
    with init_empty_weights():
        empty = T5EncoderModel(config).eval()
    empty.tie_weights()
    load(empty, tmp_path / "model.safetensors")
    ids = torch.arange(6)[None]
    assert torch.equal(empty(ids).last_hidden_state, wanted(ids).last_hidden_state)
    assert empty.shared.weight is empty.encoder.embed_tokens.weight


# ---- formats


def tiny_wan() -> WanTransformer3DModel:
    return WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=8,
        freq_dim=8,
        ffn_dim=16,
        num_layers=1,
    )


def test_a_model_of_diffusers_gets_the_formats_that_diffusers_gives_it(tmp_path: Path) -> None:
    tiny_wan().save_pretrained(tmp_path)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        wanted = WanTransformer3DModel.from_pretrained(tmp_path, torch_dtype=dtype)
        with init_empty_weights():
            empty = tiny_wan()
        load(empty, tmp_path / "diffusion_pytorch_model.safetensors", dtype=dtype)
        assert_same(empty, wanted)


def test_a_text_encoder_keeps_float32_where_transformers_does(tmp_path: Path) -> None:
    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    T5EncoderModel(config).save_pretrained(tmp_path)
    for dtype in (torch.bfloat16, torch.float16):
        wanted = T5EncoderModel.from_pretrained(tmp_path, dtype=dtype)
        empty = T5EncoderModel(config)
        load(empty, tmp_path / "model.safetensors", dtype=dtype)
        assert_same(empty, wanted)


def test_a_large_tensor_is_converted_as_torch_converts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 1 << 16)
    wanted = nn.Linear(777, 331)
    file = saved(wanted, tmp_path / "x.safetensors")
    for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn):
        empty = nn.Linear(777, 331, device="meta")
        loaded = load(empty, file, dtype=dtype, threads=3)
        assert torch.equal(
            empty.weight.view(torch.uint8), wanted.weight.to(dtype).view(torch.uint8)
        )
        assert loaded.weight_bytes == (777 * 331 + 331) * dtype.itemsize


def test_integers_and_8_bit_formats_stay_unless_they_are_asked_for_by_name(
    net: Net, tmp_path: Path
) -> None:
    net.first.weight.data = net.first.weight.data.to(torch.float8_e4m3fn)
    file = saved(net, tmp_path / "x.safetensors")
    empty = on_meta()
    load(empty, file, dtype=torch.bfloat16)
    assert empty.first.weight.dtype == torch.float8_e4m3fn
    assert empty.first.bias is not None
    assert empty.first.bias.dtype == empty.norm.running_mean.dtype == torch.bfloat16
    assert empty.steps.dtype == empty.norm.num_batches_tracked.dtype == torch.int64
    names = {"first.weight": torch.float32, "steps": torch.int32}
    load(empty, file, dtype_of=names.get)
    assert torch.equal(empty.first.weight, net.first.weight.float())
    assert torch.equal(empty.steps, net.steps.int())
    assert empty.first.bias.dtype == torch.float32


# ---- slabs


@given(
    sizes=st.lists(st.integers(0, 300), max_size=40),
    slab_bytes=st.integers(1, 200),
    alignment=st.sampled_from([1, 8, 64]),
)
def test_places_keep_the_order_and_overlap_nowhere(
    sizes: list[int], slab_bytes: int, alignment: int
) -> None:
    places, slabs = layout(sizes, slab_bytes=slab_bytes, alignment=alignment)
    assert [place.nbytes for place in places] == sizes
    assert [(p.slab, p.offset) for p in places] == sorted((p.slab, p.offset) for p in places)
    assert all(place.offset % alignment == 0 for place in places)
    for number, size in enumerate(slabs):
        here = [place for place in places if place.slab == number]
        assert size == here[-1].offset + here[-1].nbytes
        for one, other in itertools.pairwise(here):
            assert one.offset + one.nbytes <= other.offset
        assert size <= 2 * slab_bytes or sum(place.nbytes > 0 for place in here) == 1


def test_slabs_of_tensors_of_usual_sizes_are_from_half_to_the_whole_size() -> None:
    megabyte = 1 << 20
    _, slabs = layout([30 * megabyte, 2 * megabyte, 7 * megabyte] * 40)
    assert all(64 * megabyte <= size <= 128 * megabyte for size in slabs[:-1])


def test_parameters_are_aligned_views_of_slabs_in_the_order_of_the_module(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "SLAB_BYTES", 1024)
    given: list[Tensor] = []

    def slab(nbytes: int) -> Tensor:
        given.append(torch.empty(4096 + nbytes, dtype=torch.uint8)[:nbytes])
        return given[-1]

    empty = on_meta()
    loaded = load(empty, file, slab=slab)
    assert len(given) > 1
    assert [s.data_ptr() for s in loaded.slabs] == [s.data_ptr() for s in given]
    weights = dict([*empty.named_parameters(), *empty.named_buffers()])
    assert set(loaded.places) == set(weights)
    for name, place in loaded.places.items():
        tensor = weights[name]
        if tensor.numel():
            assert tensor.data_ptr() == given[place.slab].data_ptr() + place.offset
        assert place.offset % 512 == 0
        assert tensor.nbytes == place.nbytes


def test_addresses_are_aligned_in_slabs_of_our_own(file: Path) -> None:
    empty = on_meta()
    load(empty, file)
    tensors = [*empty.parameters(), *empty.buffers()]
    assert all(tensor.data_ptr() % 512 == 0 for tensor in tensors)


@pytest.mark.parametrize(
    ("slab", "what"),
    [
        (bytearray(4000), "a bytearray"),
        (torch.empty(5, dtype=torch.uint8), "a tensor of [5] torch.uint8 on cpu"),
        (torch.empty(4000), "a tensor of [4000] torch.float32 on cpu"),
        (
            torch.empty(4000, dtype=torch.uint8, device="meta"),
            "a tensor of [4000] torch.uint8 on meta",
        ),
    ],
)
def test_a_slab_that_is_none_is_refused(tmp_path: Path, slab: Any, what: str) -> None:
    file = saved(nn.Linear(10, 10), tmp_path / "x.safetensors")
    module = nn.Linear(10, 10, device="meta")
    with pytest.raises(BadInput) as caught:
        load(module, file, slab=lambda _: slab)
    assert str(caught.value) == (
        f"cannot load weights into {what}\n"
        "  expected: a slab: a contiguous uint8 tensor of 552 in host memory"
    )
    assert module.weight.is_meta


def test_where_there_is_no_memory_for_a_slab_the_module_stays(file: Path) -> None:
    def slab(nbytes: int) -> Tensor:
        raise OutOfMemory("no more")

    empty = on_meta()
    with pytest.raises(OutOfMemory, match="no more"):
        load(empty, file, slab=slab)
    assert empty.first.weight.is_meta


# ---- breaking off and going on


class Stop(Exception):
    """What `check` raises here."""


def test_an_interrupted_load_leaves_the_module_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 1 << 12)
    wanted = nn.Sequential(*(nn.Linear(64, 64) for _ in range(10)))
    file = saved(wanted, tmp_path / "x.safetensors")
    empty = nn.Sequential(*(nn.Linear(64, 64, device="meta") for _ in range(10)))
    before = tensors_of(empty)
    work = Loading(empty, file, threads=2)
    real, leave, count, stopped = os.preadv, reading._Crew.__exit__, [0], threading.Event()

    def preadv(descriptor: int, views: Any, offset: int) -> int:
        count[0] += 1
        assert count[0] < 10 or stopped.wait(60)
        done = real(descriptor, views, offset)
        read.append(done)
        return done

    def stop(self: Any, *about: object) -> None:
        leave(self, *about)
        stopped.set()

    def check() -> None:
        if count[0] >= 10:
            raise Stop

    read: list[int] = []
    monkeypatch.setattr(reading._Crew, "__exit__", stop)
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(Stop):
        work.run(check=check)
    assert tensors_of(empty) == before
    assert 0 < work.done_bytes < work.total_bytes
    loaded = work.run()
    assert sum(read) == work.total_bytes == work.done_bytes == loaded.read_bytes
    assert_same(empty, wanted)


def test_an_interrupt_while_slabs_are_made_keeps_those_that_are_there(
    file: Path, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "SLAB_BYTES", 256)
    made: list[int] = []

    def slab(nbytes: int) -> Tensor:
        made.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    def check() -> None:
        if len(made) == 2:
            raise Stop

    empty = on_meta()
    work = Loading(empty, file, slab=slab)
    with pytest.raises(Stop):
        work.run(check=check)
    assert empty.first.weight.is_meta
    loaded = work.run()
    assert len(loaded.slabs) == len(made) > 2
    assert_same(empty, net)


def test_an_interrupt_while_weights_change_places_puts_the_old_ones_back(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = on_meta()
    before = tensors_of(empty)
    real = nn.Module.__setattr__
    calls: list[str] = []

    def setattr_(self: nn.Module, name: str, value: Any) -> None:
        calls.append(name)
        if len(calls) == 4:
            raise KeyboardInterrupt
        real(self, name, value)

    work = Loading(empty, file)
    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "__setattr__", setattr_)
        with pytest.raises(KeyboardInterrupt):
            work.run()
    assert tensors_of(empty) == before
    work.run()
    assert not empty.first.weight.is_meta


def test_a_request_to_stop_breaks_a_load_off_and_the_next_run_ends_it(file: Path, net: Net) -> None:
    empty = on_meta()
    work = Loading(empty, file)
    interrupt_current_processing()
    with pytest.raises(InterruptProcessingException):
        work.run(check=throw_exception_if_processing_interrupted)
    assert empty.first.weight.is_meta
    work.run(check=throw_exception_if_processing_interrupted)
    assert_same(empty, net)


def test_progress_ends_with_the_whole(file: Path) -> None:
    told: list[tuple[int, int]] = []
    loaded = load(on_meta(), file, progress=lambda *numbers: told.append(numbers))
    assert told[-1] == (loaded.read_bytes, loaded.read_bytes)


def test_a_load_that_is_over_cannot_be_run_again(file: Path) -> None:
    work = Loading(on_meta(), file)
    work.run()
    with pytest.raises(Misuse) as caught:
        work.run()
    assert str(caught.value) == (
        "these weights are loaded already\n  expected: a new Loading for each load"
    )


# ---- what goes wrong


def refused(module: nn.Module, files: Any, **options: Any) -> str:
    """The text of the error; the module must be as it was."""
    before, values = tensors_of(module), copy.deepcopy(module.state_dict())
    with pytest.raises(BadInput) as caught:
        load(module, files, **options)
    assert tensors_of(module) == before
    for name, tensor in module.state_dict().items():
        assert tensor.is_meta or torch.equal(tensor, values[name])
    return str(caught.value)


def test_a_missing_tensor_is_named(net: Net, tmp_path: Path) -> None:
    file = saved(net, tmp_path / "x.safetensors", ("head.weight", "scale", "steps"))
    assert refused(Net(), file) == (
        f"cannot load weights into Net: 'scale' (and 1 more) is not in {str(file)!r}\n"
        "  expected: all of its tensors"
    )


def test_missing_and_unexpected_names_together_hint_at_a_mapping(net: Net, tmp_path: Path) -> None:
    tensors = {f"model.{k}": v.clone() for k, v in net.state_dict().items()}
    save_file(tensors, tmp_path / "a.safetensors")
    save_file({}, tmp_path / "b.safetensors")
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    assert refused(on_meta(), files) == (
        "cannot load weights into Net: 'scale' (and 10 more) is in none of 2 files\n"
        "  expected: all of its tensors\n"
        "  try: the names may differ: there is 'model.norm.num_batches_tracked' (and 11 more); "
        "rename= maps them"
    )


def test_a_model_that_is_not_tied_yet_is_told_how(tmp_path: Path) -> None:
    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    T5EncoderModel(config).save_pretrained(tmp_path)
    module = T5EncoderModel(config)
    module.encoder.embed_tokens.weight = nn.Parameter(module.shared.weight.detach().clone())
    file = tmp_path / "model.safetensors"
    assert refused(module, file) == (
        "cannot load weights into T5EncoderModel: 'encoder.embed_tokens.weight' is not in "
        f"{str(file)!r}\n"
        "  expected: all of its tensors\n"
        "  try: call its tie_weights() first, if it shares its weights with another tensor"
    )


def test_an_unexpected_tensor_is_named(tmp_path: Path) -> None:
    file = saved(nn.Linear(3, 3), tmp_path / "x.safetensors")
    assert refused(nn.Linear(3, 3, bias=False), file) == (
        f"cannot load weights into Linear: {str(file)!r} has 'bias', which it has not\n"
        "  expected: tensors that the module has\n"
        "  try: leave them out: rename=, a function that gives None for their names"
    )


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    file = saved(nn.Linear(3, 4), tmp_path / "x.safetensors")
    assert refused(nn.Linear(4, 4), file) == (
        f"cannot load weights into Linear: 'weight' in {str(file)!r} has the shape [4, 3]\n"
        "  expected: the shape [4, 4]\n"
        "  try: load the weights of this very model, or make the module from their configuration"
    )


def test_a_file_that_is_cut_off_changes_nothing(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 5)
    text = refused(on_meta(), file)
    assert text.startswith(f"cannot read weights {str(file)!r}: it ends after ")


def test_a_file_that_shrinks_while_it_is_read_changes_nothing(file: Path) -> None:
    def shrink() -> None:
        os.truncate(file, 100)

    text = refused(on_meta(), file, check=shrink)
    assert text.startswith(f"cannot read weights {str(file)!r}: it ends after 100 B\n")


def test_a_tensor_in_two_files_is_refused(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"scale": torch.tensor(1.0)}, other)
    assert refused(on_meta(), [file, other]) == (
        f"cannot load weights: 'scale' is in {str(file)!r} and in {str(other)!r}\n"
        "  expected: each tensor once\n"
        "  try: give the files of one model, or leave one out with rename="
    )


def test_a_format_that_torch_has_not_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    text = b'{"weight": {"dtype": "F6_E2M3", "shape": [4, 4], "data_offsets": [0, 12]}}'
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    found = refused(nn.Linear(4, 4, bias=False), file)
    assert found.startswith(
        f"cannot load weights into Linear: 'weight' in {str(file)!r} has the dtype F6_E2M3\n"
    )


class Rotary(nn.Module):
    """What the constructor computes: a buffer that is not saved, and a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("angles", torch.arange(4.0), persistent=False)
        self.tables = [torch.arange(4.0)]


def test_what_no_file_has_is_named_rather_than_left_on_meta(tmp_path: Path) -> None:
    file = saved(Rotary(), tmp_path / "x.safetensors")
    with torch.device("meta"):
        module = nn.Sequential(Rotary())
    assert refused(module, file, rename=lambda name: f"0.{name}") == (
        "cannot load weights into Sequential: '0.angles' (and 1 more) would stay on the meta "
        "device\n"
        "  expected: a value: it is in no file, only the module's constructor computes it\n"
        "  try: make the module under accelerate.init_empty_weights(), which computes buffers"
    )
    with init_empty_weights():
        computed = Rotary()
    load(computed, file)
    assert torch.equal(computed.angles, torch.arange(4.0))


def test_a_second_way_to_a_weight_that_stays_on_meta_is_found(tmp_path: Path) -> None:
    class Listed(nn.Linear):
        def __init__(self, **options: Any) -> None:
            super().__init__(2, 2, **options)
            self.listed = [self.bias]

    file = saved(Listed(), tmp_path / "x.safetensors")
    text = refused(Listed(device="meta"), file)
    assert text.startswith(
        "cannot load weights into Listed: 'listed' would stay on the meta device\n"
    )


def test_a_file_may_have_a_buffer_that_is_not_saved_any_more(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3), "angles": torch.zeros(9)}, tmp_path / "x.safetensors")
    module = Rotary()
    load(module, tmp_path / "x.safetensors")
    assert torch.equal(module.weight, torch.zeros(3))
    assert torch.equal(module.angles, torch.arange(4.0))


def test_what_has_no_tensors_to_fill_is_refused(tmp_path: Path) -> None:
    class Own(nn.Linear):
        def get_extra_state(self) -> Any:
            return 1

    file = saved(nn.Linear(2, 2), tmp_path / "x.safetensors")
    with pytest.raises(Unsupported) as caught:
        load(Own(2, 2), file)
    assert str(caught.value) == (
        "cannot exchange the weights of Own: it keeps a state of its own beside its tensors\n"
        "  expected: parameters and buffers with a shape"
    )
    with pytest.raises(Unsupported, match="has no shape before the first call"):
        load(nn.LazyLinear(3), file)


# ---- memory

PEAK = """
import sys
from pathlib import Path
import torch
from torch import nn
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    interrupt_current_processing,
    throw_exception_if_processing_interrupted,
)
from holdfast.residency.files.loading import load

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024

def net():
    return nn.Sequential(*(nn.Linear(1000, 5000, bias=False, device="meta") for _ in range(8)))

dtype = getattr(torch, sys.argv[2]) if sys.argv[2] != "None" else None
small = nn.Linear(2, 2, device="meta")
load(small, sys.argv[3], dtype=dtype)  # what is imported and made on first use
Path("/proc/self/clear_refs").write_text("5")  # the peak is now
before = status("VmRSS")
model = net()
loaded = load(model, sys.argv[1], dtype=dtype, threads=4)
print(loaded.weight_bytes, status("VmHWM") - before, status("VmRSS") - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """160 MB of weights in float32."""
    path = tmp_path_factory.mktemp("large") / "x.safetensors"
    save_file({f"{at}.weight": torch.full((5000, 1000), float(at)) for at in range(8)}, path)
    yield path
    path.unlink()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads peaks from /proc")
@pytest.mark.parametrize(("dtype", "share"), [("None", 1), ("bfloat16", 2)])
def test_the_weights_are_in_memory_once(
    large: Path, tmp_path: Path, dtype: str, share: int
) -> None:
    small = saved(nn.Linear(2, 2), tmp_path / "small.safetensors")
    command = [sys.executable, "-c", PEAK, str(large), dtype, str(small)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    weight_bytes, peak, after = map(int, done.stdout.split())
    assert weight_bytes == 160_000_000 // share
    assert weight_bytes * 0.98 < after <= peak  # it is there
    assert peak < weight_bytes + 4 * reading.PIECE_BYTES + (12 << 20)

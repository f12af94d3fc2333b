"""Files, pickles, copies and storages of tensors on the device."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import holdfast.torch
from holdfast.base.errors import HoldfastError

assert holdfast.torch
DEVICE = "holdfast"
FORMATS = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.bool,
    torch.uint8,
    torch.int64,
]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(count, dtype=torch.float32).reshape(shape).to(dtype)


def saved(value: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether both hold the same bytes in the same shape."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if not found.numel():
        return True
    flat = (t.cpu().contiguous().reshape(-1).view(torch.uint8) for t in (found, expected))
    return torch.equal(*flat)


# ---- files


# torch's old format cannot read 8-bit floats back, on no device.
OLD = [d for d in FORMATS if not (d.is_floating_point and d.itemsize == 1)]


@pytest.mark.parametrize(
    ("dtype", "zipped"), [*((d, True) for d in FORMATS), *((d, False) for d in OLD)], ids=str
)
def test_a_tensor_is_saved_on_the_device_and_loaded_on_the_cpu_and_back(
    dtype: torch.dtype, zipped: bool
) -> None:
    expected = numbers(2, 3, dtype=dtype)
    file = saved(expected.to(DEVICE), _use_new_zipfile_serialization=zipped)
    here = torch.load(file, map_location="cpu")
    file.seek(0)
    there = torch.load(file)
    assert here.device.type == "cpu"
    assert there.device == torch.device(DEVICE, 0)
    assert same(here, expected)
    assert same(there, expected)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1), (1 << 20,)], ids=str)
def test_tensors_of_any_size_are_saved(shape: tuple[int, ...]) -> None:
    expected = numbers(*shape)
    assert same(torch.load(saved(expected.to(DEVICE))), expected)


@pytest.mark.parametrize(
    "place",
    [
        DEVICE,
        "holdfast:0",
        torch.device(DEVICE),
        {"cpu": DEVICE},
        lambda storage, location: storage.to(device=torch.device(DEVICE)),
    ],
    ids=["name", "name:0", "device", "dict", "function"],
)
@pytest.mark.parametrize("weights_only", [True, False])
def test_a_file_of_the_cpu_is_loaded_on_the_device(place: Any, weights_only: bool) -> None:
    loaded = torch.load(saved(numbers(4)), map_location=place, weights_only=weights_only)
    assert loaded.device == torch.device(DEVICE, 0)
    assert same(loaded, numbers(4))
    assert same(loaded + 1, numbers(4) + 1)


def test_a_mapped_file_is_copied_to_the_device(tmp_path: Path) -> None:
    path = tmp_path / "numbers.pt"
    torch.save(numbers(100).to(DEVICE), path)
    before = path.read_bytes()
    loaded = torch.load(path, mmap=True)
    loaded += 1
    assert same(loaded, numbers(100) + 1)
    assert path.read_bytes() == before


def test_a_place_that_is_not_there_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"torch.holdfast.device_count\(\) is 1"):
        torch.load(saved(numbers(4)), map_location="holdfast:7")


def test_what_is_shared_and_strided_stays_so_in_a_file() -> None:
    base = numbers(4, 6).to(DEVICE)
    a, b, turned = torch.load(saved([base, base[1:, ::2], base.t()]))
    assert b.stride() == (6, 2)
    assert b.storage_offset() == 6
    assert turned.stride() == (1, 6)
    a.zero_()
    assert not b.cpu().any()
    assert not turned.cpu().any()


def test_views_that_are_noted_as_conjugate_or_negative_keep_their_numbers() -> None:
    plain = torch.tensor([1 + 2j, 3 - 4j])
    views = [plain.to(DEVICE).conj(), plain.to(DEVICE).conj().imag]
    for view, expected in zip(views, (plain.conj(), plain.conj().imag), strict=True):
        for made in (
            torch.load(saved(view)),
            torch.load(saved(view), map_location="cpu"),
            pickle.loads(pickle.dumps(view)),
            copy.deepcopy(view),
        ):
            assert torch.equal(made.cpu().resolve_conj().resolve_neg(), expected.resolve_neg())


def test_gradients_are_still_wanted_of_what_was_saved() -> None:
    parameter = nn.Parameter(numbers(3).to(DEVICE))
    for made in (torch.load(saved(parameter)), pickle.loads(pickle.dumps(parameter))):
        assert type(made) is nn.Parameter
        assert made.requires_grad
    assert torch.load(saved(numbers(3).to(DEVICE).requires_grad_())).requires_grad


WITHOUT = """
import sys, torch
assert "holdfast" not in sys.modules
for path in sys.argv[1:]:
    print(torch.load(path, map_location="cpu").tolist())
    try:
        torch.load(path)
    except RuntimeError as exc:
        print(exc)
"""


@pytest.mark.slow
def test_a_file_loads_where_nobody_knows_the_device(tmp_path: Path) -> None:
    paths = [str(tmp_path / "zipped.pt"), str(tmp_path / "legacy.pt")]
    for path in paths:
        zipped = "zipped" in path
        torch.save(numbers(3).to(DEVICE), path, _use_new_zipfile_serialization=zipped)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *paths],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    each = [
        "[0.0, 1.0, 2.0]",
        "don't know how to restore data location of torch.storage.UntypedStorage "
        "(tagged with holdfast:0)",
    ]
    assert done.stdout.splitlines() == [*each, *each]


def test_safetensors_are_saved_on_the_device_and_loaded_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "numbers.safetensors"
    tensors = {str(d): numbers(2, 3, dtype=d) for d in FORMATS}
    save_file({name: t.to(DEVICE) for name, t in tensors.items()}, path)
    loaded = load_file(path)
    assert all(same(loaded[name].to(DEVICE), t) for name, t in tensors.items())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 3)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize(("source", "target"), [(DEVICE, "cpu"), ("cpu", DEVICE), (DEVICE, DEVICE)])
def test_state_dicts_load_across_devices(source: str, target: str, assign: bool) -> None:
    model = Tied().to(source)
    state = torch.load(saved(model.state_dict()), map_location=target)
    other = Tied().to(target)
    other.load_state_dict(state, assign=assign)
    assert {p.device.type for p in other.state_dict().values()} == {target}
    for name, value in model.state_dict().items():
        assert same(other.state_dict()[name], value)


def test_training_goes_on_from_a_file_as_if_it_had_not_stopped() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(numbers(4, 3).to(DEVICE)).square().mean().backward()
        optimizer.step()

    model = Tied().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        step(model, optimizer)
    file = saved([model.state_dict(), optimizer.state_dict()])
    other = Tied().to(DEVICE)
    again = torch.optim.AdamW(other.parameters(), lr=0.01)
    weights, moments = torch.load(file)
    other.load_state_dict(weights)
    again.load_state_dict(moments)
    step(model, optimizer)
    step(other, again)
    for name, value in model.state_dict().items():
        assert same(other.state_dict()[name], value)


def test_whole_modules_are_saved() -> None:
    model = Tied().to(DEVICE).eval()
    made = torch.load(saved(model), weights_only=False)
    here = torch.load(saved(model), weights_only=False, map_location="cpu")
    assert made.first.weight is made.last.weight
    x = numbers(4, 3)
    assert same(made(x.to(DEVICE)), model(x.to(DEVICE)))
    torch.testing.assert_close(here(x), model(x.to(DEVICE)).cpu())


# ---- pickles and copies


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.bool])
def test_a_pickle_has_the_numbers_in_it(protocol: int, dtype: torch.dtype) -> None:
    expected = numbers(3, 4, dtype=dtype)
    made = pickle.loads(pickle.dumps([expected.to(DEVICE).t(), {"a": 1}], protocol))[0]
    assert made.device == torch.device(DEVICE, 0)
    assert made.stride() == (1, 4)
    assert same(made, expected.t())


def test_a_pickled_module_keeps_weights_tied() -> None:
    model = Tied().to(DEVICE)
    made = pickle.loads(pickle.dumps(model))
    assert made.first.weight is made.last.weight
    assert all(same(made.state_dict()[n], v) for n, v in model.state_dict().items())


def test_a_deep_copy_shares_what_was_shared_and_nothing_else() -> None:
    model = Tied().to(DEVICE)
    base = numbers(4).to(DEVICE)
    made, a, b = copy.deepcopy((model, base, base[1:]))
    assert made.first.weight is made.last.weight
    a.zero_()
    assert b.cpu().tolist() == [0, 0, 0]
    assert base.cpu().tolist() == [0, 1, 2, 3]
    with torch.no_grad():
        made.first.weight.zero_()
    assert model.first.weight.cpu().any()


def test_a_shallow_copy_looks_at_the_same_memory() -> None:
    base = numbers(3).to(DEVICE)
    copy.copy(base).add_(1)
    assert base.cpu().tolist() == [1, 2, 3]


def test_a_deep_copy_takes_gradients_along() -> None:
    leaf = numbers(3).to(DEVICE).requires_grad_()
    leaf.square().sum().backward()
    made = copy.deepcopy(leaf)
    assert made.grad is not None
    assert made.grad.cpu().tolist() == [0, 2, 4]


# ---- storages


def test_a_storage_is_made_copied_and_read() -> None:
    storage: Any = torch.UntypedStorage(4, device=DEVICE)
    assert (storage.nbytes(), storage.device) == (4, torch.device(DEVICE, 0))
    storage.copy_(torch.UntypedStorage([1, 2, 3, 4]))
    storage[0] = 9
    assert storage.tolist() == [9, 2, 3, 4]
    assert storage[1:3].tolist() == [2, 3]
    assert storage.clone().tolist() == [9, 2, 3, 4]
    assert storage.cpu().device.type == "cpu"
    assert storage.cpu().tolist() == [9, 2, 3, 4]
    assert storage.fill_(5).tolist() == [5, 5, 5, 5]
    assert torch.UntypedStorage([7, 8], device=DEVICE).tolist() == [7, 8]
    assert torch.UntypedStorage([7, 8]).to(device=torch.device(DEVICE)).tolist() == [7, 8]
    assert torch.UntypedStorage(device=DEVICE).nbytes() == 0
    assert torch.UntypedStorage(4).device.type == "cpu"


def test_a_typed_storage_is_of_the_device_too() -> None:
    made = numbers(3).to(DEVICE)._typed_storage()
    assert made._deepcopy({})._getitem(2) == 2.0
    empty = torch.storage.TypedStorage(3, dtype=torch.float32, device=DEVICE, _internal=True)
    assert empty._untyped_storage.nbytes() == 12


def test_a_storage_grows_and_shrinks_under_its_tensors() -> None:
    tensor = numbers(4).to(DEVICE)
    view, storage = tensor[1:], tensor.untyped_storage()
    storage.resize_(32)
    assert (storage.nbytes(), tensor.cpu().tolist()) == (32, [0, 1, 2, 3])
    tensor.add_(1)
    assert view.cpu().tolist() == [2, 3, 4]
    storage.resize_(16)
    assert tensor.cpu().tolist() == [1, 2, 3, 4]
    storage.resize_(0)
    storage.resize_(16)
    storage.fill_(0)
    assert tensor.cpu().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("left", [0, 8])
def test_a_tensor_beyond_its_storage_is_refused(left: int) -> None:
    tensor = numbers(4).to(DEVICE)
    tensor.untyped_storage().resize_(left)
    with pytest.raises(RuntimeError) as caught:
        tensor.cpu()
    assert str(caught.value) == (
        f"cannot compute with a torch.float32 tensor of (4,): its storage has {left} bytes\n"
        "  expected: a storage that holds every element\n"
        "  try: storage.resize_() back to its size"
    )


def test_storages_that_cannot_be_are_refused() -> None:
    texts = []
    for wrong in (
        lambda: torch.UntypedStorage(-1, device=DEVICE),
        lambda: torch.UntypedStorage(1, device=DEVICE).resize_(-1),
        lambda: torch.UntypedStorage(1, device=DEVICE, allocator=1),
    ):
        with pytest.raises(HoldfastError) as caught:
            wrong()
        assert isinstance(caught.value, RuntimeError)
        texts.append(str(caught.value))
    assert texts == [
        "cannot make a storage of -1 bytes\n  expected: 0 or more bytes",
        "cannot give a storage -1 bytes\n  expected: 0 or more bytes",
        "cannot make a storage on the device with another allocator\n"
        "  expected: allocator=None: its memory comes from Holdfast's pools",
    ]


def test_safetensors_load_to_the_device(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    file = tmp_path / "some.safetensors"
    library.save_file({"a": torch.arange(3.0)}, file)
    for device, kind in ((DEVICE, DEVICE), (torch.device(DEVICE, 0), DEVICE), ("cpu", "cpu")):
        loaded = library.load_file(file, device=device)
        assert loaded["a"].device.type == kind
        assert loaded["a"].tolist() == [0, 1, 2]

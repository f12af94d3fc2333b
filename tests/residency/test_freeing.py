from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from holdfast.base.errors import BadInput
from holdfast.memory.debug.referrers import NOBODY
from holdfast.residency.files import freeing as holders_module
from holdfast.residency.files.freeing import Held, Holders, Released, Watch, holders, released
from holdfast.residency.files.loading import load
from tests.needs import ALL


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 40), nn.Sequential(nn.Linear(40, 50, bias=False)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    save_file({name: tensor.clone() for name, tensor in net().state_dict().items()}, path)
    return path


def plain(text: str) -> str:
    """Without addresses."""
    return re.sub("0x[0-9a-f]+", "0x", text)


class Keeper:
    """Holds what it is given."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept


# ---- who holds it


def test_memory_that_is_gone_is_held_by_nobody() -> None:
    tensors = [torch.zeros(1000), torch.zeros(500)]
    watch = Watch(tensors)
    del tensors
    found = holders(watch)
    assert found == Holders(6000, ())
    assert str(found) == "nobody holds any of 6.0 KB"


def test_a_variable_an_attribute_and_a_list_are_named() -> None:
    first, second, third = torch.zeros(1000), torch.zeros(500), torch.zeros(250)
    watch = Watch([("first", first), ("second", second), ("third", third)])
    keeper = Keeper(second)
    cache = {"a": [third]}
    del second, third
    found = holders(watch)
    where = "test_a_variable_an_attribute_and_a_list_are_named"
    assert plain(str(found)) == (
        "7.0 KB of 7.0 KB are held\n"
        f"  4.0 KB on cpu (first): a Tensor ← local 'first' (Tensor) of {where}, which runs\n"
        "  2.0 KB on cpu (second): a Tensor ← attribute 'kept' of Keeper at 0x ← "
        f"local 'keeper' (Keeper) of {where}, which runs\n"
        "  1.0 KB on cpu (third): a Tensor ← item 0 of list ← key 'a' of dict ← "
        f"local 'cache' (dict) of {where}, which runs"
    )
    assert keeper.kept is not None
    assert cache


def test_a_view_an_array_and_a_storage_hold_the_whole_memory() -> None:
    for hold in (
        lambda tensor: tensor[3:4],
        lambda tensor: tensor.numpy(),
        lambda tensor: memoryview(tensor.numpy()),
        lambda tensor: tensor.untyped_storage(),
    ):
        tensor = torch.zeros(1000)
        watch = Watch([tensor])
        kept = Keeper(hold(tensor))
        del tensor
        found = holders(watch)
        assert found.held_bytes == 4000
        assert "attribute 'kept' of Keeper" in found.held[0].holders[0], type(kept.kept)
        del kept
        assert holders(watch).held == ()


def test_a_weight_is_named_by_its_path_in_the_module() -> None:
    model = net()
    found = holders(model)
    assert [one.names for one in found.held] == [("1.0.weight",), ("0.weight",), ("0.bias",)]
    assert found.held[0].holders == (
        "weight '1.0.weight' of Sequential ← local 'model' (Sequential) of "
        "test_a_weight_is_named_by_its_path_in_the_module, which runs",
    )


def test_a_module_inside_of_something_is_found_through_it() -> None:
    watch = Watch(model := net())
    keeper = Keeper({"transformer": model})
    del model
    found = holders(watch)
    assert plain(found.held[0].holders[0]) == (
        "weight '1.0.weight' of Sequential ← key 'transformer' of dict ← attribute 'kept' of "
        "Keeper at 0x ← local 'keeper' (Keeper) of "
        "test_a_module_inside_of_something_is_found_through_it, which runs"
    )
    assert keeper.kept


def test_a_module_that_only_c_code_holds_is_not_held_by_the_search() -> None:
    model = nn.Linear(10, 10, bias=False)
    watch = Watch(model)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(model))
    address = id(model)
    del model
    found = holders(watch)
    held = ctypes.cast(address, ctypes.py_object)
    ctypes.pythonapi.Py_DecRef(held)
    del held
    assert found.held[0].holders == (f"weight 'weight' of Linear ← {NOBODY}",)
    assert holders(watch).held == ()


def test_what_only_torch_itself_holds_is_reported_as_held() -> None:
    weight = torch.rand(100, 100)
    watch = Watch([weight])
    result = (torch.rand(1, 100, requires_grad=True) @ weight).sum()
    del weight
    found = holders(watch)
    assert found.held == (Held(40_000, "cpu", (), (f"a Tensor ← {NOBODY}",)),)
    del result
    assert holders(watch).held == ()


def test_a_cycle_that_nobody_holds_is_collected() -> None:
    tensor = torch.zeros(1000)
    watch = Watch([tensor])
    one = Keeper(tensor)
    tensor_cycle = Keeper(one)
    one.kept = [tensor, tensor_cycle]
    del one, tensor_cycle, tensor
    assert holders(watch).held == ()


def test_looking_keeps_nothing_alive() -> None:
    tensor = torch.zeros(1000)
    watch = Watch([tensor])
    gc.disable()
    try:
        assert holders(watch).held_bytes == 4000
        del tensor
        assert watch.alive() == []
    finally:
        gc.enable()


def test_holders_of_the_largest_alone_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders_module, "SEARCHED", 1)
    tensors = [torch.zeros(10), torch.zeros(20)]
    found = holders(tensors)
    assert [one.nbytes for one in found.held] == [80, 40]
    assert found.held[0].holders[0].startswith("a Tensor ← item 1 of list ← local 'tensors'")
    assert found.held[1].holders == ("unknown (only the 1 largest were searched)",)


def test_memory_without_numbers_and_other_things() -> None:
    assert holders([torch.empty(5, device="meta"), torch.empty(0)]) == Holders(0, ())
    values: Any = [np.zeros(3)]
    with pytest.raises(BadInput) as caught:
        holders(values)
    assert str(caught.value) == (
        "cannot tell who holds a ndarray\n  expected: a module, tensors or their storages"
    )


# ---- giving back


def test_a_released_module_is_empty_and_can_be_loaded_again(file: Path) -> None:
    model = net()
    for _ in range(2):
        load(model, file)
        found = released(model)
        assert found.held.held == ()
        assert found.freed_bytes == found.weight_bytes >= 30 * 40 * 4 + 40 * 4 + 40 * 50 * 4
        assert all(parameter.is_meta for parameter in model.parameters())
        assert [tuple(p.shape) for p in model.parameters()] == [(40, 30), (40,), (50, 40)]


def test_ties_and_formats_and_buffers_of_the_constructor_stay() -> None:
    model = nn.Module()
    model.one = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    model.two = nn.Linear(4, 4, bias=False)
    model.two.weight = model.one.weight
    model.register_buffer("saved", torch.ones(3))
    model.register_buffer("computed", torch.ones(3), persistent=False)
    released(model)
    assert model.two.weight is model.one.weight
    assert model.one.weight.is_meta
    assert model.one.weight.dtype == torch.bfloat16
    assert not model.one.weight.requires_grad
    assert model.saved.is_meta
    assert torch.equal(model.computed, torch.ones(3))


def test_a_release_says_who_keeps_a_slab(file: Path) -> None:
    model = net()
    loaded = load(model, file)
    found = released(model)
    assert found.freed_bytes == 0
    assert found.held.held[0].names == ("0.weight", "0.bias", "1.0.weight")
    assert plain(found.held.held[0].holders[0]) == (
        "a Tensor ← item 0 of tuple ← attribute 'slabs' of Loaded at 0x ← local 'loaded' "
        "(Loaded) of test_a_release_says_who_keeps_a_slab, which runs"
    )
    watch = Watch(loaded.slabs)
    del loaded
    assert holders(watch).held == ()


def test_gradients_go_with_the_weights() -> None:
    model = net()
    model(torch.ones(1, 30)).sum().backward()
    watch = Watch([p.grad for p in model.parameters() if p.grad is not None])
    assert watch.nbytes > 0
    released(model)
    assert holders(watch).held == ()


def test_a_report_is_a_line_or_names_the_holders() -> None:
    held = Holders(2_000_000, (Held(2_000_000, "cpu", ("a", "b", "c"), ("x", "y")),))
    some = Released(3_000_000, 10_000_000, 9_000_000, held)
    assert str(some) == (
        "1.0 MB of 3.0 MB freed, 1.0 MB less in RAM\n"
        "2.0 MB of 2.0 MB are held\n"
        "  2.0 MB on cpu (a and 2 more): x; y"
    )
    all_of_it = Released(3_000_000, 10_000_000, 7_000_000, Holders(3_000_000, ()))
    assert str(all_of_it) == "3.0 MB of 3.0 MB freed, 3.0 MB less in RAM"


CYCLES = """
import sys
import torch
from torch import nn
from holdfast.memory.profile.samples import rss_bytes
from holdfast.residency.files.freeing import released
from holdfast.residency.files.loading import load

def cycle(model, dtype):
    load(model, sys.argv[1], dtype=dtype)
    full = rss_bytes()
    report = released(model)
    assert not report.held.held, report
    return full - rss_bytes()

model = nn.Sequential(*(nn.Linear(1000, 2600, device="meta") for _ in range(10)))
formats = [None, torch.bfloat16]
least = {dtype: cycle(model, dtype) for dtype in formats}  # what is made on first use
start = rss_bytes()
for _ in range(int(sys.argv[2])):
    for dtype in formats:
        least[dtype] = min(least[dtype], cycle(model, dtype))
print(rss_bytes() - start, *least.values())
"""


@pytest.mark.slow
def test_many_loads_and_releases_leave_the_process_as_large_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    layers = [nn.Linear(1000, 2600) for _ in range(10)]
    save_file(nn.Sequential(*layers).state_dict(), path)
    size = sum(p.nbytes for layer in layers for p in layer.parameters())
    done = subprocess.run(
        [sys.executable, "-c", CYCLES, str(path), "50" if ALL else "5"],
        capture_output=True,
        text=True,
        check=True,
    )
    growth, whole, half = map(int, done.stdout.split())
    assert size > 100_000_000
    assert growth < 0.01 * size
    assert whole > 0.99 * size  # what each cycle gave back, at least
    assert half > 0.99 * size / 2

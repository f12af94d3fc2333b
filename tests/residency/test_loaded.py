"""Many models on one card: who is loaded, who leaves, and in which order."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import threading
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from holdfast.base.errors import BadInput
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    interrupt_current_processing,
)
from holdfast.residency.model_management.models import loaded
from holdfast.residency.model_management.models import patcher as patchers
from holdfast.residency.model_management.models.loaded import (
    LoadedModel,
    Manager,
    unload_order,
)
from holdfast.residency.model_management.models.patcher import Patcher
from holdfast.residency.model_management.rules import current
from holdfast.residency.model_management.rules.options import Options
from tests.residency.cards import CPU, META, MIB, desk, made, on_card

HERE = torch.cuda.is_available()
CUDA = torch.device("cuda", 0)
RESERVE = 400 * MIB  # left to others
COMPUTING = int(0.8 * 2**30) + RESERVE  # kept free for a model to compute
ROOM = COMPUTING / MIB  # in MiB, for sizes of cards


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    interrupt_current_processing(False)
    assert loaded.current_loaded_models == []


# ---- pure


@pytest.mark.parametrize(
    ("rows", "order"),
    [
        ([], []),
        ([(0, 2, 10, 0), (5, 2, 10, 1)], [1, 0]),  # partly away already: first
        ([(5, 2, 10, 0), (5, 1, 10, 1)], [1, 0]),  # fewer refer to it
        ([(5, 2, 10, 0), (5, 2, 9, 1)], [1, 0]),  # smaller
        ([(5, 2, 10, 1), (5, 2, 10, 0)], [0, 1]),  # loaded last
        ([(0, 1, 1, 0), (9, 9, 9, 1), (9, 9, 8, 2), (9, 8, 9, 3), (1, 1, 1, 4)], [3, 2, 1, 4, 0]),
    ],
)
def test_models_leave_by_offloaded_bytes_references_size_and_index(rows, order):
    assert unload_order(rows) == order


def test_the_order_does_not_depend_on_the_order_of_the_rows():
    rows = [(3, 1, 1, 0), (3, 1, 2, 1), (0, 0, 0, 2), (7, 5, 1, 3)]
    for shuffled in itertools.permutations(rows):
        assert unload_order(shuffled) == [3, 0, 1, 2]


# ---- loading


def test_a_model_that_fits_is_loaded_whole():
    with desk(ROOM + 20) as d:
        model = d.model(8)
        d.manager.load([model])
        assert d.card.used_bytes == model.model_size() == 8 * MIB
        (entry,) = d.manager.models
        assert entry.model is model
        assert (entry.model_memory(), entry.model_loaded_memory()) == (8 * MIB, 8 * MIB)
        assert entry.model_offloaded_memory() == 0
        assert entry.model_memory_required(META) == 0
        assert entry.model_memory_required(CPU) == 8 * MIB


@pytest.mark.parametrize(
    ("card_mib", "arguments", "kept_mib"),
    [
        (ROOM + 8, {}, 8),
        (ROOM + 7.5, {}, 6),  # and one for the layer that comes and goes
        (ROOM + 4, {}, 3),
        (ROOM + 1, {}, 0),
        (ROOM - 1000, {}, 0),
        (ROOM + 1000, {"memory_required": 2000 * MIB}, 0),
        (2000 + 400 + 4, {"memory_required": 2000 * MIB}, 3),
        (2000 + 400 + 8, {"memory_required": 2000 * MIB}, 8),
        (ROOM + 4, {"memory_required": 2000 * MIB, "minimum_memory_required": 0}, 3),
        (ROOM + 4, {"force_full_load": True}, 8),
    ],
)
def test_how_much_is_loaded_follows_what_has_to_stay_free(card_mib, arguments, kept_mib):
    with desk(card_mib) as d:
        model = d.model(8)
        d.manager.load([model], **arguments)
        assert d.card.used_bytes == model.loaded_size() == kept_mib * MIB
        assert model.model(torch.zeros(1, 512, device=META)).device == META


def test_other_platforms_give_weights_two_fifths_of_what_is_free():
    with desk(2000, kind="xpu") as d:
        model = d.model(30, 40)
        d.manager.load([model], memory_required=1500 * MIB)
        budget_mib = min(int(2000 * 0.4), 2000 - ROOM)
        assert model.loaded_size() == (budget_mib // 40 - 1) * 40 * MIB


@pytest.mark.parametrize(
    ("options", "kept_mib"),
    [
        (Options(novram=True), 0),
        (Options(lowvram=True), 3),
        (Options(normalvram=True), 3),
        (Options(highvram=True), 8),
        (Options(reserve_vram=0), 8),
    ],
)
def test_options_say_how_much_is_loaded(options, kept_mib):
    with desk(ROOM + 4, options) as d:
        model = d.model(8)
        d.manager.load([model])
        assert model.loaded_size() == kept_mib * MIB


def test_a_model_of_the_cpu_is_loaded_whole_and_frees_nothing():
    with desk(ROOM + 8) as d:
        first = d.model(8)
        d.manager.load([first])
        second = Patcher(made(4), CPU)
        d.manager.load([second])
        assert second.loaded_size() == 4 * MIB
        assert first.loaded_size() == 8 * MIB


def test_a_model_loaded_again_goes_to_the_front_and_stays_where_it_is():
    with desk(ROOM + 40) as d:
        models = [d.model(n) for n in (1, 2, 3)]
        for model in models:
            d.manager.load([model])
        assert d.names() == [3, 2, 1]
        entries = set(map(id, d.manager.models))
        d.manager.load([models[0]])
        assert d.names() == [1, 3, 2]
        assert set(map(id, d.manager.models)) == entries


def test_more_of_a_model_is_loaded_when_there_is_room():
    with desk(ROOM + 8) as d:
        first, second = d.model(6), d.model(8)
        d.manager.load([first])
        d.manager.load([second])
        assert second.loaded_size() == 8 * MIB
        d.manager.load([first])
        assert first.loaded_size() == 6 * MIB


def test_less_of_a_model_stays_when_computing_needs_more():
    with desk(ROOM + 8) as d:
        model = d.model(8)
        d.manager.load([model])
        d.manager.load([model], memory_required=COMPUTING - RESERVE + 4 * MIB)
        assert model.loaded_size() == on_card(model.model) == 3 * MIB
        d.manager.load([model])
        assert model.loaded_size() == 8 * MIB


def test_models_are_loaded_once_each_in_their_order_with_what_belongs_to_them():
    with desk(ROOM + 40) as d:
        first, second, control = d.model(1), d.model(2), d.model(3)
        first.attachments["control"] = control
        d.manager.load([first, second, first])
        assert d.names() == [2, 3, 1]


def test_a_plain_module_is_loaded_and_held_weakly():
    with desk(ROOM + 40) as d:
        module = made(2)
        module.weight_of_host = 1
        d.card.add(module)
        with torch.device("cpu"):
            d.manager.load([module])
        patcher = d.manager.models[0].model
        assert patcher.load_device == META
        d.manager.load([module])
        assert d.manager.models[0].model is patcher
        del module, patcher
        gc.collect()
        assert d.manager.models == []


def test_what_is_no_model_is_refused():
    name: Any = "flux"
    with desk(ROOM) as d, pytest.raises(BadInput) as caught:
        d.manager.load([name])
    assert str(caught.value) == (
        "cannot load a str\n  expected: a torch.nn.Module, or a Patcher of one"
    )


def test_a_clone_takes_the_place_of_its_twin():
    with desk(ROOM + 40) as d:
        model = d.model(2)
        before = model.model[0].weight.clone()
        d.manager.load([model])
        clone = model.clone()
        clone.add_patches({"0.weight": torch.ones(512, 512)})
        d.manager.load([clone])
        assert [entry.model for entry in d.manager.models] == [clone]
        assert d.card.used_bytes == 2 * MIB
        del clone
        gc.collect()
        (entry,) = d.manager.models
        assert entry.model is model  # the clone is gone, its parent answers
        assert not entry.is_dead()
        d.manager.load([model])
        d.manager.free(1e30, META)
        assert torch.equal(model.model[0].weight, before)


# ---- making room


def test_room_is_made_for_the_weights_and_a_tenth_and_computing():
    for spare_bytes, stays in ((0, True), (-2, False)):
        with desk(ROOM + 10 + 11 + spare_bytes / MIB + 1 / MIB) as d:
            first, second = d.model(10), d.model(10)
            d.manager.load([first])
            d.manager.load([second])
            assert (first.loaded_size() == 10 * MIB) == stays
            assert second.loaded_size() == 10 * MIB


def test_a_part_is_unloaded_where_that_is_enough():
    with desk(ROOM + 20) as d:
        first, second = d.model(10), d.model(10)
        d.manager.load([first])
        d.manager.load([second])  # needs 11 MiB: 1 missing, and 1 for the layer that comes and goes
        assert second.loaded_size() == 10 * MIB
        assert first.loaded_size() == 8 * MIB
        assert d.names() == [10, 10]
        assert d.card.emptied == 0


def test_a_model_is_unloaded_whole_where_a_part_is_not_enough():
    with desk(ROOM + 20) as d:
        first, second = d.model(10), d.model(18)
        d.manager.load([first])
        d.manager.load([second])
        assert first.loaded_size() == 0
        assert d.names() == [18]
        assert d.card.emptied == 1
        assert not first.model[0]._forward_hooks


def test_free_memory_returns_what_it_unloaded_and_keeps_what_it_is_told_to():
    with desk(ROOM + 40) as d:
        models = [d.model(n) for n in (4, 5, 6)]
        d.manager.load(models)
        keep = [entry for entry in d.manager.models if entry.model is models[1]]
        gone = d.manager.free(1e30, META, keep)
        assert [entry.model for entry in gone] == [models[0], models[2]]  # smallest first
        assert [entry.model for entry in d.manager.models] == [models[1]]
        assert d.card.used_bytes == 5 * MIB


def test_the_model_that_is_partly_away_leaves_first_then_the_one_few_hold():
    with desk(ROOM + 40) as d:
        held, partly, free = d.model(4), d.model(6), d.model(5)
        d.manager.load([held, partly, free])
        partly.partially_unload(CPU, MIB)
        more_references = [held] * 5
        gone = d.manager.free(1e30, META)
        assert [entry.model_memory() // MIB for entry in gone] == [6, 5, 4]
        del more_references


def test_models_of_other_devices_are_left_alone():
    with desk(ROOM + 40) as d:
        there, host = d.model(4), Patcher(made(2), CPU)
        d.manager.load([there, host])
        d.manager.free(1e30, META)
        assert [entry.model for entry in d.manager.models] == [host]


def test_nothing_is_unloaded_while_enough_is_free():
    with desk(ROOM + 40) as d:
        d.manager.load([model := d.model(4)])
        assert d.manager.free(d.card.free(META) - 1, META) == []
        assert model.loaded_size() == 4 * MIB


def test_without_smart_memory_everything_leaves():
    with desk(ROOM + 400, Options(disable_smart_memory=True)) as d:
        first, second = d.model(4), d.model(5)
        d.manager.load([first])
        d.manager.load([second])
        assert d.names() == [5]
        assert first.loaded_size() == 0


@pytest.mark.parametrize(
    ("options", "cached_mib", "emptied"),
    [
        (Options(), 24, 0),
        (Options(), 26, 1),
        (Options(highvram=True), 26, 0),
    ],
)
def test_the_cache_is_given_back_when_it_is_a_quarter_of_what_is_free(options, cached_mib, emptied):
    with desk(100, options) as d:
        d.card.cached_bytes = cached_mib * MIB
        d.manager.free(0, META)
        assert d.card.emptied == emptied


def test_the_cache_is_given_back_when_something_was_unloaded():
    with desk(ROOM + 40, Options(highvram=True)) as d:
        d.manager.load([_ := d.model(4)])
        assert d.card.emptied == 0
        d.manager.free(1e30, META)
        assert d.card.emptied == 1


def test_use_more_memory_loads_more_of_models_in_their_order():
    with desk(ROOM + 4) as d:
        first, second = d.model(8), d.model(8)
        d.manager.load([first, second])
        entries = d.manager.models
        assert [entry.model for entry in entries] == [second, first]
        assert [entry.model_loaded_memory() // MIB for entry in entries] == [0, 3]
        assert loaded.offloaded_memory(entries, META) == 13 * MIB
        assert loaded.offloaded_memory(entries, CPU) == 0
        loaded.use_more_memory(5 * MIB, entries, CPU)
        assert [entry.model_loaded_memory() // MIB for entry in entries] == [0, 3]
        loaded.use_more_memory(6 * MIB, entries, META)
        assert [entry.model_loaded_memory() // MIB for entry in entries] == [5, 3]
        loaded.use_more_memory(20 * MIB, entries, META)
        assert [entry.model_loaded_memory() // MIB for entry in entries] == [8, 8]


def test_currently_used_are_those_of_the_last_load_that_made_room():
    with desk(ROOM + 40) as d:
        first, second = d.model(4), d.model(5)
        d.manager.load([first])
        d.manager.load([second])
        assert [entry.currently_used for entry in d.manager.models] == [True, False]


# ---- interrupted


def stop_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt at that look; every later look passes."""
    looks = itertools.count(1)

    def look() -> None:
        if next(looks) == number:
            raise InterruptProcessingException

    monkeypatch.setattr(patchers, "throw_exception_if_processing_interrupted", look)


def test_an_interrupt_at_any_layer_leaves_a_list_that_is_true(monkeypatch):
    for number in range(1, 8):
        with desk(ROOM + 40) as d:
            first, second = d.model(4), d.model(3)
            stop_at(number, monkeypatch)
            with pytest.raises(InterruptProcessingException):
                d.manager.load([first, second])
            listed = {id(entry.model): entry.model_loaded_memory() for entry in d.manager.models}
            assert all(listed.values())
            assert sum(listed.values()) == d.card.used_bytes == (number - 1) * MIB
            for model in (first, second):
                assert listed.get(id(model), 0) == on_card(model.model)
                if id(model) not in listed:
                    assert not model.model[0]._forward_hooks
            d.manager.load([first, second])
            assert d.card.used_bytes == 7 * MIB
            d.manager.free(1e30, META)
            assert d.card.used_bytes == 0
            assert d.manager.models == []


def test_an_interrupted_clone_is_listed_for_what_its_twin_had_loaded(monkeypatch):
    with desk(ROOM + 4) as d:
        model = d.model(8)
        d.manager.load([model])
        clone = model.clone()
        monkeypatch.setattr(Manager, "_make_room", lambda *_: interrupt_now())

        def interrupt_now() -> None:
            raise InterruptProcessingException

        with pytest.raises(InterruptProcessingException):
            d.manager.load([clone])
        assert [entry.model for entry in d.manager.models] == [clone]
        assert d.manager.models[0].model_loaded_memory() == d.card.used_bytes == 3 * MIB


def test_an_error_while_loading_leaves_what_was_there():
    with desk(ROOM + 40) as d:
        good = d.model(2)
        d.manager.load([good])

        class Broken(nn.Linear):
            def get_dtype(self) -> torch.dtype:
                raise RuntimeError("broken")

        broken = Patcher(Broken(2, 2), META, keep_host=True)
        with pytest.raises(RuntimeError, match="broken"):
            d.manager.load([broken])
        assert [entry.model for entry in d.manager.models] == [good]


# ---- what is gone


def test_a_model_that_is_gone_leaves_the_list_by_itself():
    with desk(ROOM + 40) as d:
        d.manager.load([model := d.model(4)])
        assert len(d.manager.models) == 1
        del model
        assert d.manager.models == []


def test_a_model_that_ends_in_a_thread_during_a_load_is_cleaned_up_later():
    with desk(ROOM + 40) as d:
        box = [d.model(4)]
        d.manager.load(box)
        with d.manager._lock:
            thread = threading.Thread(target=box.clear)
            thread.start()
            thread.join()  # does not wait for the lock
            assert len(d.manager.models) == 1
        d.manager.cleanup_gc()
        assert d.manager.models == []


def test_a_module_whose_patcher_is_gone_is_a_leak_with_a_name(caplog):
    with desk(ROOM + 40) as d:
        keepers = {"engine": d.model(4)}
        module = keepers["engine"].model
        hidden = {"forgotten": module}
        d.manager.load(keepers.values())
        keepers.clear()
        entry = d.manager.models[0]
        assert entry.is_dead()
        with caplog.at_level(logging.WARNING):
            d.manager.cleanup_gc()
            d.manager.cleanup_gc()  # said once
        (record,) = caplog.records
        text = record.getMessage()
        assert text.startswith(
            "memory leak: Sequential is on meta, and cannot be unloaded, as its patcher is gone; "
            "it is kept by local 'module' (Sequential) of "
        )
        assert "'forgotten'" in text
        assert d.card.emptied == 1
        assert d.manager.free(1e30, META) == []  # left where it is
        assert entry.is_dead()
        hidden.clear()
        del module
        gc.collect()
        assert d.manager.models == []


def test_a_leak_that_is_only_a_cycle_is_collected_without_a_word(caplog):
    with desk(ROOM + 40) as d:
        model = d.model(4)
        model.model.itself = [model.model]
        d.manager.load([model])
        del model
        with caplog.at_level(logging.WARNING):
            d.manager.cleanup_gc()
        assert caplog.records == []
        assert d.manager.models == []


def test_entries_are_equal_if_their_patcher_is_the_same_living_one():
    first, second = Patcher(nn.Linear(1, 1), CPU), Patcher(nn.Linear(1, 1), CPU)
    one, same, other = LoadedModel(first), LoadedModel(first), LoadedModel(second)
    assert one == same
    assert one != other
    assert one != "x"
    del first, second
    assert one != other  # both are gone, and are not the same
    assert one == one


def test_patches_in_each_call_are_a_reason_to_reload_if_forced():
    model = Patcher(made(4), CPU)
    model.add_patches({f"{i}.weight": torch.ones(512, 512) for i in range(4)})
    entry = LoadedModel(model)
    entry.model_load(MIB)
    assert entry.should_reload_model(force_patch_weights=True)
    assert not entry.should_reload_model()
    entry.model_load(MIB, force_patch_weights=True)
    assert not entry.should_reload_model(force_patch_weights=True)
    assert entry.model_unload()
    assert not entry.is_dead()


# ---- the process's own list


def test_the_functions_of_the_specification_work_on_one_list():
    module = made(2)
    with desk(ROOM + 40):
        host = Patcher(module, CPU)
        loaded.load_model_gpu(host)
        assert loaded.loaded_models() == [host]
        assert loaded.current_loaded_models[0].model_loaded_memory() == 2 * MIB
        assert loaded.free_memory(0, META) == []
        assert loaded.loaded_models(only_currently_used=True) == [host]
        loaded.cleanup_models_gc()
        loaded.cleanup_models()
        loaded.unload_all_models()
        assert loaded.loaded_models() == []
        assert host.loaded_size() == 0


def test_threads_load_and_unload_at_once():
    with desk(ROOM + 30) as d:
        models = [d.model(n) for n in (6, 7, 8, 9)]
        wrong: list[Any] = []

        def work(turn: int) -> None:
            try:
                for step in range(12):
                    d.manager.load([models[(turn + step) % 4]])
                    if step % 3 == turn % 3:
                        d.manager.free(20 * MIB, META)
            except Exception as exc:  # noqa: BLE001  looked at below
                wrong.append(exc)

        threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        listed = {id(entry.model): entry.model_loaded_memory() for entry in d.manager.models}
        assert len(listed) == len(d.manager.models)
        assert sum(listed.values()) == d.card.used_bytes <= 30 * MIB
        d.manager.free(1e30, META)
        assert d.card.used_bytes == 0


def _rss() -> int:
    gc.collect()
    return psutil.Process(os.getpid()).memory_info().rss


@pytest.mark.slow
def test_a_hundred_cycles_of_several_models_leave_nothing_behind():
    with desk(ROOM + 20) as d:
        models = [d.model(n, 2) for n in (4, 6, 8)]
        for model in models:
            model.add_patches({"0.weight": torch.ones(1024, 512)})
        before = [[p.clone() for p in model.model.parameters()] for model in models]

        def cycle() -> None:
            for model in models:
                d.manager.load([model])
            d.manager.free(1e30, META)

        for _ in range(5):  # until the allocator has its arenas
            cycle()
        start_rss = _rss()
        for _ in range(100):
            cycle()
            assert d.card.used_bytes == 0
            assert d.manager.models == []
        assert _rss() - start_rss <= start_rss // 100
        for model, weights in zip(models, before, strict=True):
            own = zip(model.model.parameters(), weights, strict=True)
            assert all(torch.equal(a, b) for a, b in own)


# ---- a real card


def _used() -> int:
    """What the device counts as taken, by anybody."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="torch sees no CUDA device here")
@torch.no_grad()
def test_on_a_real_card_cycles_bring_memory_and_bits_back():
    torch.manual_seed(0)
    models = [nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(n))) for n in (20, 30, 40)]
    patchers_ = [Patcher(model, CUDA) for model in models]
    patchers_[1].add_patches({"3.weight": torch.randn(1024, 1024)})
    bits = [[p.clone() for p in model.parameters()] for model in models]
    x = torch.randn(4, 1024, device=CUDA)
    loaded.load_models_gpu(patchers_)
    whole = [model(x) for model in models]
    loaded.unload_all_models()
    torch.cuda.synchronize()
    start, start_rss, start_used = torch.cuda.memory_allocated(), 0, 0
    room = current.get_free_memory(CUDA) - current.extra_reserved_memory()
    for cycle in range(110):
        if cycle == 10:  # the driver and the allocator have what they keep
            start_rss, start_used = _rss(), _used()
        needed = room - (cycle % 5) * 30 * MIB if cycle % 2 else 0
        for model, patcher, expected in zip(models, patchers_, whole, strict=True):
            loaded.load_models_gpu([patcher], memory_required=needed)
            assert torch.equal(model(x), expected)
        loaded.unload_all_models()
        assert torch.cuda.memory_allocated() == start
    assert _rss() - start_rss <= start_rss // 100
    assert _used() - start_used <= start_used // 100
    for model, weights in zip(models, bits, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))
    assert loaded.current_loaded_models == []


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="torch sees no CUDA device here")
@torch.no_grad()
def test_on_a_real_card_a_plain_module_runs_in_part():
    module = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(16)))
    x = torch.randn(4, 1024, device=CUDA)
    loaded.load_models_gpu([module])
    whole = module(x)
    assert {p.device for p in module.parameters()} == {CUDA}
    free = current.get_free_memory(CUDA)
    room = free - current.extra_reserved_memory() - 20 * MIB + 64 * MIB
    loaded.load_models_gpu([module], memory_required=room)
    assert {p.device for p in module.parameters()} == {CUDA, CPU}
    assert torch.equal(module(x), whole)
    loaded.unload_all_models()
    assert {p.device for p in module.parameters()} == {CPU}

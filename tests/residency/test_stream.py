"""Streaming under whatever a model does: right to the bit, never a byte over the budget."""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.base.errors import OutOfMemory
from holdfast.base.units import parse_bytes
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.interrupt import (
    InterruptProcessingException,
    interrupt_current_processing,
)
from holdfast.residency.managed.manage import manage, unmanage
from holdfast.residency.managed.managed import Managed
from tests.residency import nets
from tests.residency.nets import PARTS, STEADY, Part, Picture, same

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STEPS = 5
TOO_LONG_S = 600  # nothing here waits for anything: what takes that long hangs


@pytest.fixture(autouse=True)
def no_hanging() -> Iterator[None]:
    faulthandler.dump_traceback_later(TOO_LONG_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


models = st.tuples(
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=4),
    st.sampled_from((16, 96)),
    st.sampled_from(DTYPES),
    st.booleans(),
)
steady_models = st.tuples(
    st.lists(st.sampled_from(STEADY), min_size=1, max_size=4),
    st.sampled_from((16, 96)),
    st.sampled_from(DTYPES),
    st.booleans(),
)
devices = st.tuples(st.sampled_from((0.0, 0.5, 1.0)), st.integers(0, 5))
packing = st.sampled_from((True, False, "auto"))


def device(eager: float = 0.5, seed: int = 0) -> Simulated:
    """Slow enough that weights are worth keeping, small enough to be quick."""
    return Simulated(eager=eager, seed=seed, link_gb_s=0.5, compute_gflops=50)


def made(model: tuple[Sequence[type[Part]], int, torch.dtype, bool]) -> tuple[Any, Any]:
    parts, wide, dtype, direct = model
    return nets.net(parts, wide, dtype, direct=direct), nets.inputs(wide, dtype)


@contextlib.contextmanager
def under(
    module: nn.Module, budget: int, sim: Simulated, pack: bool | str = "auto"
) -> Iterator[Managed]:
    """Managed in the block; given back as it was afterwards, with nothing left on the device."""
    managed = manage(module, budget=budget, device=sim, pack=pack)
    try:
        yield managed
    finally:
        unmanage(module)
    del managed
    gc.collect()
    assert sim.held_bytes == 0


def tight(module: nn.Module, x: torch.Tensor, share: float) -> int:
    """A budget that a model of these parts may just run with, and a share of its weights more."""
    sizes = [t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers())]
    return int(3 * max(sizes) + 14 * x.numel() * x.element_size() + share * sum(sizes)) + 2048


def until_it_fits(budget: int, check: Callable[[int], None]) -> None:
    """Run a check, with the larger budget that its error asks for if it does not fit."""
    for _ in range(20):
        try:
            check(budget)
        except OutOfMemory as exc:
            budget = larger_budget(exc, budget)
        else:
            return
    raise AssertionError("the budgets that errors ask for are never enough")


def larger_budget(exc: OutOfMemory, budget: int) -> int:
    """What the error asks for."""
    if exc.expected is None or "a budget of " not in exc.expected:
        return budget * 5 // 4
    named = parse_bytes(exc.expected.partition("a budget of ")[2].removesuffix(" or more"))
    assert named > budget
    return named


@given(models, devices, st.floats(0, 0.8), packing)
@settings(max_examples=8)
def test_results_are_those_of_the_plain_module_inside_of_the_budget(
    model: Any, how: tuple[float, int], share: float, pack: bool | str
) -> None:
    check_results(model, how, share, pack)


@pytest.mark.slow
@given(models, devices, st.floats(0, 0.8), packing)
@settings(max_examples=150)
def test_results_are_right_for_many_more_models(
    model: Any, how: tuple[float, int], share: float, pack: bool | str
) -> None:
    check_results(model, how, share, pack)


@pytest.mark.parametrize("eager", [0.0, 0.3, 0.9])
def test_what_stays_packed_is_decoded_after_it_has_arrived(eager: float) -> None:
    """A lane of decodes of its own once ran ahead of the copies that fill the keep-set."""
    torch.manual_seed(0)
    layers = [nn.Linear(256, 256) for _ in range(8)]
    module = nn.Sequential(*layers).to(torch.bfloat16).requires_grad_(False)
    x = torch.randn(4, 256).bfloat16()
    expected = module(x)
    weights = sum(p.numel() * 2 for p in module.parameters())
    for seed in range(6):
        sim = Simulated(eager=eager, seed=seed, link_gb_s=0.01, compute_gflops=50)
        with under(module, weights * 3 // 4, sim, pack=True) as managed:
            results = [module(x) for _ in range(3)]
            assert managed.plan is not None
            assert managed.plan.kept_packed
        assert all(torch.equal(result, expected) for result in results)


def check_results(model: Any, how: tuple[float, int], share: float, pack: bool | str) -> None:
    def check(budget: int) -> None:
        module, x = made(model)
        plain, before, sim = copy.deepcopy(module), Picture(module), device(*how)
        with torch.no_grad(), under(module, budget, sim, pack):
            for step in range(STEPS):
                assert same(module(x, step), plain(x, step)), step
                assert sim.peak_bytes <= budget
        before.check(like=plain)

    until_it_fits(tight(*made(model), share), check)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_kind_of_part_streams(part: type[Part], dtype: torch.dtype) -> None:
    check_results(([part, nets.Plain, part], 96, dtype, False), (0.0, 0), 0.1, True)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_kind_of_part_can_be_the_whole_model(part: type[Part]) -> None:
    module = nets.net([part], 96).parts[0]
    plain, before, sim, x = copy.deepcopy(module), Picture(module), device(1.0), torch.ones(8, 96)
    with torch.no_grad(), under(module, 1 << 20, sim):
        for step in range(3):
            assert same(module(x, step), plain(x, step)), step
    before.check(like=plain)


class Failure(Exception):
    """Raised by tests."""


def fail() -> None:
    raise Failure("in a layer")


def ctrl_c() -> None:
    raise KeyboardInterrupt


def run_with(module: nn.Module, x: torch.Tensor, step: int, at: int, action: Any) -> Any:
    """One pass in which something happens before its `at`-th layer; None if it is broken off."""
    hooks = nets.wait_in(module, at, action)
    try:
        return module(x, step)
    except (Failure, KeyboardInterrupt, InterruptProcessingException):
        return None
    finally:
        interrupt_current_processing(False)
        for hook in hooks:
            hook.remove()


breaks = st.lists(st.tuples(st.integers(0, 12), st.sampled_from((fail, ctrl_c))), max_size=4)


def check_broken_off(model: Any, how: tuple[float, int], share: float, broken: Any) -> None:
    def check(budget: int) -> None:
        module, x = made(model)
        plain, before, sim = copy.deepcopy(module), Picture(module), device(*how)
        with torch.no_grad(), under(module, budget, sim):
            for step, (at, action) in enumerate(broken):
                got = run_with(module, x, step, at, action)
                want = run_with(plain, x, step, at, action)
                assert got is want is None or same(got, want)
                assert same(module(x, step), plain(x, step)), step
                assert sim.peak_bytes <= budget
        before.check(like=plain)

    until_it_fits(tight(*made(model), share), check)


@given(steady_models, devices, st.floats(0, 0.5), breaks)
@settings(max_examples=8)
def test_a_pass_that_is_broken_off_leaves_the_next_ones_right(
    model: Any, how: tuple[float, int], share: float, broken: Any
) -> None:
    check_broken_off(model, how, share, broken)


@pytest.mark.slow
@given(models, devices, st.floats(1.5, 3), breaks)
@settings(max_examples=100)
def test_what_a_broken_pass_changed_is_what_the_plain_module_changes(
    model: Any, how: tuple[float, int], share: float, broken: Any
) -> None:
    check_broken_off(model, how, share, broken)


@given(steady_models, devices, st.floats(0, 0.5), st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=8)
def test_an_interrupt_stops_at_the_next_layer_and_the_next_pass_is_right(
    model: Any, how: tuple[float, int], share: float, places: list[int]
) -> None:
    def check(budget: int) -> None:
        module, x = made(model)
        plain, before, sim = copy.deepcopy(module), Picture(module), device(*how)
        with torch.no_grad(), under(module, budget, sim):
            for step, at in enumerate(places):
                run_with(module, x, step, at, interrupt_current_processing)
                assert same(module(x, step), plain(x, step)), step
            assert same(module(x, 7), plain(x, 7))
            assert sim.peak_bytes <= budget
        before.check(like=plain)

    until_it_fits(tight(*made(model), share), check)


def refuse_next(sim: Simulated) -> None:
    """Have the device refuse the next memory that is asked for what is computed."""
    take = sim.count_computed

    def computed(nbytes: int) -> None:
        if nbytes > 0:
            sim.count_computed = take
            raise torch.OutOfMemoryError("made up by a test")
        take(nbytes)

    sim.count_computed = computed


@given(models, devices, st.floats(1, 2), st.lists(st.integers(0, 9), max_size=2))
@settings(max_examples=8)
def test_a_device_that_is_full_in_the_middle_repeats_one_operation_and_goes_on(
    model: Any, how: tuple[float, int], share: float, places: list[int]
) -> None:
    def check(budget: int) -> None:
        module, x = made(model)
        plain, before, sim = copy.deepcopy(module), Picture(module), device(*how)
        with torch.no_grad(), under(module, budget, sim) as managed:
            for step in range(2):
                assert same(module(x, step), plain(x, step)), step
            for step, at in enumerate(places, 2):
                want = plain(x, step)
                got = run_with(module, x, step, at, functools.partial(refuse_next, sim))
                assert same(got, want), step
            assert sim.peak_bytes <= budget
            assert managed.passes == 2 + len(places)
        before.check(like=plain)

    until_it_fits(2 * tight(*made(model), share), check)


@given(models, devices, st.lists(st.tuples(st.floats(0, 2), st.integers(-5, 9)), max_size=4))
@settings(max_examples=8)
def test_the_budget_can_change_between_passes_and_inside_of_them(
    model: Any, how: tuple[float, int], changes: list[tuple[float, int]]
) -> None:
    def check(least: int) -> None:
        module, x = made(model)
        weights = sum(t.numel() * t.element_size() for t in module.parameters())
        plain, before, sim = copy.deepcopy(module), Picture(module), device(*how)
        budget = least
        with torch.no_grad(), under(module, budget, sim) as managed:
            for step, (share, at) in enumerate(changes):
                older, budget = budget, least + int(share * weights)
                change = functools.partial(managed.set_budget, budget)
                if at < 0:
                    change()
                sim.peak_bytes = 0
                assert same(run_with(module, x, step, at, change), plain(x, step)), step
                assert sim.peak_bytes <= max(older, budget)
                change()
                assert managed.held_bytes <= budget
                sim.peak_bytes = 0
                assert same(module(x, step), plain(x, step)), step
                assert sim.peak_bytes <= budget
        before.check(like=plain)

    until_it_fits(2 * tight(*made(model), 0.2), check)

"""A managed module from the outside: faults, Ctrl-C anywhere, leaks, and the exact way back."""

from __future__ import annotations

import contextlib
import copy
import gc
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from holdfast import residency
from holdfast.base.errors import BadInput, InUse, Misuse, NotFound, OutOfMemory, Unsupported
from holdfast.base.units import parse_bytes
from holdfast.residency.carriers.simulated import Simulated
from holdfast.residency.interrupt import InterruptProcessingException, interrupt_current_processing
from holdfast.residency.managed.group import Group
from holdfast.residency.managed.manage import manage, unmanage
from holdfast.residency.managed.module_hooks import managed_of
from tests.interrupting import CtrlC, lines_of
from tests.needs import ALL
from tests.residency import models, nets
from tests.residency.nets import Picture, same

FOLDER = Path(residency.__file__).parent
# The files that stream, but for pure functions; carriers stand for a device: it takes no signals.
STREAMING = {
    str(file)
    for room in ("managed", "stream")
    for file in (FOLDER / room).glob("*.py")
    if file.stem != "ring"
}


def small(dtype: torch.dtype = torch.float32) -> tuple[Any, torch.Tensor]:
    parts = [nets.Nested, nets.Tied, nets.Attends, nets.Counts, nets.Plain, nets.Empty]
    return nets.net(parts, 32, dtype, direct=True), nets.inputs(32, dtype)


def device(**how: Any) -> Simulated:
    return Simulated(link_gb_s=0.5, compute_gflops=50, **how)


BUDGET = 60_000


# ---- faults


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        manage("net", device=device())  # pyright: ignore[reportArgumentType]  that is the point
    assert str(raised.value) == "cannot manage a str\n  expected: a torch.nn.Module"


def test_weights_without_values_are_refused_and_the_device_is_left_alone() -> None:
    sim = device()
    with torch.device("meta"):
        module = nets.net([nets.Plain])
    with pytest.raises(BadInput) as raised:
        manage(module, budget=1000, device=sim)
    assert str(raised.value) == (
        "cannot manage Net: its 'parts.0.layer.weight' has no values\n"
        "  expected: weights that are loaded\n"
        "  try: residency.load(module, files) first"
    )
    assert sim.limit_bytes is None
    assert managed_of(module) is None


def test_a_module_is_managed_once() -> None:
    module, _ = small()
    manage(module, device=device())
    with pytest.raises(Misuse) as raised:
        manage(module, device=device())
    assert str(raised.value) == (
        "Net is managed already\n"
        "  expected: a module that is not managed\n"
        "  try: managed.set_budget(…) to change its budget, or residency.unmanage(module) first"
    )
    unmanage(module)
    manage(module, device=device())
    unmanage(module)


@pytest.mark.parametrize("inner_first", [True, False])
def test_parts_of_a_managed_module_are_managed_already(inner_first: bool) -> None:
    module, _ = small()
    inner = module.parts[0].inner
    first, second = (inner, module) if inner_first else (module, inner)
    manage(first, device=device())
    with pytest.raises(Misuse) as raised:
        manage(second, device=device())
    assert str(raised.value) == (
        f"parts of {type(second).__name__} are managed already, by {type(first).__name__}\n"
        "  expected: weights that are not managed\n"
        "  try: manage the outer module alone, or residency.unmanage the other first"
    )
    unmanage(first)


def test_nothing_happens_to_a_module_that_nobody_manages() -> None:
    module, _ = small()
    before = Picture(module)
    unmanage(module)
    before.check()


def test_gradients_cannot_be_recorded_through_weights_that_move() -> None:
    module, x = small()
    manage(module, device=device())
    with pytest.raises(Unsupported) as raised:
        module(x)
    assert str(raised.value) == (
        "cannot record gradients through Net: its weights move while it runs\n"
        "  expected: torch.no_grad() or torch.inference_mode()\n"
        "  try: with torch.no_grad(): …, or residency.unmanage(module) to train it"
    )
    module.requires_grad_(False)
    module(x)
    with pytest.raises(Unsupported):
        module(x.requires_grad_())
    unmanage(module)


def test_a_second_thread_is_refused_and_the_first_goes_on() -> None:
    module, x = small()
    plain = copy.deepcopy(module)
    manage(module, device=device())
    errors: list[BaseException] = []

    def other() -> None:
        try:
            with torch.no_grad():
                module(x)
        except InUse as exc:
            errors.append(exc)

    def start() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    hooks = nets.wait_in(module, 3, start)
    with torch.no_grad():
        assert same(module(x), plain(x))
    for hook in hooks:
        hook.remove()
    assert [str(error) for error in errors] == [
        "cannot run Net: another thread is running it\n"
        "  expected: one pass at a time, as its layers share the memory of one ring\n"
        "  try: run them one after the other, or as one with residency.together"
    ]
    with torch.no_grad():
        assert same(module(x, 1), plain(x, 1))
    unmanage(module)


def test_threads_may_run_it_one_after_the_other() -> None:
    module, x = small()
    plain = copy.deepcopy(module)
    manage(module, BUDGET, device())
    results: list[torch.Tensor] = []

    def run() -> None:
        with torch.no_grad():
            results.append(module(x))

    for _ in range(3):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    with torch.no_grad():
        assert all(same(result, plain(x)) for result in results)
    assert len(results) == 3
    unmanage(module)


def test_a_budget_that_is_too_small_says_which_one_works() -> None:
    module = nets.net([nets.Plain] * 4, 64)
    x = nets.inputs(64, torch.float32)
    managed = manage(module, 40_000, device())
    with torch.no_grad():
        module(x)
        managed.set_budget(12_000)
        with pytest.raises(OutOfMemory) as raised:
            module(x)
        named = str(raised.value).partition("a budget of ")[2].partition(" or more")[0]
        assert str(raised.value) == (
            "cannot run Net inside of 12.0 KB: the device is full with one layer at a time\n"
            "  expected: room for what is computed and the largest layer: "
            f"a budget of {named} or more\n"
            "  try: a larger budget, smaller pictures, or fewer of them at once"
        )
        managed.set_budget(parse_bytes(named) * 99 // 100)
        with pytest.raises(OutOfMemory):
            module(x)
        managed.set_budget(named)
        module(x)
    unmanage(module)


def test_a_budget_that_is_too_small_to_trace_is_an_error_and_no_endless_try() -> None:
    module, x = small()
    before = Picture(module)
    manage(module, 3000, device())
    with torch.no_grad(), pytest.raises(OutOfMemory) as raised:
        module(x)
    named = str(raised.value).partition("a budget of ")[2].partition(" or more")[0]
    assert str(raised.value) == (
        "cannot run Net inside of 3.0 KB: the device is full with one layer at a time\n"
        "  expected: room for what is computed and the largest layer: "
        f"a budget of {named} or more\n"
        "  try: a larger budget, smaller pictures, or fewer of them at once"
    )
    assert 3000 < parse_bytes(named) < 200_000
    unmanage(module)
    before.check()


def test_a_budget_holds_whatever_was_asked_to_be_kept() -> None:
    module = nets.net([nets.Plain] * 8, 64)
    x, sim = nets.inputs(64, torch.float32), device()
    plain = copy.deepcopy(module)
    manage(module, 60_000, sim, keep_bytes=100_000)
    with torch.no_grad():
        for _ in range(3):
            assert same(module(x), plain(x))
    assert sim.peak_bytes <= 60_000
    unmanage(module)


def test_packing_is_yes_no_or_automatic() -> None:
    module, _ = small()
    with pytest.raises(BadInput) as raised:
        manage(module, device=device(), pack="nonsense")
    assert str(raised.value) == "cannot use pack='nonsense'\n  expected: \"auto\", True or False"


def test_a_device_that_nobody_carries_to_is_named() -> None:
    module, _ = small()
    before = Picture(module)
    with pytest.raises(NotFound) as raised:
        manage(module, device="abacus:1")
    assert str(raised.value) == (
        "cannot move weights to device 'abacus:1'\n"
        "  expected: one of cuda, xpu, npu, mlu, mps, cpu, simulated"
    )
    before.check()


# ---- what runs may do


@pytest.mark.parametrize(
    ("built_in", "mode"),
    [
        (torch.no_grad, torch.no_grad),
        (torch.no_grad, torch.inference_mode),
        (torch.inference_mode, torch.inference_mode),
    ],
)
def test_models_run_in_both_modes_without_gradients(built_in: Any, mode: Any) -> None:
    with built_in():
        module, x = small(torch.bfloat16)
        plain = copy.deepcopy(module)
    sim = device(eager=0.0)
    manage(module, 90_000, sim)
    for step in range(4):
        with mode():
            assert same(module(x, step), plain(x, step)), step
    unmanage(module)


def test_a_packed_weight_that_a_layer_changes_is_not_sent_again_as_it_was() -> None:
    class Scales(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(128, 128) / 64)
            self.wanted = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.wanted:
                self.weight.mul_(1.5)
            return F.linear(x, self.weight)

    torch.manual_seed(0)
    module: Any = nn.Sequential(*(Scales() for _ in range(8))).to(torch.bfloat16)
    plain, sim = copy.deepcopy(module), device(eager=1.0)
    x = nets.inputs(128, torch.bfloat16)
    managed = manage(module, 220_000, sim, pack=True)
    with torch.no_grad():
        for step in range(8):
            for each in (module, plain):
                each[4].wanted = step == 3
                each[6].wanted = step in (5, 6)
            assert same(module(x), plain(x)), step
            assert step == 0 or managed.plan is None or managed.plan.visits
    before = Picture(plain)
    unmanage(module)
    for name, value in module.state_dict().items():
        assert same(value, before.values["." + name if "." not in name else name])


def test_a_layer_that_fails_before_it_runs_and_is_forgiven_leaves_the_others_right() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                with contextlib.suppress(ZeroDivisionError):
                    x = layer(x)
            return x

    module, x = Tries(), torch.ones(4, 64)
    plain = copy.deepcopy(module)

    def refuse(*_: Any) -> None:
        raise ZeroDivisionError

    for each in (module, plain):
        each.layers[2].register_forward_pre_hook(refuse)
        each.layers[3].register_forward_pre_hook(refuse, prepend=True)
    manage(module, 70_000, device(eager=0.0))
    with torch.no_grad():
        for _ in range(4):
            assert same(module(x), plain(x))
    unmanage(module)


def test_one_layer_is_a_model_too() -> None:
    module, x = nn.Linear(64, 64), torch.ones(2, 64)
    before, want = Picture(module), module(x).detach()
    sim = device()
    manage(module, 20_000, sim)
    with torch.no_grad():
        for _ in range(3):
            assert same(module(x), want)
    unmanage(module)
    assert sim.held_bytes == 0
    before.check()


def test_a_model_without_weights_is_a_model_too() -> None:
    module = nn.Sequential(nn.ReLU())
    manage(module, 20_000, device())
    for _ in range(3):
        assert same(module(torch.ones(2)), torch.ones(2))
    unmanage(module)


def test_views_of_several_types_in_one_storage_are_one_stretch() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.arange(64, dtype=torch.uint8)
            self.register_buffer("odd", whole[3:40])
            self.register_buffer("floats", whole[4:36].view(torch.float32))

        def forward(self) -> torch.Tensor:
            return self.get_buffer("floats").sum() + self.get_buffer("odd").sum()

    module: Any = Mixed()
    before, want = Picture(module), module()
    manage(module, 20_000, device())
    for _ in range(2):
        assert same(module(), want)
    unmanage(module)
    before.check()
    module.odd[1] = 200
    assert module.floats.view(torch.uint8)[0] == 200


def test_gradients_hooks_and_own_forwards_are_as_they_were() -> None:
    module, x = small()
    module(x).sum().backward()
    module.parts[0].register_forward_hook(lambda *_: None)
    module.register_forward_pre_hook(lambda *_: None)
    own_forward = module.forward
    module.forward = own_forward
    before = Picture(module)
    gradients = {n: p.grad for n, p in module.named_parameters()}
    manage(module, BUDGET, device())
    with torch.no_grad():
        module(x)
        module(x)
    unmanage(module)
    assert module.forward is own_forward
    assert all(p.grad is gradients[n] for n, p in module.named_parameters())
    before.check(like=module)


def test_modules_of_one_group_stay_inside_of_its_budget_together() -> None:
    sim = device(eager=0.0)
    group = Group(sim, 90_000)
    modules = [nets.net([nets.Plain] * 6, 64) for _ in range(3)]
    plains = copy.deepcopy(modules)
    x = nets.inputs(64, torch.float32)
    for module in modules:
        manage(module, group=group)
    with torch.no_grad():
        for turn in (0, 1, 2, 2, 1, 0, 0, 2):
            assert same(modules[turn](x), plains[turn](x))
            assert sim.peak_bytes <= 90_000
    for module in modules:
        unmanage(module)
    assert sim.held_bytes == 0
    assert sim.limit_bytes is None


def test_a_member_that_runs_inside_of_another_does_not_take_its_weights_away() -> None:
    sim = device(eager=0.0)
    group = Group(sim, 110_000)
    inner, outer = (nets.net([nets.Plain] * 4, 64) for _ in range(2))
    plain_inner, plain_outer = copy.deepcopy(inner), copy.deepcopy(outer)
    x = nets.inputs(64, torch.float32)
    for module in (inner, outer):
        manage(module, group=group)
    with torch.no_grad():
        for _ in range(3):
            found: list[torch.Tensor] = []
            hooks = nets.wait_in(outer, 2, lambda: found.append(inner(x)))  # noqa: B023
            assert same(outer(x), plain_outer(x))
            assert same(found[0], plain_inner(x))
            for hook in hooks:
                hook.remove()
    assert sim.peak_bytes <= 110_000
    unmanage(inner)
    unmanage(outer)


# ---- interrupts while weights are prepared


def test_an_interrupt_while_weights_are_prepared_leaves_the_module_whole() -> None:
    module, _ = small()
    before, sim = Picture(module), device()
    interrupt_current_processing()
    with pytest.raises(InterruptProcessingException):
        manage(module, 1000, sim)
    before.check()
    assert sim.limit_bytes is None


@pytest.mark.parametrize("slab_bytes", [1000, 10_000])
def test_progress_that_raises_in_the_middle_leaves_the_module_whole(
    slab_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.residency.stream.weights.SLAB_BYTES", slab_bytes)
    module, _ = small(torch.bfloat16)
    before, sim = Picture(module), device()

    def refuse(done: int, total: int) -> None:
        if done > total // 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        manage(module, 1000, sim, progress=refuse, pack=True)
    before.check()
    assert sim.limit_bytes is None


# ---- Ctrl-C at every line


class Life:
    """A managed module, brought to the moment in which something is broken off."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        parts = [nets.Nested, nets.Tied, nets.Positions, nets.Plain]
        self.module: Any = nets.net(parts, 96, dtype, direct=True)
        self.x = nets.inputs(96, dtype)
        self.before = Picture(self.module)
        self.plain = copy.deepcopy(self.module)
        self.sim = device(eager=0.5)

    def manage(self) -> None:
        manage(self.module, 240_000, self.sim, pack=True)

    def run(self, step: int = 0) -> torch.Tensor:
        with torch.no_grad():
            return self.module(self.x, step)

    def set_budget(self) -> None:
        self.module._holdfast_managed.set_budget(190_000)

    def check(self) -> None:
        """It still runs right, and comes back as it was."""
        with torch.no_grad():
            want = self.plain(self.x, 0)
        for _ in range(3):
            assert same(self.run(), want)
        unmanage(self.module)
        self.before.check()
        assert same(self.run(), want)
        gc.collect(0)
        assert self.sim.held_bytes == 0
        assert self.sim.limit_bytes is None


def life_at(phase: str) -> tuple[Life, Callable[[], object]]:
    """A module on its way, and what is to be broken off."""
    life = Life()
    if phase == "manage":
        return life, life.manage
    life.manage()
    if phase == "first pass":
        return life, life.run
    life.run()
    if phase == "second pass":
        return life, life.run
    life.run()
    if phase == "set_budget":
        return life, life.set_budget
    if phase == "unmanage":
        return life, lambda: unmanage(life.module)
    assert phase == "pass after set_budget"
    life.set_budget()
    return life, life.run


PHASES = ["manage", "first pass", "second pass", "pass after set_budget", "set_budget", "unmanage"]


def break_off_at(phase: str, at: int) -> None:
    life, work = life_at(phase)
    with CtrlC(STREAMING, at) as ctrl_c, contextlib.suppress(KeyboardInterrupt):
        work()
    sys.settrace(None)
    try:
        life.check()
    except BaseException as exc:
        raise AssertionError(f"after Ctrl-C in {ctrl_c.raised_in} ({phase})") from exc


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_at_some_lines_leaves_a_module_that_runs_and_comes_back(phase: str) -> None:
    lines = len(lines_of(life_at(phase)[1], STREAMING))
    assert lines > 20
    for at in range(0, lines, max(1, lines // 4)):
        break_off_at(phase, at)


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_at_any_line_leaves_a_module_that_runs_and_comes_back(phase: str) -> None:
    """Of a loop, the first round, or two: the others are at the same lines.

    `make test-all` breaks off at every line, `make test` at every second one.
    """
    for at in list(interesting(phase, 2 if ALL else 1))[:: 1 if ALL else 2]:
        break_off_at(phase, at)


def interesting(phase: str, times: int) -> Iterator[int]:
    """The first times that each line is come to."""
    seen: Counter[tuple[str, int]] = Counter()
    for number, line in enumerate(lines_of(life_at(phase)[1], STREAMING)):
        seen[line] += 1
        if seen[line] <= times:
            yield number


# ---- leaks


def cycle(module: nn.Module, x: torch.Tensor, sim: Simulated, budget: int) -> None:
    manage(module, budget, sim)
    with torch.no_grad():
        module(x)
        module(x)
    unmanage(module)


def test_a_module_that_is_dropped_after_it_was_managed_is_gone() -> None:
    module, x = small()
    sim = device()
    cycle(module, x, sim, BUDGET)
    gone = weakref.ref(module)
    weights = weakref.ref(module.direct)
    del module
    gc.collect()
    assert gone() is None
    assert weights() is None
    assert (sim.held_bytes, sim.computed_bytes) == (0, 0)


def test_a_module_that_is_dropped_while_it_is_managed_is_gone() -> None:
    module, x = small()
    sim = device()
    manage(module, BUDGET, sim)
    with torch.no_grad():
        module(x)
        module(x)
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
    assert (sim.held_bytes, sim.computed_bytes) == (0, 0)


@pytest.mark.slow
def test_a_hundred_cycles_leave_memory_where_it_was() -> None:
    module = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    x, sim = torch.ones(4, 256), device()
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    for _ in range(10):
        cycle(module, x, sim, 900_000)
    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    for _ in range(100):
        cycle(module, x, sim, 900_000)
    gc.collect()
    assert sim.held_bytes == 0
    assert process.memory_info().rss - before < 100 * weights // 100


def test_a_call_that_is_too_large_teaches_nothing_to_the_next() -> None:
    module, x = models.stack(), models.some_input()
    expected = module(x)
    sim = models.device()
    budget = models.weight_bytes(module) // 2
    managed = manage(module, budget, sim)
    for _ in range(5):  # the plan has its times
        assert torch.equal(module(x), expected)
    kept = managed.plan.kept_bytes if managed.plan is not None else 0
    large = x.repeat(budget // x.nbytes, 1, 1)
    with pytest.raises(OutOfMemory, match="cannot run Stack inside of"):
        module(large)
    assert torch.equal(module(x), expected)
    assert managed.plan is not None
    assert managed.plan.kept_bytes == kept
    unmanage(module)


def test_room_for_a_large_call_is_given_back_after_some_small_ones() -> None:
    module, x = models.stack(), models.some_input()
    sim = models.device()
    managed = manage(module, models.weight_bytes(module) // 2, sim)
    kept: list[int] = []
    for rows in (*(1,) * 6, 6, *(1,) * 12):
        module(x.repeat(rows, 1, 1))
        kept.append(managed.plan.kept_bytes if managed.plan is not None else 0)
    assert kept[6] <= kept[5]
    assert kept[7] < kept[5]
    assert kept[-1] == kept[5]
    unmanage(module)


class Scattered(Simulated):
    """A device whose free memory lies in gaps: a pass that fitted may find no room."""

    is_compact = False
    refuses = 0  # the next allocations

    def count_computed(self, nbytes: int) -> None:
        if nbytes > 0 and self.refuses:
            self.refuses -= 1
            raise torch.OutOfMemoryError("no gap is large enough")
        super().count_computed(nbytes)


def test_any_pass_may_find_no_room_between_gaps_and_gives_the_same_bits() -> None:
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))).requires_grad_(False)
    resident, x = copy.deepcopy(net), torch.randn(2, 64)
    carrier = Scattered(link_gb_s=0.5, compute_gflops=50)
    managed = manage(net, budget=BUDGET, device=carrier)
    with torch.no_grad():
        for passes in range(8):
            carrier.refuses = int(passes == 7)
            assert same(net(x), resident(x))
    assert carrier.refuses == 0
    assert managed.repeated_ops == 1

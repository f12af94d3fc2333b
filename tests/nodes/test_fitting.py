"""Will It Fit, without ComfyUI: choices and times on the simulated device, reports, errors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.base.errors import BadInput, Unsupported
from holdfast.nodes.host.fitting import Question, Room
from holdfast.nodes.residency.choices import Answer, answer
from holdfast.nodes.residency.fitting import HoldfastWillItFit, format_duration, format_gib, report
from holdfast.nodes.residency.streaming import Streaming
from holdfast.residency.carriers.simulated import Simulated

MIB = 1 << 20
WIDTH = 512
LAYERS = 16
WEIGHTS = LAYERS * (WIDTH * WIDTH + WIDTH) * 4


class Network(nn.Module):
    """A row of layers, called as ComfyUI calls its networks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor, transformer_options: Any = None) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Moody(Network):
    """Goes a way that depends on values."""

    def forward(self, x: torch.Tensor, transformer_options: Any = None) -> torch.Tensor:
        return super().forward(x) if x.sum().item() > 0 else x


def device() -> Simulated:
    return Simulated(link_gb_s=1.0, compute_gflops=100.0)


def asked(network: nn.Module | None = None, free_bytes: int = 1 << 30, **more: Any) -> Question:
    """A network of 16 MiB on the simulated device, as ComfyUI would see it."""

    def inputs(directions: int) -> dict[str, Any]:
        return {"x": torch.zeros(64 * directions, WIDTH), "transformer_options": {"sigmas": None}}

    network = network or Network()
    size = sum(p.numel() * p.element_size() for p in network.parameters())
    room = Room(free_bytes, reserve_bytes=0, least_bytes=0, share=0.0)
    needs = (256 << 10, 512 << 10)
    made = Question("Tiny", network, device(), (1, 4, 8, 8), size, room, needs, inputs)
    return dataclasses.replace(made, **more)


# ---- choices


def test_a_model_with_room_is_left_as_it_is() -> None:
    found = answer(asked(), steps=4)
    assert found.best is not None
    assert found.best.name == "all on the device"
    assert (found.stream, found.budget_gb) == (False, 0.0)
    assert found.best.step_ms is not None
    assert found.seconds == pytest.approx(found.best.step_ms * 4 / 1000)


def test_a_model_without_room_is_streamed_under_the_budget_that_is_named() -> None:
    room = Room(8 * MIB, reserve_bytes=0, least_bytes=2 * MIB, share=0.0)
    found = answer(asked(room=room))
    assert found.best is not None
    assert found.best.name == "Stream Model"
    assert found.best.peak_bytes <= 8 * MIB
    assert found.budget_gb * (1 << 30) == found.best.weights_bytes
    assert {choice.name for choice in found.choices} == {"Stream Model", "ComfyUI's lowvram"}
    lowvram = found.choices[-1]
    assert lowvram.least


@pytest.mark.parametrize("cfg", [1.0, 8.0])
def test_the_predicted_time_is_that_of_the_streamed_model(cfg: float) -> None:
    question = asked(free_bytes=6 * MIB)
    found = answer(question, cfg=cfg)
    best = found.best
    assert best is not None
    assert best.stream
    assert best.step_ms is not None
    calls = 2 // best.look.directions if found.guided else 1
    assert best.step_ms / calls == pytest.approx(streamed_ms(question, found), rel=0.05)


def streamed_ms(question: Question, found: Answer) -> float:
    """A pass of the real network in the steady state, by the clock of the device."""
    carrier = device()
    network = question.network
    streaming = Streaming.begin(
        network,
        network,
        version=0,
        device=carrier,
        granted_bytes=int(found.budget_gb * (1 << 30)),
        pack=False,
    )
    inputs = question.inputs(found.look.directions)
    try:
        with torch.no_grad():
            for _ in range(4):
                network(**inputs)
            before = carrier.now_ms
            for _ in range(3):
                network(**inputs)
            carrier.synchronize()
        return (carrier.now_ms - before) / 3
    finally:
        streaming.end()


def test_guidance_of_one_takes_half_the_time() -> None:
    both, one = answer(asked(), cfg=8.0), answer(asked(), cfg=1.0)
    assert not one.guided
    assert one.seconds == pytest.approx(both.seconds / 2, rel=0.2)


def test_one_direction_comes_after_the_other_where_comfyui_says_so() -> None:
    needs = (20 * MIB, 40 * MIB)
    enough = answer(asked(free_bytes=100 * MIB, needs_bytes=needs))
    less = answer(asked(free_bytes=70 * MIB, needs_bytes=needs))
    assert enough.look.directions == 2
    assert less.look.directions == 1
    assert less.best is not None
    assert less.best.name == "all on the device"


def test_what_does_not_fit_at_all_fits_with_the_least_that_is_named() -> None:
    question = asked()
    found = answer(question, cfg=1.0, budget_bytes=MIB)
    assert found.best is None
    assert math.isnan(found.seconds)
    assert found.smallest_bytes is not None
    assert answer(question, cfg=1.0, budget_bytes=found.smallest_bytes).best is not None


def test_a_network_that_cannot_be_followed_gets_a_bound_and_no_prediction() -> None:
    found = answer(asked(Moody(), free_bytes=8 * MIB))
    assert found.best is not None
    assert math.isnan(found.seconds)
    assert found.best.least
    text = report(asked(Moody()), found)
    assert "time: not predicted: cannot follow Moody without its weights" in text
    assert "a bound and no prediction" in text
    whole = answer(asked(Moody()))
    assert whole.best is not None
    assert whole.best.step_ms is None
    assert math.isnan(whole.seconds)


def test_inputs_that_nobody_knows_give_a_bound_too() -> None:
    def refuse(directions: int) -> dict[str, Any]:
        raise Unsupported("cannot tell what Tiny would be called with: no text")

    question = asked(inputs=refuse)
    text = report(question, answer(question))
    assert "not predicted: cannot tell what Tiny would be called with: no text" in text


@pytest.mark.slow
def test_on_the_cpu_the_layers_are_timed_and_nothing_is_streamed() -> None:
    found = answer(asked(device="cpu"), steps=2)
    assert found.best is not None
    assert (found.best.name, found.look.way) == ("all in memory", "measured")
    assert found.seconds > 0
    none = answer(asked(device="cpu"), budget_bytes=8 * MIB)
    assert none.best is None
    assert none.smallest_bytes is not None
    assert none.smallest_bytes > WEIGHTS


def test_nothing_is_asked_of_the_weights() -> None:
    """They may be on meta."""
    network = Network().to("meta")
    assert answer(asked(network)).best is not None


def test_a_model_that_is_streamed_already_gets_the_same_answer() -> None:
    question = asked(free_bytes=8 * MIB)
    before = answer(question)
    network = question.network
    streaming = Streaming.begin(
        network, network, version=0, device=device(), granted_bytes=6 * MIB, pack=False
    )
    try:
        with torch.no_grad():
            network(**question.inputs(1))
        assert answer(question).seconds == pytest.approx(before.seconds, rel=0.01)
    finally:
        streaming.end()


def test_an_interrupt_comes_through() -> None:
    def stop(done: int, total: int) -> None:
        raise InterruptedError(f"{done} of {total}")

    with pytest.raises(InterruptedError, match="0 of 2"):
        answer(asked(), progress=stop)


# ---- memory as ComfyUI shares it out


def test_room_keeps_what_comfyui_would_keep() -> None:
    room = Room(free_bytes=1000, reserve_bytes=100, least_bytes=300, share=0.0)
    assert room.have_bytes == 900
    assert room.kept_bytes(needed_bytes=100) == 700  # the least counts
    assert room.kept_bytes(needed_bytes=400) == 500
    assert room.kept_bytes(needed_bytes=2000) == 0
    assert dataclasses.replace(room, share=0.4).kept_bytes(2000) == 400


def test_a_budget_is_a_device_with_that_much_free() -> None:
    room = Room(free_bytes=1000, reserve_bytes=100, least_bytes=300, share=0.0).of(500)
    assert (room.have_bytes, room.kept_bytes(0)) == (500, 300)


# ---- the report


def test_the_report_says_yes_first_and_the_best_setting() -> None:
    question = asked(decode_bytes=3 << 30, assumptions=("conditioning of 77 tokens",))
    answer(question)  # the first pass of a process without values holds one result longer
    assert report(question, answer(question, steps=4)) == (
        "YES: Tiny on simulated fits whole into 1.00 GiB\n"
        "memory: 16.5 MiB whole = weights 16.0 MiB + computing 0.5 MiB (by following it; ComfyUI's "
        "estimate is 0.5 MiB)\n"
        "time: 10.7 ms a step, 42.9 ms for 4 steps (both directions of guidance at once; by the "
        "clock of a made-up device)\n"
        "decoding: 3.00 GiB by ComfyUI's estimate: does not fit; ComfyUI decodes in tiles then\n"
        "  choice                    weights there  peak      a step   4 steps\n"
        "  all on the device         16.0 MiB       16.5 MiB  10.7 ms  42.9 ms\n"
        "  Stream Model, half of it  8.0 MiB        8.5 MiB   12.5 ms  49.9 ms\n"
        "best: as it is; Stream Model is not needed\n"
        "assumed: conditioning of 77 tokens"
    )


def test_the_report_names_the_budget_for_stream_model() -> None:
    question = asked(free_bytes=8 * MIB)
    text = report(question, found := answer(question, cfg=1.0, steps=1))
    assert text.startswith(
        "YES, with Stream Model: Tiny on simulated does not fit whole into 8.0 MiB\n"
    )
    assert "for 1 step (guidance 1: one direction;" in text
    assert text.endswith(f"best: Stream Model with budget_gb {found.budget_gb:.6f}")


def test_the_report_says_when_comfyui_would_keep_less_than_fits() -> None:
    room = Room(20 * MIB, reserve_bytes=0, least_bytes=6 * MIB, share=0.0)
    question = asked(room=room)
    text = report(question, found := answer(question))
    assert found.stream
    assert text.startswith(
        "YES, with Stream Model: Tiny on simulated fits whole into 20.0 MiB; ComfyUI would not "
        "risk it\n"
    )
    assert "  ComfyUI's lowvram  14.0 MiB " in text


def test_the_report_says_no_and_what_would_do() -> None:
    question = asked(free_bytes=MIB)
    text = report(question, answer(question, cfg=1.0))
    assert text.splitlines()[0] == (
        "NO: Tiny on simulated does not fit into 1.0 MiB, not even streamed"
    )
    assert text.splitlines()[-1].startswith("best: a smaller latent, fewer at once or ")


@pytest.mark.parametrize(
    ("say", "value", "text"),
    [
        (format_gib, 5 << 30, "5.00 GiB"),
        (format_gib, 3 << 20, "3.0 MiB"),
        (format_duration, 1.234, "1.23 ms"),
        (format_duration, 1234.0, "1.23 s"),
        (format_duration, 125_000.0, "2 min 5 s"),
    ],
)
def test_amounts_are_written_for_a_person(
    say: Callable[[Any], str], value: float, text: str
) -> None:
    assert say(value) == text


# ---- the node


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"steps": 0}, "cannot use steps=0\n  expected: an integer from 1 to 10000"),
        ({"steps": 1.5}, "cannot use steps=1.5\n  expected: an integer from 1 to 10000"),
        ({"steps": True}, "cannot use steps=True\n  expected: an integer from 1 to 10000"),
        ({"cfg": math.nan}, "cannot use cfg=nan\n  expected: a number from 0 to 100"),
        ({"cfg": "8"}, "cannot use cfg='8'\n  expected: a number from 0 to 100"),
        ({"budget_gb": -1.0}, "cannot use budget_gb=-1.0\n  expected: a number from 0 to 4096"),
        (
            {},
            "cannot look at a int\n"
            "  expected: a MODEL of ComfyUI\n"
            "  try: in plain Python: holdfast.residency.fit(module, device, budget)",
        ),
    ],
)
def test_nonsense_is_refused_in_three_parts(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput) as caught:
        HoldfastWillItFit().look(3, {}, **wrong)
    assert str(caught.value) == text


def test_without_comfyui_every_answer_is_asked_for_anew() -> None:
    changed = HoldfastWillItFit.IS_CHANGED()
    assert isinstance(changed, float)
    assert math.isnan(changed)
    assert HoldfastWillItFit.IS_CHANGED(budget_gb=3.0) == HoldfastWillItFit.IS_CHANGED(3.0)


def test_every_input_and_output_has_its_tooltip() -> None:
    node = HoldfastWillItFit
    inputs = {name: kind for group in node.INPUT_TYPES().values() for name, kind in group.items()}
    assert all(options["tooltip"].endswith(".") for _, options in inputs.values())
    assert len(node.RETURN_TYPES) == len(node.RETURN_NAMES) == len(node.OUTPUT_TOOLTIPS)

"""Networks of diffusers, transformers and timm on the device, as they are: the CPU's numbers."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from importlib import util
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline
from torch import nn

import holdfast.torch  # noqa: F401  (makes the device known)
from holdfast.compute import engine
from holdfast.pipeline.model.sources import BUILT_IN
from tests.compute.torch_device.third_party import CASES, Case, llama, made
from tests.needs import needs
from tests.tolerance import assert_near, bound, distance, no_worse

DEVICE = "holdfast"
TERMS = 1024  # of the longest sums, and some layers
# Of what learns from sines of times and of guidance, 3.5, which diffusers multiplies by 1000: a
# rounding of an angle is as large as the angle. Modules of diffusers compute them in float32
# whatever their dtype is, so torch seems to make no error there.
LARGEST_ANGLE = 3500
ANGLES = LARGEST_ANGLE**2
Gradients = dict[str, torch.Tensor | None]


@pytest.fixture(autouse=True)
def on_the_engine() -> Iterator[None]:
    """Nothing that a test here computes falls back to the host."""
    before = engine.fallbacks.copy()
    with engine.strict():
        yield
    fell_back = engine.fallbacks - before
    assert not fell_back


def moved(value: Any) -> Any:
    """On the device, wherever tensors are."""
    if isinstance(value, torch.Tensor):
        return value.to(DEVICE)
    return {k: moved(v) for k, v in value.items()} if isinstance(value, dict) else value


def first(output: Any) -> torch.Tensor:
    """What a network is called for."""
    if isinstance(output, torch.Tensor):
        return output
    for name in ("logits", "sample", "last_hidden_state"):
        if name in output:
            return output[name]
    raise AssertionError(f"{type(output).__name__} has no tensor that is known here")


def trained(model: nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, Gradients]:
    """The output, and the gradients of a loss that asks something of every number of it."""
    out = first(model(**inputs))
    wanted = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (out * wanted.to(out.device)).mean().backward()
    return out.detach().cpu(), {
        name: None if p.grad is None else p.grad.cpu() for name, p in model.named_parameters()
    }


def largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max())


def widened(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}


def assert_as_near(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    """Our error is that of rounding, as is torch's."""
    assert ours.dtype == theirs.dtype
    assert no_worse(distance(ours, exact), distance(theirs, exact), ours.dtype, TERMS)


def assert_gradients_as_near(ours: Gradients, theirs: Gradients, exact: Gradients) -> None:
    """Each tensor, in scale with its own largest.

    Biases of keys have no gradient but for rounding: they are in scale with the largest of all.
    """
    assert {n for n, g in ours.items() if g is None} == {n for n, g in theirs.items() if g is None}
    top = max(largest(g) for g in exact.values() if g is not None)
    assert top > 0
    for name, truth in exact.items():
        mine, other = ours[name], theirs[name]
        if truth is None or mine is None or other is None:
            continue
        size = largest(truth)
        if size < bound(mine.dtype, TERMS, top):
            assert largest(mine.double() - truth) <= bound(mine.dtype, TERMS, top), name
        else:
            errors = (largest(one.double() - truth) / size for one in (mine, other))
            assert no_worse(*errors, mine.dtype, ANGLES if "time" in name else TERMS), name


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_the_cpu(name: str) -> None:
    model, inputs = made(CASES[name])
    same, wide = copy.deepcopy(model).to(DEVICE), copy.deepcopy(model).double()
    out, gradients = trained(same, moved(inputs))
    wanted, wanted_gradients = trained(model, inputs)
    exact, exact_gradients = trained(wide, widened(inputs))
    assert_as_near(out, wanted, exact)
    assert_gradients_as_near(gradients, wanted_gradients, exact_gradients)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_bfloat16_loses_no_more_than_on_the_cpu(name: str) -> None:
    model, inputs = made(CASES[name])
    wanted = first(copy.deepcopy(model).double()(**widened(inputs)))
    narrow = {k: v.bfloat16() if v.is_floating_point() else v for k, v in inputs.items()}

    def lost(by: nn.Module, given: dict[str, Any]) -> float:
        out = first(by(**given))
        assert out.dtype == torch.bfloat16
        return float((out.cpu().double() - wanted).abs().mean() / wanted.abs().mean())

    as_cpu_tensor = lost(copy.deepcopy(model).to(torch.bfloat16), narrow)
    ours = lost(model.to(DEVICE, torch.bfloat16), moved(narrow))
    assert ours > 0
    assert no_worse(ours, as_cpu_tensor, torch.bfloat16)


@pytest.mark.parametrize("settings", [{}, {"do_sample": True, "temperature": 0.8, "top_k": 20}])
def test_llama_writes_the_same_words(settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, words = llama().eval(), torch.randint(3, 99, (2, 5))
    same = copy.deepcopy(model).to(DEVICE)

    def written(by: Any, start: torch.Tensor) -> list[list[int]]:
        torch.manual_seed(7)
        mask = torch.ones_like(start)
        out = by.generate(start, attention_mask=mask, max_new_tokens=12, **settings)
        return out.tolist()

    assert written(same, words.to(DEVICE)) == written(model, words)


def test_weights_that_are_one_stay_one_and_learn_from_both_uses() -> None:
    torch.manual_seed(0)
    model = llama().to(DEVICE)
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_whole_pipeline_of_diffusers_draws_the_same_picture() -> None:
    pipe: Any = FluxPipeline.from_pretrained(BUILT_IN / "tiny-flux")
    pipe.set_progress_bar_config(disable=True)
    settings = {"height": 64, "width": 64, "num_inference_steps": 2, "max_sequence_length": 32}

    def drawn() -> Any:
        noise = torch.Generator().manual_seed(1)
        return pipe("a seven", generator=noise, output_type="np", **settings).images[0]

    wanted = drawn()
    pipe.to(DEVICE)
    assert pipe.transformer.device.type == DEVICE
    assert_near(drawn(), wanted, torch.float32, 4 * TERMS)


def test_frequencies_are_exact_to_the_last_bit() -> None:
    """Networks multiply them by a thousand and take the sine."""
    steps = torch.arange(0, -9.2, -0.07)
    assert torch.equal(torch.exp(steps.to(DEVICE)).cpu(), torch.exp(steps.double()).float())


# ---- timm


class _Anything(type):
    """A class that has any attribute, each of them such a class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (), {})


class _NoVision(MetaPathFinder, Loader):
    """A torchvision that is empty: the published one needs a CUDA build of torch.

    timm takes transforms and data sets from it, which no network is made of.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        ours = fullname.partition(".")[0] == "torchvision"
        return ModuleSpec(fullname, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module: Any = ModuleType(spec.name)
        module.__getattr__ = lambda name: getattr(_Anything("torchvision", (), {}), name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


@pytest.fixture
def timm() -> Iterator[Any]:
    finder = _NoVision()
    sys.meta_path.insert(0, finder)
    try:
        import timm

        yield timm
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]


@needs(None if util.find_spec("timm") else "timm is not installed")
def test_a_timm_resnet_learns_as_on_the_cpu(timm: Any) -> None:
    def inputs() -> dict[str, Any]:
        return {"x": torch.randn(2, 3, 64, 64)}

    model, given = made(Case(lambda: timm.create_model("resnet10t", num_classes=10), inputs))
    model.train()  # running means and variances move
    same, wide = copy.deepcopy(model).to(DEVICE), copy.deepcopy(model).double()
    out, gradients = trained(same, moved(given))
    wanted, wanted_gradients = trained(model, given)
    exact, exact_gradients = trained(wide, widened(given))
    assert_as_near(out, wanted, exact)
    assert_gradients_as_near(gradients, wanted_gradients, exact_gradients)
    for (name, ours), (_, truth) in zip(same.named_buffers(), wide.named_buffers(), strict=True):
        assert_near(ours.cpu(), truth, torch.float32, TERMS, name)

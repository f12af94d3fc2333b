"""A tiny model of every diffusers class that a port may be made of."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

from holdfast.base.errors import BadInput, NotFound  # noqa: E402
from holdfast.xla import tiny  # noqa: E402

MOST_WEIGHTS = 5_000_000  # sizes of thousands are fixed in the source of a few classes


def transformer_classes() -> list[str]:
    names = [name for name in dir(diffusers) if "Transformer" in name and name.endswith("Model")]
    return [f"diffusers:{name}" for name in names if inspect.isclass(getattr(diffusers, name))]


def floats(value: Any) -> list[torch.Tensor]:
    """The floating tensors in an answer."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [one for part in value for one in floats(part)] if isinstance(value, list | tuple) else []
    )


def test_every_transformer_of_diffusers_has_one() -> None:
    assert sorted(set(transformer_classes()) - set(tiny.tiny_models())) == []


@pytest.mark.filterwarnings("ignore")  # the models' own: deprecations, flex attention uncompiled
@pytest.mark.parametrize("name", sorted(tiny.tiny_models()))
def test_it_is_small_runs_and_answers_with_numbers_that_differ(name: str) -> None:
    made = tiny.make(name)
    assert sum(weight.numel() for weight in made.module.parameters()) < MOST_WEIGHTS
    with torch.no_grad():
        found = floats(made(**made.inputs()))
    assert found
    for one in found:
        assert one.isfinite().all()
    assert found[0].std() > 1e-3


def test_the_same_seed_gives_the_same_and_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    name = "diffusers:NucleusMoEImageTransformer2DModel"  # leaves weights unset
    first, second, other = tiny.make(name), tiny.make(name), tiny.make(name, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    weights = [one.module.state_dict() for one in (first, second, other)]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert not all(torch.equal(weights[0][key], weights[2][key]) for key in weights[0])
    assert torch.equal(first.inputs()["hidden_states"], second.inputs()["hidden_states"])


def test_a_class_without_an_entry_is_an_error_that_says_what_to_write() -> None:
    with pytest.raises(NotFound) as caught:
        tiny.make("diffusers:NoSuchModel")
    assert str(caught.value) == (
        "there is no tiny model of diffusers:NoSuchModel\n"
        f"  expected: one of {len(tiny.tiny_models())} names such as "
        "diffusers:FluxTransformer2DModel\n"
        "  try: an entry in holdfast/xla/tiny: its configuration and what to call it with"
    )
    with pytest.raises(NotFound) as caught:
        tiny.class_of("diffusers:NoSuchModel")
    assert str(caught.value) == (
        "diffusers has no class NoSuchModel\n"
        "  expected: library:ClassName, for example diffusers:FluxTransformer2DModel"
    )


def test_a_name_without_a_library_cannot_be_read() -> None:
    with pytest.raises(BadInput) as caught:
        tiny.class_of("Flux")
    assert str(caught.value) == (
        "cannot read the class 'Flux'\n"
        "  expected: library:ClassName, for example diffusers:FluxTransformer2DModel"
    )

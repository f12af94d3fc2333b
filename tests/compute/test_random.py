"""Random numbers: torch's for the same seed, repeatable, and distributed as their names say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.compute import functional as table
from holdfast.compute import random
from tests.tolerance import bound

F: Any = table

# The same call for torch's functions and for ours; `d` gives a dtype by its name.
DRAWS: dict[str, Callable[[Any, Any], Any]] = {
    "rand": lambda f, d: f.rand((3, 5)),
    "rand float64": lambda f, d: f.rand((7,), dtype=d("float64")),
    "rand float16": lambda f, d: f.rand((700,), dtype=d("float16")),
    "rand complex64": lambda f, d: f.rand((7,), dtype=d("complex64")),
    "rand of nothing": lambda f, d: f.rand((0, 3)),
    "randn of few": lambda f, d: f.randn((5,)),
    "randn of a number": lambda f, d: f.randn(()),
    "randn of blocks": lambda f, d: f.randn((4, 16)),
    "randn with a rest": lambda f, d: f.randn((33,)),
    "randn float64": lambda f, d: f.randn((20,), dtype=d("float64")),
    "randn float16": lambda f, d: f.randn((33,), dtype=d("float16")),
    "randn complex64": lambda f, d: f.randn((20,), dtype=d("complex64")),
    "randint": lambda f, d: f.randint(10, (20,)),
    "randint from below zero": lambda f, d: f.randint(-7, 10, (20,)),
    "randint of 28 bits": lambda f, d: f.randint(2**28, (5,)),
    "randint of many bits": lambda f, d: f.randint(-(2**40), 2**60, (5,)),
    "randint in float32": lambda f, d: f.randint(10, (5,), dtype=d("float32")),
    "randperm": lambda f, d: f.randperm(50),
    "randperm of none": lambda f, d: f.randperm(0),
    "uniform": lambda f, d: f.zeros(100).uniform_(-1.1, 3.3),
    "uniform float64": lambda f, d: f.zeros(100, dtype=d("float64")).uniform_(-1.1, 3.3),
    "normal": lambda f, d: f.zeros(33).normal_(2, 3),
    "normal of tensors": lambda f, d: f.normal(f.ones(20), f.full((20,), 2.0)),
    "log_normal": lambda f, d: f.zeros(20).log_normal_(0.1, 0.2),
    "exponential": lambda f, d: f.zeros(20).exponential_(1.5),
    "cauchy": lambda f, d: f.zeros(20).cauchy_(1, 2),
    "geometric": lambda f, d: f.zeros(20).geometric_(0.2),
    "bernoulli of a chance": lambda f, d: f.zeros(50).bernoulli_(0.3),
    "bernoulli of chances": lambda f, d: f.bernoulli(f.full((50,), 0.3)),
    "bernoulli of float64": lambda f, d: f.bernoulli(f.full((50,), 0.3, dtype=d("float64"))),
    "random": lambda f, d: f.zeros(9).random_(),
    "random int64": lambda f, d: f.zeros(9, dtype=d("int64")).random_(),
    "random uint8": lambda f, d: f.zeros(9, dtype=d("uint8")).random_(),
    "random up to": lambda f, d: f.zeros(9, dtype=d("int32")).random_(7),
    "random from": lambda f, d: f.zeros(9, dtype=d("int32")).random_(5, None),
    "multinomial": lambda f, d: f.multinomial(f.arange(1.0, 9.0), 5),
    "multinomial of one": lambda f, d: f.multinomial(f.rand((4, 6)), 1),
    "multinomial with repeats": lambda f, d: f.multinomial(f.rand((4, 6)), 9, True),
    "a transposed tensor": lambda f, d: f.zeros((5, 7)).t().uniform_(),
    "normals of a transposed tensor": lambda f, d: f.zeros((5, 7)).t().normal_(),
}


def _both(draw: Any) -> tuple[Any, Any]:
    theirs = draw(torch, lambda name: getattr(torch, name)).numpy()
    return draw(F, lambda name: name).numpy(), theirs


def near(expected: Any) -> Any:
    """Logarithms and cosines of torch's CPU are those of its instruction set."""
    if expected.dtype.kind not in "fc":
        return {"rtol": 0}
    dtype, most = expected.real.dtype, float(numpy.abs(expected).max(initial=1))
    return {"rtol": bound(dtype, 16), "atol": bound(dtype, 16, most)}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_torchs(name: str) -> None:
    for seed in (0, 1234567):
        torch.manual_seed(seed)
        random.manual_seed(seed)
        for _ in range(2):  # the second draw shows that the first took as many bits
            got, expected = _both(DRAWS[name])
            assert got.shape == expected.shape
            assert got.dtype == expected.dtype
            numpy.testing.assert_allclose(got, expected, **near(expected))
        got, expected = _both(DRAWS["rand"])
        assert numpy.array_equal(got, expected)


def test_normal_that_was_kept_outlives_other_draws() -> None:
    torch.manual_seed(3)
    random.manual_seed(3)
    for size in ((3,), (20,), (2,), (1,), (5,)):
        expected = torch.randn(size).numpy()
        numpy.testing.assert_allclose(F.randn(size).numpy(), expected, **near(expected))


def test_only_the_lower_half_of_a_seed_counts() -> None:
    random.manual_seed(5)
    one = F.rand([4]).tolist()
    random.manual_seed(5 + (7 << 32))
    assert F.rand([4]).tolist() == one
    assert random.initial_seed() == 5 + (7 << 32)


def test_state_brings_back_all_numbers_that_followed() -> None:
    random.manual_seed(1)
    F.randn([3])  # a normal number is kept for later
    state = random.get_state()
    first = [F.randn([2]).tolist(), F.rand([700]).tolist(), F.randperm(9).tolist()]
    random.set_state(state)
    assert [F.randn([2]).tolist(), F.rand([700]).tolist(), F.randperm(9).tolist()] == first


def test_state_can_be_kept_as_plain_values() -> None:
    random.manual_seed(1)
    state = random.get_state()
    plain = {**state, "key": state["key"].tolist()}
    first = F.rand([5]).tolist()
    random.set_state(plain)
    assert F.rand([5]).tolist() == first


@pytest.mark.parametrize("state", [{}, {"key": [1], "position": 0, "next_normal": None, "seed": 0}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    before = random.get_state()["key"]
    with pytest.raises(BadInput):
        random.set_state(state)
    assert (random.get_state()["key"] == before).all()


def test_seed_chooses_another_seed_each_time() -> None:
    assert random.seed() != random.seed()


def test_a_generator_has_numbers_of_its_own() -> None:
    random.manual_seed(0)
    state = random.get_state()
    with random.using(random.Generator(7)):
        one = F.rand([4]).tolist()
    assert (random.get_state()["key"] == state["key"]).all()
    with random.using(random.Generator(7)):
        assert F.rand([4]).tolist() == one
    assert one == torch.rand(4, generator=torch.Generator().manual_seed(7)).tolist()


def test_threads_together_draw_the_numbers_one_would() -> None:
    generator, found = random.Generator(0), []
    alone = random.Generator(0).bits32(4000)

    def draw() -> None:
        for _ in range(10):
            found.append(generator.bits32(100))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(numpy.concatenate(found).tolist()) == sorted(alone.tolist())


MOMENTS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "uniform": (lambda x: x.uniform_(2, 4), 3, 1 / 3),
    "normal": (lambda x: x.normal_(2, 3), 2, 9),
    "exponential": (lambda x: x.exponential_(2), 1 / 2, 1 / 4),
    "geometric": (lambda x: x.geometric_(0.25), 4, 12),
    "bernoulli": (lambda x: x.bernoulli_(0.3), 0.3, 0.21),
    "log_normal": (
        lambda x: x.log_normal_(0, 0.5),
        numpy.exp(0.125),
        (numpy.exp(0.25) - 1) * numpy.exp(0.25),
    ),
    "random": (lambda x: x.random_(10), 4.5, 8.25),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_mean_and_variance_are_those_of_the_distribution(name: str) -> None:
    random.manual_seed(11)
    draw, mean, variance = MOMENTS[name]
    count = 40000
    drawn = draw(F.zeros([count], dtype="float64")).numpy()
    assert abs(drawn.mean() - mean) < 5 * (variance / count) ** 0.5
    assert abs(drawn.var() / variance - 1) < 0.1


def test_multinomial_draws_by_weight_and_without_repeats() -> None:
    random.manual_seed(2)
    weights = F.arange(0.0, 4.0)
    counts = numpy.bincount(F.multinomial(weights, 12000, True).numpy(), minlength=4)
    numpy.testing.assert_allclose(counts / 12000, numpy.arange(4) / 6, atol=0.02)
    drawn = F.multinomial(F.expand(weights, (50, 4)), 3).numpy()
    assert all(sorted(line) == [1, 2, 3] for line in drawn.tolist())


def test_permutation_holds_each_number_once() -> None:
    assert sorted(F.randperm(1000).tolist()) == list(range(1000))


def test_random_numbers_have_no_gradient_of_what_they_replace() -> None:
    chances = F.full([3], 0.5).requires_grad_()
    drawn = F.bernoulli(chances)
    drawn.sum().backward()
    assert chances.grad is not None
    assert chances.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.zeros([3]).uniform_(2, 1),
        lambda: F.zeros([3]).normal_(0, -1),
        lambda: F.zeros([3]).exponential_(0),
        lambda: F.zeros([3]).bernoulli_(1.5),
        lambda: F.bernoulli(F.full([3], 2.0)),
        lambda: F.zeros([3]).geometric_(1),
        lambda: F.randint(0, [3]),
        lambda: F.randint(5, 5, [3]),
        lambda: F.randperm(-1),
        lambda: F.rand([3], dtype="int64"),
        lambda: F.multinomial(F.ones([3]), 4),
        lambda: F.multinomial(F.zeros([3]), 1),
        lambda: F.multinomial(F.full([3], -1.0), 1),
        lambda: random.manual_seed(1 << 64),
    ],
)
def test_what_cannot_be_drawn_is_refused(call: Any) -> None:
    with pytest.raises(HoldfastError):
        call()


@pytest.mark.parametrize("seed", ["a", 1.5, None, 1 << 64])
def test_what_is_no_seed_is_said(seed):
    from holdfast.base.errors import BadInput

    with pytest.raises(BadInput) as caught:
        random.manual_seed(seed)
    assert str(caught.value) == (f"{seed!r} is no seed\n  expected: an integer of at most 64 bits")

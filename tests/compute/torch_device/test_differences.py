"""Where the device and torch's CPU once differed: results, formats, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import holdfast.torch  # noqa: F401  (registers the device)
from holdfast.compute.torch_device.errors import BadIndex, Refused

DEVICE = "holdfast"


def tensor(value: Any, **named: Any) -> torch.Tensor:
    return torch.tensor(value, device=DEVICE, **named)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(Refused) as caught:
        call()
    return str(caught.value)


# ---- one number


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32, torch.int16])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_tensor_of_one_number_is_that_number(kind: torch.dtype, shape: tuple[int, ...]) -> None:
    one = torch.full(shape, 2, dtype=kind, device=DEVICE)
    assert [one.item(), float(one), int(one), bool(one)] == [2, 2, 2, True]


# ---- in place


def test_an_op_in_place_does_not_make_its_tensor_grow() -> None:
    x = torch.ones(3, 1, device=DEVICE)
    for call in (x.logical_and_, x.ldexp_):
        with pytest.raises(Refused, match="doesn't match the broadcast shape"):
            call(torch.ones(3, 2, device=DEVICE))
    assert refusal(lambda: torch.mul(x, torch.ones(2, device=DEVICE), out=x)) == (
        "cannot compute mul.Tensor in place: output with shape [3, 1] doesn't match the broadcast "
        "shape [3, 2]\n  expected: a tensor of the result's shape"
    )
    assert x.shape == (3, 1)
    assert x.tolist() == [[1], [1], [1]]


def test_a_divisor_in_place_of_whole_numbers_over_floats_is_refused_when_rounding_too() -> None:
    x = tensor([7, 8])
    assert refusal(lambda: x.div_(tensor([2.0, 3.0]), rounding_mode="floor")) == (
        "cannot compute div.Tensor_mode into a tensor: result type float32 can't be cast to the "
        "desired output type int64\n  expected: a tensor whose dtype holds the result"
    )
    assert x.div_(tensor([2, 3]), rounding_mode="floor").tolist() == [3, 2]


@pytest.mark.parametrize("name", ["gcd_", "lcm_"])
def test_a_common_divisor_of_floats_is_refused_as_torch_does(name: str) -> None:
    x = tensor([4.0])
    with pytest.raises(Refused, match="cannot compute"):
        getattr(x, name)(tensor([2.0]))


# ---- out=


def test_targets_have_the_format_that_torch_asks_for() -> None:
    x = torch.ones(2, 2, device=DEVICE)
    double = torch.zeros(2, 2, dtype=torch.float64, device=DEVICE)
    for call in (torch.neg, torch.floor, torch.tril):
        with pytest.raises(Refused, match="result type float32 can't be cast"):
            call(x, out=double)
    assert refusal(lambda: torch.mm(x, x, out=double)) == (
        "cannot compute mm into a tensor: result type float32 can't be cast to the desired output "
        "type float64\n  expected: a tensor of format float32"
    )
    assert refusal(lambda: torch.cat([x, x], out=tensor([0]))) == (
        "cannot compute cat into a tensor: result type float32 can't be cast to the desired output "
        "type int64\n  expected: a tensor whose dtype holds the result"
    )
    assert not double.any()


def test_a_second_target_of_a_wrong_format_leaves_the_first_as_it_was() -> None:
    values = torch.zeros(2, device=DEVICE)
    places = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    with pytest.raises(Refused, match="into a tensor: result type int64"):
        torch.sort(tensor([2.0, 1.0]), out=(values, places))
    assert values.tolist() == [0, 0]


def test_targets_of_wider_formats_are_taken_where_torch_takes_them() -> None:
    x = torch.ones(2, 2, device=DEVICE)
    double = torch.zeros(2, 2, dtype=torch.float64, device=DEVICE)
    assert torch.exp(x, out=double).dtype is torch.float64
    assert torch.add(x, x, out=double).sum() == 8
    assert torch.cumsum(x, 0, out=double).tolist() == [[1, 1], [2, 2]]
    assert torch.stack([x, x], out=torch.empty(0, dtype=torch.float64, device=DEVICE)).sum() == 8
    flags = torch.empty(2, dtype=torch.uint8, device=DEVICE)
    assert torch.any(x, 0, out=flags).tolist() == [1, 1]
    for kind in (torch.complex64, torch.bfloat16):
        lengths = torch.empty(1, dtype=kind, device=DEVICE)
        assert torch.abs(tensor([3 + 4j]), out=lengths).tolist() == [5]


# ---- places


@pytest.mark.parametrize("name", ["index_add", "index_copy"])
def test_rows_that_do_not_match_their_places_are_refused(name: str) -> None:
    x, places = torch.zeros(4, 4, device=DEVICE), tensor([0, 1, 2])
    source = torch.ones(3, 4, device=DEVICE)
    assert refusal(lambda: getattr(x, name)(1, places, source)).startswith(
        f"cannot compute {name}(float32[4, 4], 1, int64[3], float32[3, 4]): "
        "a source of shape [3, 4] for 3 indices along dimension 1 of [4, 4]\n"
    )
    assert getattr(x, name)(0, places, source).sum() == 12


def test_rows_of_another_format_are_refused_and_numbers_wrap_around_as_in_torch() -> None:
    x, places = torch.zeros(2, 2, dtype=torch.uint8, device=DEVICE), tensor([0, 1])
    with pytest.raises(Refused, match="the source is float32, the target is uint8"):
        x.index_copy(0, places, torch.ones(2, 2, device=DEVICE))
    assert x.index_fill(0, places, -1).tolist() == [[255, 255], [255, 255]]


@pytest.mark.parametrize("value", [1.75, True])
def test_a_number_of_another_format_is_written_where_a_mask_says(value: Any) -> None:
    def written(device: str) -> Any:
        x = torch.zeros(3, 4, dtype=torch.int32, device=device)
        x[torch.tensor([True, False, True], device=device)] = torch.tensor(value, device=device)
        return x.tolist()

    assert written(DEVICE) == written("cpu")


def test_values_of_another_format_at_places_by_number_are_refused() -> None:
    x = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    with pytest.raises(Refused, match="the values are float32, the target is int32"):
        x[tensor([0, 1])] = tensor([1.5, 2.5])


def test_an_extreme_of_nothing_is_an_index_error() -> None:
    empty = torch.zeros(2, 0, device=DEVICE)
    for call in (lambda: empty.amax(1), lambda: empty.max(1), lambda: empty.argmin(1)):
        with pytest.raises(BadIndex, match="an extreme over a dimension of size 0"):
            call()


# ---- making


def test_a_number_that_a_format_cannot_hold_does_not_fill_it() -> None:
    x = torch.zeros(2, dtype=torch.uint8, device=DEVICE)
    assert refusal(lambda: x.fill_(300)).startswith(
        "cannot compute fill.Scalar(uint8[2], 300): 300 does not fit into uint8\n"
    )
    with pytest.raises(Refused, match="128 does not fit into int8"):
        torch.full((2,), 128, dtype=torch.int8, device=DEVICE)
    assert x.fill_(-1).tolist() == [255, 255]  # as torch has it


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("periodic", [True, False])
def test_a_kaiser_window_is_the_cpus(count: int, periodic: bool) -> None:
    found = torch.kaiser_window(count, periodic, 5.0, device=DEVICE)
    torch.testing.assert_close(found.cpu(), torch.kaiser_window(count, periodic, 5.0))


@pytest.mark.parametrize("count", [3, 40])
def test_normal_numbers_around_tensors_are_the_cpus_to_the_last_bit(count: int) -> None:
    def drawn(device: str) -> Any:
        torch.manual_seed(2)
        mean = torch.linspace(-1, 1, count).to(device)
        spread = torch.linspace(0, 2, count).to(device)
        around = torch.normal(mean, spread), torch.normal(mean, 0.5), torch.normal(0.5, spread)
        return [one.tolist() for one in (*around, torch.rand(2, device=device))]

    assert drawn(DEVICE) == drawn("cpu")
    assert refusal(lambda: torch.normal(0.0, tensor([1.0, -1.0]))) == (
        "a standard deviation is -1.0\n  expected: 0 or more"
    )


# ---- order in memory


@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_repeated_rows_leave_results_contiguous(kind: torch.dtype) -> None:
    repeated = torch.arange(2, device=DEVICE).to(kind).expand(3, 2)
    assert (repeated * torch.ones(3, 2, dtype=kind, device=DEVICE)).is_contiguous()
    every_other = torch.ones(4, 3, 4, dtype=kind, device=DEVICE)[..., ::2]
    assert torch.kron(every_other, repeated).shape == (4, 9, 4)


def test_chosen_places_of_a_contiguous_tensor_are_contiguous() -> None:
    x = torch.arange(60, device=DEVICE).reshape(5, 4, 3)
    mask, rows, columns = tensor([True, False, True]), tensor([[0], [1]]), tensor([0, 2])
    for chosen in (x[:, :, mask], x[:, rows, columns]):
        assert chosen.is_contiguous()
    assert x[:, :, mask].view(-1)[:4].tolist() == [0, 2, 3, 5]
    assert x[:, rows, columns].view(-1)[:4].tolist() == [0, 2, 3, 5]


def test_one_number_fills_a_repeated_row() -> None:
    x = torch.zeros(1, 3, device=DEVICE)
    assert x.expand(2, 3).fill_(2).tolist() == [[2, 2, 2], [2, 2, 2]]
    x.expand(2, 3).zero_()
    assert x.tolist() == [[0, 0, 0]]
    with pytest.raises(Refused, match="more than one element of the written-to tensor"):
        x.expand(2, 3).add_(1)


# ---- gradients


def test_attention_whose_result_has_no_gradient_has_none() -> None:
    given = [torch.rand(1, 1, 2, 2, device=DEVICE, dtype=torch.float64) for _ in range(3)]
    given = [one.requires_grad_() for one in given]
    assert torch.autograd.gradcheck(torch.nn.functional.scaled_dot_product_attention, given)

"""What newcomers try: things that are no tensors, sizes that cannot be, hooks that go away."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import is_grad_enabled, nn, no_grad
from holdfast.compute.tensors.custom_tensor import CustomTensor

_TAKERS = [
    *(nn.Linear(2, 2), nn.Conv2d(1, 1, 1), nn.BatchNorm1d(2), nn.InstanceNorm1d(2)),
    *(nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.Flatten(), nn.Unflatten(0, [1, 2]), nn.Dropout()),
    *(nn.Dropout2d(), nn.Embedding(2, 2), nn.MaxPool2d(2), nn.LSTM(2, 2)),
]


@pytest.mark.parametrize("module", _TAKERS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("given", [[1.0, 2.0], None, "text", numpy.ones(2)], ids=str)
def test_what_is_no_tensor_is_refused_by_name(module: Any, given: Any) -> None:
    with pytest.raises(
        BadInput, match=f"(?s){type(module).__name__}.* it is not a tensor.*expected"
    ):
        module(given)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.CrossEntropyLoss(), nn.NLLLoss(), nn.BCELoss()])
def test_a_target_that_is_no_tensor_is_refused(loss: Any) -> None:
    with pytest.raises(BadInput, match="it is not a tensor"):
        loss(CustomTensor([[0.5, 0.5]]), [0])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: nn.Linear(-1, 3),
            "a weight cannot have the sizes [3, -1]\n  expected: integers from 0 up",
        ),
        (
            lambda: nn.LayerNorm("a"),
            "a weight cannot have the sizes ['a']\n  expected: integers from 0 up",
        ),
        (
            lambda: nn.Conv2d(1, 1, 0),
            "Conv2d cannot have kernel_size=(0, 0)\n  expected: an integer from 1 up, or 2 of them",
        ),
        (
            lambda: nn.Conv2d(1, 1, 3, stride=0),
            "Conv2d cannot have stride=(0, 0)\n  expected: an integer from 1 up, or 2 of them",
        ),
        (
            lambda: nn.Conv2d(1, 1, (3, 3, 3)),
            "Conv2d cannot have kernel_size=(3, 3, 3)\n"
            "  expected: an integer from 1 up, or 2 of them",
        ),
        (
            lambda: nn.Conv2d(1, 1, 3, padding=(1, 1, 1)),
            "Conv2d cannot have padding=(1, 1, 1)\n  expected: an integer from 0 up, or 2 of them",
        ),
        (
            lambda: nn.ConvTranspose2d(1, 1, 3, padding="same"),
            "ConvTranspose2d has no padding 'same'\n  expected: an integer, one for each dimension",
        ),
        (
            lambda: nn.MaxPool2d((2, 2, 2))(CustomTensor(numpy.ones((1, 1, 4, 4)))),
            "(2, 2, 2) is no window size\n  expected: an integer, or 2 of them",
        ),
        (
            lambda: nn.LSTM("a", 2),
            "LSTM cannot have input_size=a, hidden_size=2, num_layers=1\n"
            "  expected: at least 1 of each",
        ),
        (
            lambda: nn.MultiheadAttention("a", 2),
            "MultiheadAttention cannot split embed_dim=a into 2 heads\n"
            "  expected: num_heads that divide embed_dim, both above 0",
        ),
        (
            lambda: nn.GroupNorm(0, 4),
            "GroupNorm cannot split 4 channels into 0 groups\n"
            "  expected: groups that divide the channels",
        ),
        (
            lambda: nn.Dropout("a"),
            "'a' is no probability for Dropout\n  expected: 0 <= p <= 1",
        ),
        (
            lambda: nn.CrossEntropyLoss(label_smoothing=3),
            "CrossEntropyLoss cannot have label_smoothing=3\n  expected: 0 to 1",
        ),
        (
            lambda: nn.Sequential(3),
            "cannot make a int the part '0' of Sequential\n  expected: a Module, or None",
        ),
        (
            lambda: nn.ModuleList([nn.ReLU()]).insert(0, 3),
            "cannot make a int the part '1' of ModuleList\n  expected: a Module, or None",
        ),
        (
            lambda: nn.Module().register_buffer("a", 3),
            "cannot make a int the part 'a' of Module\n  expected: a CustomTensor, or None",
        ),
        (
            lambda: nn.Module().register_parameter("a", CustomTensor(1.0)),
            "cannot make a CustomTensor the part 'a' of Module\n  expected: a Parameter, or None",
        ),
        (
            lambda: nn.ModuleList([nn.ReLU()])["a"],
            "ModuleList has no module 'a'\n  expected: an integer or a slice",
        ),
        (
            lambda: nn.Linear(1, 1).to("int64"),
            "Linear cannot be turned into int64\n  expected: a floating-point dtype\n"
            "  try: quant.quantize_weights(model)",
        ),
        (
            lambda: nn.CrossEntropyLoss()(CustomTensor([[1, 2, 3]]), CustomTensor([1.0])),
            "CrossEntropyLoss cannot take the classes float32[1]\n  expected: integers\n"
            "  try: target.to('int64')",
        ),
        (
            lambda: nn.CrossEntropyLoss()(CustomTensor([[1, 2]]), CustomTensor([[0, 1]]).long()),
            "CrossEntropyLoss cannot compare float32[1, 2] with int64[1, 2]\n"
            "  expected: probabilities with fractions, or integers for class indices",
        ),
        (
            lambda: nn.utils.clip_grad_norm_(nn.Linear(1, 1), 1.0),
            "a Linear has no gradient to be clipped\n  expected: parameters\n"
            "  try: module.parameters()",
        ),
        (
            lambda: nn.utils.clip_grad_norm_([], "a"),
            "max_norm='a' is not a number\n  expected: a number",
        ),
        (
            lambda: nn.utils.clip_grad_norm_([], 1.0, 0),
            "gradients cannot be clipped to max_norm=1.0 by norm_type=0.0\n"
            "  expected: a norm from 0 up, of a type above 0",
        ),
    ],
    ids=lambda v: "",
)
def test_what_cannot_be_is_refused(make: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        make()
    assert str(caught.value) == text


def test_a_layer_without_inputs_is_made_as_in_torch() -> None:
    assert nn.Linear(0, 3)(CustomTensor(numpy.ones((2, 0)))).shape == (2, 3)


class Unready(nn.Module):
    """Forgot super().__init__()."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("use", [repr, list, lambda m: m(1), lambda m: m.train()])
def test_a_module_without_its_beginning_says_so(use: Any) -> None:
    given = Unready()
    with pytest.raises(Misuse, match=r"Unready was used before .*(?s:.)*super\(\).__init__\(\)"):
        use(given.parameters() if use is list else given)


def test_a_hook_that_takes_itself_away_hides_no_other() -> None:
    called = []
    layer = nn.Identity()
    handle = layer.register_forward_hook(lambda *_: handle.remove())
    layer.register_forward_hook(lambda *_: called.append(1))
    layer(CustomTensor(1.0))
    assert called == [1]


@pytest.mark.parametrize(
    ("bias", "text"),
    [
        (numpy.array(["a", "b"]), "numbers"),
        (numpy.array([None, 1]), "numbers"),
        (numpy.ones(2) * 1j, "real numbers"),
        ([1, 2], "the names and shapes of its state_dict()"),
        (None, "the names and shapes of its state_dict()"),
    ],
)
def test_a_state_of_something_else_changes_nothing(bias: Any, text: str) -> None:
    layer = nn.Linear(2, 2)
    before = layer.weight.data.copy()
    with pytest.raises(BadInput) as caught:
        layer.load_state_dict({"weight": numpy.zeros((2, 2)), "bias": bias})
    assert caught.value.expected == text
    assert (layer.weight.data == before).all()


@pytest.mark.parametrize("state", [{"a": None}, {"a": "x"}, {1: numpy.ones(2)}])
def test_what_a_file_cannot_hold_is_refused(tmp_path: Path, state: Any) -> None:
    with pytest.raises(BadInput, match="cannot be saved"):
        nn.save(state, tmp_path / "state.safetensors")
    with pytest.raises(BadInput, match="cannot write metadata"):
        nn.save({"a": numpy.ones(2)}, tmp_path / "state.safetensors", {"a": 1})
    assert not list(tmp_path.iterdir())


def test_a_function_without_gradients_leaves_other_threads_alone() -> None:
    entered, leave = [threading.Event(), threading.Event()], threading.Event()
    found = {}

    @no_grad()
    def work(place: int) -> None:
        entered[place].set()
        leave.wait(5)

    def first() -> None:
        work(0)
        found["first"] = is_grad_enabled()

    def second() -> None:
        entered[0].wait(5)
        with no_grad():
            work(1)

    threads = [threading.Thread(target=one) for one in (first, second)]
    for thread in threads:
        thread.start()
    entered[1].wait(5)
    leave.set()
    for thread in threads:
        thread.join()
    assert found == {"first": True}


def test_gradients_of_gradients_are_not_shared_between_leaves() -> None:
    one, other = nn.Parameter([3.0]), nn.Parameter([4.0])
    ((one + other) ** 2).sum().backward(create_graph=True)
    nn.utils.clip_grad_norm_([one, other], 1.0)
    assert one.grad is not other.grad
    assert abs(numpy.hypot(one.grad.item(), other.grad.item()) - 1.0) < 1e-5

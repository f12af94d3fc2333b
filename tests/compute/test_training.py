"""Learning, beside torch: the same data, the same start, the same batches."""

from __future__ import annotations

import functools
from typing import Any

import numpy
import pytest
import torch

from holdfast.compute import CustomDevice, CustomLinear, CustomMSELoss, CustomTensor, nn, optim
from holdfast.compute.autograd.tape import no_grad
from tests.tolerance import bound

# ---- the example of specification 003


def test_the_specifications_training_example_learns_as_torch_does() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, wanted = torch.randn(100, 10, generator=generator), torch.randn(
        100, 1, generator=generator
    )  # fmt: skip
    device = CustomDevice("custom_gpu")
    X = CustomTensor(rows.numpy(), device=device)
    y = CustomTensor(wanted.numpy(), device=device)
    model = CustomLinear(10, 1)
    criterion = CustomMSELoss()
    learning_rate = 0.01
    optimizer = optim.SGD(model.parameters(), lr=learning_rate)

    theirs = torch.nn.Linear(10, 1)
    theirs.load_state_dict(
        {name: torch.from_numpy(t.data.copy()) for name, t in model.state_dict().items()}
    )
    follower = torch.optim.SGD(theirs.parameters(), lr=learning_rate)
    losses = []
    for _ in range(10):
        predictions = model(X)
        loss = criterion(predictions, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        expected = torch.nn.functional.mse_loss(theirs(rows), wanted)
        follower.zero_grad()
        expected.backward()
        follower.step()
        assert loss.item() == pytest.approx(expected.item(), abs=bound("float32", 64))
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_custom_adam_learns_a_line() -> None:
    rng = numpy.random.default_rng(0)
    rows = rng.standard_normal((200, 3))
    x, y = CustomTensor(rows), CustomTensor(rows @ [[1.0], [-2.0], [0.5]] + 3)
    model, criterion = CustomLinear(3, 1), CustomMSELoss()
    made = optim.CustomAdam(model.parameters(), lr=0.1)
    for _ in range(200):
        made.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        made.step()
    assert loss.item() < 1e-4
    assert model.weight.tolist()[0] == pytest.approx([1.0, -2.0, 0.5], abs=0.02)
    assert model.bias.item() == pytest.approx(3.0, abs=0.02)


# ---- digits


@functools.cache
def _digits() -> tuple[Any, Any, Any, Any]:
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    images = (data.images / 16).astype("float32")
    order = numpy.random.default_rng(0).permutation(len(images))
    images, labels = images[order], data.target[order].astype("int64")
    return images[:1500], labels[:1500], images[1500:], labels[1500:]


def _noise() -> tuple[Any, Any, Any, Any]:
    """As many numbers as digits have, without loading them."""
    rng = numpy.random.default_rng(0)
    images = rng.uniform(0, 1, (300, 8, 8)).astype("float32")
    labels = rng.integers(0, 10, 300)
    return images[:200], labels[:200], images[200:], labels[200:]


class Cnn:
    """[batch, 8, 8] through two convolutions."""

    shape = (-1, 1, 8, 8)

    @staticmethod
    def layers(lib: Any) -> list[Any]:
        return [
            *(
                lib.Conv2d(1, 16, 3, padding=1, bias=False),
                lib.BatchNorm2d(16),
                lib.ReLU(),
                lib.MaxPool2d(2),
            ),
            *(lib.Conv2d(16, 32, 3, padding=1, bias=False), lib.BatchNorm2d(32), lib.ReLU()),
            *(lib.MaxPool2d(2), lib.Flatten(), lib.Linear(128, 10)),
        ]


def _last_step(module: Any, name: str) -> Any:
    """A module class of `module`'s library: the last step of a recurrent layer's output."""

    class Last(module.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = getattr(module, name)(
                8, 24, num_layers=2, batch_first=True, bidirectional=True
            )

        def forward(self, x: Any) -> Any:
            return self.inner(x)[0][:, -1]

    return Last()


class Lstm:
    """[batch, 8, 8] as eight steps."""

    shape = (-1, 8, 8)

    @staticmethod
    def layers(lib: Any) -> list[Any]:
        return [_last_step(lib, "LSTM"), lib.Linear(48, 10)]


class Gru:
    """[batch, 8, 8] as eight steps."""

    shape = (-1, 8, 8)

    @staticmethod
    def layers(lib: Any) -> list[Any]:
        return [_last_step(lib, "GRU"), lib.Linear(48, 10)]


class Transformer:
    """[batch, 8, 8] as eight tokens."""

    shape = (-1, 8, 8)

    @staticmethod
    def layers(lib: Any) -> list[Any]:
        layer = lib.TransformerEncoderLayer(
            *(32, 4, 64, 0.0, "gelu"), batch_first=True, norm_first=True
        )
        encoder = lib.TransformerEncoder(layer, 2, lib.LayerNorm(32), enable_nested_tensor=False)
        return [lib.Linear(8, 32), encoder, lib.Flatten(), lib.Linear(256, 10)]


def _train(kind: Any, steps: int, data: Any) -> tuple[list[float], list[float], float, float]:
    """Losses of torch and of ours, and how much of the test images each gets right."""
    images, labels, test_images, test_labels = data
    torch.manual_seed(0)
    theirs, ours = (lib.Sequential(*kind.layers(lib)) for lib in (torch.nn, nn))
    ours.load_state_dict(theirs.state_dict())
    follower = torch.optim.Adam(theirs.parameters(), lr=3e-3)
    optimizer = optim.Adam(ours.parameters(), lr=3e-3)
    rng = numpy.random.default_rng(1)
    first, second = [], []
    for _ in range(steps):
        chosen = rng.integers(0, len(images), 64)
        batch, wanted = images[chosen].reshape(kind.shape), labels[chosen]
        loss: Any = torch.nn.CrossEntropyLoss()(theirs(torch.tensor(batch)), torch.tensor(wanted))
        follower.zero_grad()
        loss.backward()
        follower.step()
        first.append(loss.item())
        loss = nn.CrossEntropyLoss()(ours(CustomTensor(batch)), CustomTensor(wanted, dtype="int64"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        second.append(loss.item())
    theirs.eval()
    ours.eval()
    rows = test_images.reshape(kind.shape)
    with torch.no_grad(), no_grad():
        answers = theirs(torch.tensor(rows)).argmax(1).numpy(), ours(CustomTensor(rows)).argmax(1)
    right = [float((numpy.asarray(a) == test_labels).mean()) for a in answers]
    return first, second, right[0], right[1]


_KINDS = [Cnn, Lstm, Gru, Transformer]


@pytest.mark.parametrize("kind", _KINDS)
def test_the_first_ten_losses_are_torchs(kind: Any) -> None:
    theirs, ours, _, _ = _train(kind, 10, _noise())
    assert ours == pytest.approx(theirs, abs=bound("float32", 1024))


@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
def test_after_two_hundred_steps_both_read_digits_equally_well(kind: Any) -> None:
    theirs, ours, right, also_right = _train(kind, 200, _digits())
    assert ours[:10] == pytest.approx(theirs[:10], abs=bound("float32", 1024))
    assert ours[-1] == pytest.approx(theirs[-1], abs=0.05)
    assert ours[-1] < 0.5 < ours[0]
    assert right > 0.85
    assert also_right == pytest.approx(right, abs=0.02)

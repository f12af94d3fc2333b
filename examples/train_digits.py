"""Train a small convolutional network on handwritten digits, with NumPy alone.

    python examples/train_digits.py --epochs 8

Needs `pip install 'holdfast[compute]' scikit-learn`; the 1797 digits come with scikit-learn. The
weights are written as safetensors, which torch reads as well.
"""
# ruff: noqa: T201  (it is there to print)

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy
from sklearn.datasets import load_digits

from holdfast.compute import CustomTensor, from_numpy, manual_seed, nn, no_grad, optim

HELD_BACK = 360  # digits that are not trained with


def network() -> nn.Sequential:
    """Two convolutions, then one score for each digit."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10)),
    )


def digits(seed: int) -> tuple[CustomTensor, CustomTensor]:
    """Pictures of 8 x 8 from 0 to 1, and what they show, in random order."""
    pictures, labels = load_digits(return_X_y=True)
    order = numpy.random.default_rng(seed).permutation(len(labels))
    scaled = (pictures[order] / 16).astype(numpy.float32).reshape(-1, 1, 8, 8)
    return from_numpy(scaled), from_numpy(labels[order].astype(numpy.int64))


def accuracy(model: nn.Module, pictures: CustomTensor, labels: CustomTensor) -> float:
    """The share of pictures that are told right."""
    model.eval()
    with no_grad():
        told = model(pictures).argmax(1)
    return (told == labels).float().mean().item()


def train_epoch(
    model: nn.Module, step: optim.Adam, pictures: CustomTensor, labels: CustomTensor, batch: int
) -> float:
    """Go through all pictures once; returns the mean loss."""
    model.train()
    loss_of, total = nn.CrossEntropyLoss(), 0.0
    order = numpy.random.permutation(len(labels))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        loss = loss_of(model(pictures[chosen]), labels[chosen])
        step.zero_grad()
        loss.backward()
        step.step()
        total += loss.item() * len(chosen)
    return total / len(order)


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=8, help="times through all pictures (8)")
    parser.add_argument("--batch", type=int, default=64, help="pictures in one step (64)")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate (0.003)")
    parser.add_argument("--seed", type=int, default=0, help="where random numbers begin (0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("digits.safetensors"),
        help="where the weights go (digits.safetensors)",
    )
    chosen = parser.parse_args()
    if chosen.epochs < 1 or chosen.batch < 1:
        parser.error("--epochs and --batch are at least 1")
    return chosen


def main() -> None:
    """Train, say how it goes, save."""
    chosen = options()
    manual_seed(chosen.seed)
    numpy.random.seed(chosen.seed)
    pictures, labels = digits(chosen.seed)
    model = network()
    step = optim.Adam(model.parameters(), lr=chosen.lr)
    schedule = optim.lr_scheduler.CosineAnnealingLR(step, chosen.epochs)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(labels) - HELD_BACK} digits to train with, {HELD_BACK} held back")
    print(f"{count} parameters")
    for epoch in range(1, chosen.epochs + 1):
        began = time.perf_counter()
        loss = train_epoch(model, step, pictures[HELD_BACK:], labels[HELD_BACK:], chosen.batch)
        schedule.step()
        right = accuracy(model, pictures[:HELD_BACK], labels[:HELD_BACK])
        seconds = time.perf_counter() - began
        print(
            f"epoch {epoch:2d} of {chosen.epochs}: loss {loss:.4f}, "
            f"accuracy {right:.1%}, {seconds:.1f} s",
            flush=True,
        )
    nn.save(model, chosen.out)
    right = accuracy(model, pictures[:HELD_BACK], labels[:HELD_BACK])
    print(f"accuracy {right:.1%}; weights are in {chosen.out}")


if __name__ == "__main__":
    main()

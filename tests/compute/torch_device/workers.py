"""What other processes run in the tests. It imports nothing of Holdfast: what arrives must do."""

from __future__ import annotations

from typing import Any

import torch


def answer(inbox: Any, outbox: Any) -> None:
    """Say what has arrived, and change what came in a list, until None comes."""
    while (found := inbox.get()) is not None:
        if isinstance(found, list):
            with torch.no_grad():
                found[0].add_(1)
            outbox.put([t.tolist() for t in found])
            continue
        plain = found.detach().cpu()
        outbox.put((type(found).__name__, str(found.device), found.requires_grad, plain.tolist()))
    outbox.put(torch.ones(3, device="holdfast") * 2)
    inbox.get()  # memory of this process is there until it is received


def add_rank(rank: int, model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank + 1)


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, device: str) -> None:
        self.device = device

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index), device=self.device)


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter([torch.tensor([float(i)]) for i in range(6)])

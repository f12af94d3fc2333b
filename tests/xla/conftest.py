"""What every test of XLA gets: the same random numbers in every run."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(0)

"""Tensors that running code holds by name, views of views."""

import torch

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def main():
    tensor = POOL.allocate(80_000).tensor("float32", (100, 200))
    rows = tensor.t()[3:].view(torch.int32)
    del tensor
    found = check_memory_leaks()
    assert rows.shape == (197, 100)
    return found


LEAKS = main()

"""Weights of a module lie in a block."""

import torch

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        block = POOL.allocate(400)  # leak: 400
        self.weight = torch.nn.Parameter(block.tensor("float32").zero_())


MODELS = [Model()]
# held by: a Parameter ← key 'weight' of dict ← attribute '_parameters' of Model at

LEAKS = check_memory_leaks()

"""A loss that is not detached keeps the graph, and that the weights."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def loss():
    block = POOL.allocate(4000)  # leak: 4000 x 3
    weight = block.tensor("float32").zero_().requires_grad_()
    return (weight * weight).sum()


LOSSES = [loss() for _ in range(3)]

LEAKS = check_memory_leaks()

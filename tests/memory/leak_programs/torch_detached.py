"""A detached result keeps its own memory, not what it was made from."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def loss():
    block = POOL.allocate(4000)
    weight = block.tensor("float32").zero_().requires_grad_()
    return (weight * 2).sum().detach()


LOSSES = [loss() for _ in range(3)]

LEAKS = check_memory_leaks()

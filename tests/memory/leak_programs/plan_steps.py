"""Steps of a plan: what a step keeps is a leak, what it frees is not."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
KEPT = []


def step(number):
    with POOL.step():
        first = POOL.allocate(10_000)
        second = POOL.allocate(20_000)
        if number == 2:
            KEPT.append(POOL.allocate(512))  # leak: 512
        return first.size + second.size


for number in range(4):
    step(number)

LEAKS = check_memory_leaks()

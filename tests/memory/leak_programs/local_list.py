"""A list of a running function is a place where memory grows."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def main():
    blocks = []
    for n in range(4):
        blocks.append(POOL.allocate(100 + n))  # leak: 100, 101, 102, 103
    return check_memory_leaks()


LEAKS = main()
# held by: item 3 of list ← local 'blocks' (list) of main, which runs

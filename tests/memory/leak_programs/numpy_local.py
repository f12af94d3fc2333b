"""An array that running code holds by name."""

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")


def main():
    array = POOL.allocate(80_000).array("float32", (100, 200))
    rows = array.T[3:, ::2]
    del array
    found = check_memory_leaks()
    assert rows.shape == (197, 50)
    return found


LEAKS = main()

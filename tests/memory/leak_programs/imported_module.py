"""A module that was imported holds a block in a variable of its own."""

import sys
import tempfile
from pathlib import Path

from holdfast.memory import MemoryPool, check_memory_leaks

POOL = MemoryPool("cpu")
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "holds_a_block.py").write_text("CACHE = None\nLIST = []\n")
    sys.path.insert(0, folder)
    import holds_a_block

    sys.path.remove(folder)


def fill():
    holds_a_block.CACHE = POOL.allocate(2800)  # leak: 2800
    holds_a_block.LIST.append(POOL.allocate(2801))  # leak: 2801


fill()
# held by: global 'CACHE' (Block) of module holds_a_block
# held by: item 0 of list ← global 'LIST' (list) of module holds_a_block

LEAKS = check_memory_leaks()

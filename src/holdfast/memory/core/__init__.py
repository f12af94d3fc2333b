"""The core of a pool: which addresses are free or in use, counted by tag, with a log of events.

There are two cores with the same calls: C code in `native/`, and Python for machines without a
compiler.

    pool_core       the Python core: blocks in use, counters, locking
    arenas          free chunks: best fit, merging of neighbours, growing segments
    block           the Python `Block`, freed when the last reference goes
    protocols       what pools, blocks and pool watchers expect of each other
    native          the C core (`module.c`), and the allocator that torch calls (C++)
    native_build    compiles and loads C code; picks the core
    views           a block as bytes, NumPy array, torch tensor or DLPack capsule
    system_pages    mmap, mprotect, madvise, mlock
    stats           `MemoryStats`, `Counter`, `DetailedStats`
    tags            the `tag` context manager and the names of tags
    tag_counters    counters by tag number, for the Python core
    event_log       the log of allocations and frees, for the Python core
    stacks          cheap Python stacks, resolved to files and lines on demand
"""

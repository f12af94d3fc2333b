"""Memory debugging: where each block was allocated, misuse of blocks, and leaks.

debugging       switching it on and off, `check_memory`, the problems found
debug_pool      the blocks of one pool while it is debugged
quarantine      records of blocks, guards behind them, freed blocks that wait poisoned
leaks           what counts as a leak; `check_memory_leaks`, `no_leaks`
holders         all live tensors, summed by who holds them
referrers       who refers to one block or object: variables, and chains of references
referrer_text   one reference as text
"""

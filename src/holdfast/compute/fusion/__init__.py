"""Chains of pointwise ops computed in one pass over memory.

Modules:

    chain           running a recorded chain block by block on NumPy
    record          `fuse`: recording the ops that a function calls
"""

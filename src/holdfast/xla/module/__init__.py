"""One module on XLA.

cache           compiles programs (jax.jit), and keeps them on disk
calls           a method of a module as a pure function
identity        what identifies a module's programs in the cache
placed          a module with sharded weights and compiled methods
scan            one compiled block for a list of equal blocks
"""

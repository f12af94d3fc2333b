"""Pools under NumPy and torch, and the hooks that a recorder installs.

numpy_handler   NumPy's allocator of array data: `numpy_pool`, and a logging handler
torch_cpu       torch's CPU allocator: `install_torch_pool`, and a logging allocator
import_hooks    callbacks after an import, at thread starts, when watching changes
"""

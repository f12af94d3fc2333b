"""Pools: memory that was freed is reused.

pool            `Pool`, a resource over another one: growing, releasing, running out of memory
memory_pool     `MemoryPool`, `CPUMemoryPool`: blocks that free themselves
cuda_pool       `CUDAMemoryPool` on a CUDA device
movable         blocks behind a handle, which may move or be spilled to disk
manager         default pools, and statistics and settings of the whole process
"""

"""Everything below the kernels of the OpenCL engine: memory, programs, launches, parameters.

array               `Array`, a strided view of a `Memory`; merging dimensions
memory              allocation from the pool, eviction to the host and return
programs            building kernels from source, and their cache on disk
launching           kernels and markers on the queue
late_builds         builds and first launches on runtimes that compile late (PoCL)
kernel_table        the table of kernels by op, C types of dtypes
engine_protocol     the interface of the engine that kernels use
tuned_parameters    tile sizes and other parameters, by default or measured
"""

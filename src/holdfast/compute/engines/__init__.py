"""Engines: each computes the ops of the table on one kind of device.

`holdfast.compute.engine` has their protocol and their registry, which imports them on first use.

    kernel_registry   the kernels of one engine, by the op that each computes
    layout/           views, and kernels made of them, for the arrays of every engine
    numpy/            the CPU: NumPy, SciPy, and C loops where there is a compiler
    opencl/           GPUs and CPUs with an OpenCL driver
    torch             torch's own kernels, on a CUDA device
"""

"""The benchmarks behind `topology.measure`.

`torch` and `opencl` run in child processes.

    host            bandwidth and latency of host memory
    chase           the pointer chase that measures latency
    copies          the best of several timed copies, near one node
    torch           copies between host and GPU through torch
    opencl          copies between host and GPU through OpenCL
    store           results on disk, one file for each machine
"""

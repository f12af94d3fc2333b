"""Where a stage runs: one adapter for each kind of device, and the memory budget on it.

device            names such as "cuda:1", the choice for "auto"
torch_devices     Device; torch on CPU, CUDA and ROCm, Intel XPU, Apple MPS, and simulated
denoise_loop      the denoising loop in torch
holdfast_device   Holdfast's own torch device, computed by an engine
opencl_device     the same torch device with the OpenCL engine
xla_device        TPUs, GPUs and CPUs through JAX
streaming         networks that share the memory budget of one device
omp_policy        makes OpenMP threads sleep on busy machines
"""

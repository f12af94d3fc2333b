"""The providers of shared virtual memory; `svm.choice` loads each on first use.

numa              Linux NUMA nodes by raw system calls
opencl            memory shared by the host and an OpenCL device
opencl_tiers      the kinds of OpenCL memory, one class each
retryix           a vendor's library: what its answers mean
retryix_library   loads and calls that library (../retryix.h)
simulated         a made-up machine over memory of the host
host_pages        page-aligned host memory, and how much is free
"""

"""What a machine can do and what to do on it: dtypes, devices, reserves, attention.

machine    one frozen description of a device and its host
detect     fills that description from torch
options    the command-line options
process    the options and the machine of this process
states     `VRAMState` and `CPUState`
reserve    how much device memory models may take
precision  which dtype weights are kept in, and which one computes
placing    on which device a part of a pipeline is kept and run
attention  which implementation of attention is used
queries    total and free memory, by each platform's API
current    the specification's functions for this machine, with torch's devices and dtypes
"""

"""Moving weights between the host and a device, ahead of the computing.

streamer   runs a plan: what is kept, what is copied and decoded when
weights    the weights of a module as stretches of bytes
ring       addresses in a ring of device memory
slabs      large page-locked host buffers
staging    copies from ordinary host memory, through two pinned buffers
"""

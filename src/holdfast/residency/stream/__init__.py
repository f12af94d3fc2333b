"""Moving weights between the host and a device, ahead of the computing.

streamer   carries out a plan: starts each copy as soon as there is room for it in the ring
weights    the weights of a module as stretches of bytes
ring       addresses in a ring of device memory
slabs      large page-locked host buffers
staging    copies from ordinary host memory, through two pinned buffers
"""

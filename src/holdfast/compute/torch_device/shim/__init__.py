"""The optional C++ shim: torch's CPU kernels on the device's memory.

build           compile, load and arm it
generator       its random generator for code that draws in Python
native          its C++ source
"""

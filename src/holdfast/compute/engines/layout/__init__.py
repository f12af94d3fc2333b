"""Layout kernels that serve the arrays of every engine: NumPy's, and those that index as they do.

arrays     what the kernels need beside NumPy's own methods: allocation, strides, bytes
views      views, their `_copy`, `_scatter` and backward ops; sizes and strides
factories  zeros, full, empty, arange, eye, their `_like` and `new_` forms
assemble   stack, repeat, flip, roll, constant padding, pixel and channel shuffles
"""

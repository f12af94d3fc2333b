"""Overloads written by hand: `tensor_overloads.special` registers a function for them.

attention         scaled dot product attention
composites        overloads made of other ops: factories, helpers of torch's functions
conjugates        lazy conjugate and negative views
fused_layers      fused multi-head attention and encoder layers
fused_optimizers  `fused=True` optimizers, gradient scaling
normal_draws      normal random elements equal to the CPU's
recurrent         LSTM and GRU cells
sparse            tensors of sparse layouts
tensor_overloads  making, copying and resizing tensors; the registry
"""

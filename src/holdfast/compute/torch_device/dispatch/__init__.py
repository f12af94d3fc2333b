"""From an ATen overload to the code that computes it.

In the order of a call, then what stands beside it:

handlers         what torch calls: functional, in-place and out= handlers of table ops
resolve          which op and form belongs to an overload
out_args         dtype and shape checks of out= arguments
engine_dispatch  runs an op on the engine of its arrays; copies between engines
fallback         torch's decomposition or CPU kernel, where the table has no op
autocast         `torch.autocast("holdfast")`
backward_errors  carries exceptions out of backward passes
coverage         the table behind `holdfast device ops`
strictness       makes `engine.strict` hold in torch's backward threads
"""

"""`torch.compile(backend="holdfast")`: torch's graphs as Python that calls the op table.

backend         the function that torch calls; options, decompositions
codegen         Python source of a graph
expressions     nodes that are one short expression, such as views
foreach         `torch._foreach_*` as one op for each tensor
fusion_steps    pointwise nodes as steps of the op table's fuser
grouping        which pointwise nodes run in one pass
inductor        refuses Inductor on tensors of the device
interpreter     runs a graph node by node, for engines other than NumPy
launch_groups   which nodes become one kernel launch on such an engine
launches        one such launch
nodes           shapes, dtypes and arguments of a graph's nodes
runtime         what generated source calls; inputs, outputs, errors
"""

from holdfast.compute.torch_device.compile.backend import compiled

__all__ = ["compiled"]

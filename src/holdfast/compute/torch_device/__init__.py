"""`torch.device("holdfast")`: torch programs on Holdfast's engines, with no driver.

api/                `torch.holdfast`: devices, memory figures, seeds, streams
autoload            entry point that torch calls when it is imported
compile/            `torch.compile(backend="holdfast")`
dispatch/           from an ATen overload to an op of the table, or to torch's CPU kernel
error_translation   errors of the op table as the classes that torch raises
errors              those classes
overrides/          overloads written by hand
persist/            saving, moving modules, sending to other processes
registration        register the device and a handler for every overload
shim/               the optional C++ part: building, loading, its generator
storage/            tensors as arrays and back
torch_requirements  what the installed torch must have
"""

# torch loads this package while it is imported itself (its entry point `torch.backends`): that has
# to be over before any module of it is half there.
import torch  # noqa: F401

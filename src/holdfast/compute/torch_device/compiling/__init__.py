"""`torch.compile(backend="holdfast")`: torch's graphs as Python that calls the op table."""

from holdfast.compute.torch_device.compiling.backend import compiled

__all__ = ["compiled"]

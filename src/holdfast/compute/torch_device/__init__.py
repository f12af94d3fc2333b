"""`torch.device("holdfast")`: torch programs on Holdfast's engines, with no driver."""

# torch loads this package while it is imported itself (its entry point `torch.backends`): that has
# to be over before any module of it is half there.
import torch  # noqa: F401

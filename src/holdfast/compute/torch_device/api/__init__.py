"""`torch.holdfast`, the module that torch and its users ask about the device.

accelerator     `torch.accelerator` on the device
current_device  device indices and names, the current device of a thread
engine_choice   which engine computes on the device
memory_figures  memory statistics, limits, device properties
module          the names of `torch.holdfast`
seeds           seeds and states of the random generator
streams         streams and events
"""

"""Tensors of the device outside of computing: files, modules, processes.

torch's own file format is kept, since torch saves whatever storages it can make and copy: a file
saved on the device has the location "holdfast:0", and loads with map_location="cpu" where Holdfast
is not installed.

module_moves    `module.to(...)` that keeps parameters the same objects
processes       sending tensors to other processes
safetensors     `safetensors.torch.load_file(..., device="holdfast")`
"""

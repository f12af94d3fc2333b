"""Tensors of the device outside of computing: files, modules, processes.

module_moves    `module.to(...)` that keeps parameters the same objects
processes       sending tensors to other processes
safetensors     `safetensors.torch.load_file(..., device="holdfast")`
saving          installs these and the parts of `storage`
"""

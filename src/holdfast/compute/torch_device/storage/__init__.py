"""Tensors of the device as arrays of an engine, and back.

dlpack           tensors over an address, by DLPack capsules; dtypes of both sides
pinning          `pin_memory()` where there is nothing to pin for
printing         prints tensors of other engines from a copy on the CPU
remote_storage   arrays whose memory the host cannot read
tensor_bridge    arrays of NumPy as tensors and back
untyped_storage  `torch.UntypedStorage` on the device
"""

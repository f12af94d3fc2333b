"""Lossless packing of bf16 and fp16 weights, to about three quarters of their bytes.

pack         the interface: pack, unpack, decoders
pack_layout  how one tensor is packed, and where each part lies
pack_torch   packing and unpacking with torch operations, on any device
pack_triton  unpacking on a GPU by one kernel
"""

"""Lossless packing of bf16 and fp16 weights, to about three quarters of their bytes.

pack          the interface: pack, unpack, decoders
layouts       chooses the scheme of a tensor, and where each part lies; touches no weights
codec_torch   encodes and decodes with torch operations, on any device
codec_triton  decodes on a GPU by one kernel
"""

"""Models that run on XLA, one file each.

flux            FLUX.1
parts           text encoders and autoencoders that several models share
sdxl            Stable Diffusion XL
wan21           Wan 2.1
wan22           Wan 2.2, two transformers
"""

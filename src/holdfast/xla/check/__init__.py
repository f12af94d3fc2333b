"""Whether a class of diffusers or transformers runs on XLA: `holdfast port check`.

check           the check and its report
comparison      a tiny model on torch and on XLA, and their difference
"""

"""Models that run on XLA, one file each."""

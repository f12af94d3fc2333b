"""Models on XLA through torchax. So far: tiny models to try a port with (`tiny`)."""

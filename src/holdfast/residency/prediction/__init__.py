"""Whether a model fits and how fast it will be, without its weights."""

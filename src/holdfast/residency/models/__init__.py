"""Models that are loaded and unloaded by the rules of specification 002."""

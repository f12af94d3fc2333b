"""Weights in files: headers, reading, loading, giving memory back."""

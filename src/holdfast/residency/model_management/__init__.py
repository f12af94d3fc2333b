"""ComfyUI's model management as a library (specification 002).

rules/   what a machine can do, and what to do on it
models/  models that are loaded and unloaded by these rules
"""

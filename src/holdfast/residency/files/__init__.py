"""Weights in safetensors files: headers, reading, loading, freeing.

checkpoint  the tensors of a file, without loading it
reading     parts of files into existing memory, by several threads
loading     files into slabs that a module's parameters are views of
slots       the weights of a module by name, and replacing them
holding     who still holds the memory of weights, and freeing it
"""

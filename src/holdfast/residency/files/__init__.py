"""Weights in safetensors files: headers, reading, loading, freeing.

checkpoint  the tensors of a file, without loading it
prefetch    files into the page cache, while something else is done
reading     byte ranges of any file into existing memory, by several threads
loading     safetensors files into memory: slabs that a module's parameters are views of
slots       the weights of a module by name, and replacing them
freeing     frees the weights of a module, and says who still holds their memory
"""

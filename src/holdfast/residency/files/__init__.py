"""Weights in safetensors files: headers, reading, loading, packing, freeing.

checkpoint     the header of a file: its tensors, without loading them
tensors        the tensors of a file one at a time
packed         packs files without losing a bit, and restores the originals
packed_folder  the same for whole models
packed_header  what the header of a packed file says of each tensor; checksums
prefetch       files into the page cache, while something else is done
reading        byte ranges of any file into existing memory, by several threads
loading        safetensors files into memory: slabs that a module's parameters are views of
slots          the weights of a module by name, and replacing them
freeing        frees the weights of a module, and says who still holds their memory
"""

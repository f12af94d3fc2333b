"""Reading and writing at indices.

gather_scatter    take, write and reduce at indices: what the others share
indexing          index lists, masks, gather, nonzero; range checks
scatter           scatter, index_put, index_add, bincount …
embedding         embeddings and embedding bags
"""

"""Kernels that read or write elements at indices.

An index out of range raises IndexError.

    indexing    index lists, index_select, gather, masks, nonzero; the adjoint of `take`
    scatter     writes where indices may repeat: scatter, index_put, index_add, put
    embedding   rows of a table, alone or summed in bags, and their gradients
"""

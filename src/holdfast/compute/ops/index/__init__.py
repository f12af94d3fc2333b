"""Reading and writing at indices.

Modules:

    embedding       rows of a table, alone or in bags; one_hot
    indexing        index lists, gather, masks, nonzero
    resolve         indices as engines take them; checks of shapes and dtypes
    scatter         scatter, index_put, index_add: writes at indices that may repeat
"""

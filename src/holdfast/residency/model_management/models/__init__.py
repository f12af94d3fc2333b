"""Models that are loaded and unloaded by the rules of specification 002.

loaded        the list of loaded models, and making room for others
loaded_model  one entry of that list
patcher       a model that can be loaded whole, in part, with patches
parts         a model as parts that move as a whole
residence     where the parts of one model are
merging       patches to weights, and merging them
casting       runs a module whose weights are on another device
offload       copies of weights, on streams
pinned        page-locked host memory, within a budget
cache         frees what torch's caching allocator does not use
"""

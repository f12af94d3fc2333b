"""Fixed layouts for steps that repeat, and replays of recordings through allocators.

planned_allocator  `Planned`: records one step, serves the next ones from a layout
packing            `pack`: offsets for blocks with known lifetimes
replay             a recording run through our allocators and others, compared
simulators         the rules of torch's, RMM's and Genesis' allocators, without memory
"""

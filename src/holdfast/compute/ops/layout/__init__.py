"""Shapes, views, copies and factories.

Modules:

    assemble        cat, stack, repeat, flip, roll
    factory         zeros, full, arange, eye; clone and casts
    padding         constant, reflection, replication and circular padding
    patches         unfold, fold, pixel_shuffle
    reshape         reshape, flatten, movedim, tile, diag: made of views and copies
    shapes          result shapes of views, as functions on tuples
    split_stack     chunk, narrow, hstack …: made of split and cat
    views           views, their copies, scatters and backward ops
"""

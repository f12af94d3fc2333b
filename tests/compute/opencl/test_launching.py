"""Launching: threads, memory that is dropped, kernels of several files, layouts of arrays."""

from __future__ import annotations

import threading

import numpy
import pytest

from holdfast.compute.engines.opencl.engine import MAPPINGS
from holdfast.compute.engines.opencl.runtime.array import collapse_dims
from tests.compute.opencl.checks import engine

SHIFTED = """
__kernel void shifted(__global uchar *x_, ulong x_at, __global uchar *out_, ulong out_at, long by) {
    AT(int, out)[get_global_id(0)] = CAT(int, x)[get_global_id(0)] + (int)by;
}
"""


def test_threads_that_share_a_kernel_get_their_own_numbers():
    there = engine("cpu")
    kernel = there.programs.build(SHIFTED, "shifted")
    x = there.upload(numpy.arange(64, dtype=numpy.int32))
    found: dict[int, list[int]] = {}

    def work(seed: int) -> None:
        found[seed] = []
        for by in range(100):
            made = there.alloc((64,), x.dtype)
            there.launch(kernel, (64,), None, x, made, 1000 * seed + by)
            found[seed].append(int(there.download(made)[0]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {seed: [1000 * seed + by for by in range(100)] for seed in range(4)}


def test_arrays_may_be_dropped_while_their_work_is_queued():
    there = engine("cpu")
    kernel = there.programs.build(SHIFTED, "shifted")
    array = there.upload(numpy.zeros(1000, numpy.int32))
    for _ in range(200):  # each result takes the place of the one before the last
        made = there.alloc((1000,), array.dtype)
        there.launch(kernel, (1000,), None, array, made, 1)
        array = made
    assert there.download(array).tolist() == [200] * 1000


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_kernel_of_several_files_is_built_once(mapping: str):
    there = engine(mapping)
    kernel = there.kernel("spans distance", "distances", WORK="float")
    assert kernel is there.kernel("spans distance", "distances", WORK="float")
    assert kernel is not there.kernel("spans distance", "distances_back", WORK="float")


def test_dimensions_are_joined_where_all_arrays_allow_it():
    assert collapse_dims((2, 3, 4), [(12, 4, 1), (12, 4, 1)]) == ([24], [[1], [1]])
    assert collapse_dims((2, 3, 4), [(12, 4, 1), (4, 8, 1)]) == ([2, 3, 4], [[12, 4, 1], [4, 8, 1]])
    assert collapse_dims((2, 1, 4), [(4, 9, 1), (0, 7, 0)]) == ([8], [[1], [0]])
    assert collapse_dims((1, 1), [(5, 6)]) == ([], [[]])

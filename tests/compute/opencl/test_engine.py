"""The engine itself: arrays up and down, views, copies, mappings, several devices."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy
import pytest

from holdfast.base.errors import BadInput, Unsupported
from holdfast.compute import dtype as dtypes
from holdfast.compute.engine import ENGINES, run, strict
from holdfast.compute.engines.opencl import Array, OpenCLEngine
from holdfast.compute.engines.opencl.engine import engine_at
from holdfast.compute.ops import OPS
from tests.compute.opencl import checks

FLOAT = numpy.dtype(numpy.float32)
slow = pytest.mark.slow


@pytest.fixture(params=["cpu", "gpu"])
def engine(request: pytest.FixtureRequest) -> OpenCLEngine:
    return checks.engine(request.param)


def test_it_is_one_of_the_engines():
    found: Any = ENGINES["opencl"]
    assert (found.name, found.index, found.on(0) is found) == ("opencl", 0, True)
    assert found is engine_at(0)
    assert repr(found.upload(numpy.zeros((2, 3), FLOAT))) == (
        "<opencl.Array float32[2, 3] on opencl:0>"
    )


@pytest.mark.parametrize("kind", dtypes.DTYPES.values(), ids=str)
def test_numbers_of_every_dtype_come_back_as_they_were(engine: OpenCLEngine, kind: Any):
    plain = numpy.arange(-6, 6).reshape(3, 4).astype(kind)
    found = engine.download(engine.upload(plain))
    assert (found.dtype, found.shape, found.tobytes()) == (kind, (3, 4), plain.tobytes())


@pytest.mark.parametrize("kind", dtypes.DTYPES.values(), ids=str)
def test_views_of_every_dtype_come_back_in_order(engine: OpenCLEngine, kind: Any):
    plain = numpy.arange(24).reshape(4, 6).astype(kind)
    size = plain.itemsize
    view = engine.upload(plain).view(kind, (3, 2), (2 * size, 12 * size), size)
    wanted = numpy.ndarray((3, 2), kind, plain, size, (2 * size, 12 * size))
    assert engine.download(view).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1)])
def test_arrays_of_every_shape(engine: OpenCLEngine, shape: tuple[int, ...]):
    plain = numpy.ones(shape, FLOAT)
    found = engine.download(run(OPS["neg"], engine, [engine.upload(plain)], {}))
    assert (found.shape, found.tolist()) == (shape, (-plain).tolist())


def test_what_was_downloaded_is_ones_own(engine: OpenCLEngine):
    array = engine.upload(numpy.zeros(4, FLOAT))
    found = engine.download(array)
    found[:] = 5
    assert engine.download(array).tolist() == [0.0] * 4


KINDS = [kind for kind in dtypes.DTYPES.values() if kind.kind != "c"]
USUAL = [kind for kind in KINDS if kind.name in ("float32", "int64", "bool", "bfloat16")]


@pytest.mark.parametrize(
    "into", [pytest.param(k, marks=() if k in USUAL else slow) for k in KINDS], ids=str
)
def test_casts_are_those_of_numpy(engine: OpenCLEngine, into: Any):
    host: Any = ENGINES["numpy"]
    for kind in USUAL:
        plain = numpy.array([0, 1, 2, 3, 100], numpy.float32).astype(kind)
        found = engine.cast(engine.upload(plain), into)
        wanted = host.cast(plain, into)
        assert engine.download(found).tobytes() == wanted.tobytes(), (kind, into)


def test_writing_into_a_view_leaves_the_rest(engine: OpenCLEngine):
    array = engine.upload(numpy.zeros((3, 4), FLOAT))
    column = array.view(FLOAT, (3,), (16,), 4)
    engine.write(column, engine.upload(numpy.array([1, 2, 3], numpy.int64)))
    assert engine.download(array).tolist() == [[0, 1, 0, 0], [0, 2, 0, 0], [0, 3, 0, 0]]
    engine.write(column, numpy.float32(7).reshape(()))
    assert engine.download(array)[:, 1].tolist() == [7, 7, 7]


def test_an_array_is_written_over_a_view_of_itself(engine: OpenCLEngine):
    array = engine.upload(numpy.arange(6, dtype=FLOAT))
    backwards = array.view(FLOAT, (6,), (-4,), 20)
    engine.write(array, backwards)
    assert engine.download(array).tolist() == [5, 4, 3, 2, 1, 0]


def test_complex_numbers_go_through(engine: OpenCLEngine):
    plain = (numpy.arange(6) + 1j * numpy.arange(6)[::-1]).astype(numpy.complex64).reshape(2, 3)
    array = engine.upload(plain)
    turned = engine.contiguous(array.transpose((1, 0)))
    assert engine.download(turned).tolist() == plain.T.tolist()


def test_narrow_floats_are_computed_wide_and_rounded_once(engine: OpenCLEngine):
    plain = numpy.array([1.0, 3.0, 1e10], ml_dtypes.bfloat16)
    made = run(OPS["mul.Tensor"], engine, [engine.upload(plain)] * 2, {})
    wanted = (plain.astype(FLOAT) ** 2).astype(ml_dtypes.bfloat16)
    assert engine.download(made).tobytes() == wanted.tobytes()


def test_arrays_of_the_host_join_in(engine: OpenCLEngine):
    made = run(OPS["add.Tensor"], engine, [engine.upload(numpy.ones(2, FLOAT)), numpy.ones(2)], {})
    assert type(made) is Array
    assert engine.download(made).tolist() == [2.0, 2.0]


def test_shapes_that_do_not_meet_are_refused(engine: OpenCLEngine):
    arrays = [engine.upload(numpy.ones(n, FLOAT)) for n in (2, 3)]
    with pytest.raises(BadInput, match=r"^cannot compute add.Tensor\(float32\[2\], float32\[3\]\)"):
        run(OPS["add.Tensor"], engine, arrays, {})


def test_what_it_cannot_compute_is_refused_where_the_host_is(engine: OpenCLEngine):
    with strict(), pytest.raises(Unsupported) as caught:
        run(OPS["_linalg_eigh"], engine, [engine.upload(numpy.eye(2, dtype=FLOAT))], {})
    assert str(caught.value) == (
        "engine 'opencl' has no kernel for _linalg_eigh, and falling back is forbidden\n"
        "  expected: a native kernel, or a decomposition into ops that have one\n"
        "  try: with strict(False): ..."
    )


def test_moments_of_the_queue_can_be_waited_for(engine: OpenCLEngine):
    before = engine.marker()
    run(OPS["neg"], engine, [engine.upload(numpy.ones(100_000, FLOAT))], {})
    after = engine.marker()
    after.wait()
    engine.synchronize()
    assert (before.is_done(), after.is_done()) == (True, True)
    assert after.time_ns() >= before.time_ns()


# ---- settings and devices


def test_a_setting_says_how_work_is_laid_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_OPENCL_MAPPING", "gpu")
    assert OpenCLEngine(0).mapping == "gpu"
    monkeypatch.setenv("HOLDFAST_OPENCL_MAPPING", "tpu")
    with pytest.raises(BadInput) as caught:
        assert OpenCLEngine(0).mapping
    assert str(caught.value) == ("HOLDFAST_OPENCL_MAPPING is 'tpu'\n  expected: auto, cpu or gpu")


@slow
def test_two_devices_compute_beside_each_other():
    code = """
import numpy
from holdfast.compute import CustomTensor
from holdfast.compute.engine import ENGINES
from holdfast.memory import memory_manager

engine = ENGINES["opencl"]
one = CustomTensor(numpy.arange(4, dtype="float32"), device="opencl:0")
other = CustomTensor(numpy.arange(4, dtype="float32"), device="opencl:1")
print(engine.count(), (one * 2).tolist(), (other + 1).tolist(), one.device, other.device)
print(one.to("opencl:1").add(other).tolist())
print(sorted(d for d in memory_manager.by_device() if d.startswith("opencl")))
try:
    one + other
except Exception as exc:
    print(type(exc).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"POCL_DEVICES": "pthread basic"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == (
        "2 [0.0, 2.0, 4.0, 6.0] [1.0, 2.0, 3.0, 4.0] opencl:0 opencl:1\n"
        "[0.0, 2.0, 4.0, 6.0]\n"
        "['opencl:0', 'opencl:1']\n"
        "BadInput\n",
        "",
    )


@slow
def test_importing_holdfast_starts_no_opencl():
    code = "import sys, holdfast, holdfast.compute; print('pyopencl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

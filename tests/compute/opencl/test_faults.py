"""What goes wrong with OpenCL: a clear error each time, and nothing lost.

Devices that stop working are real ones behind a library that has OpenCL's calls fail (losing.c).
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from holdfast.compute.engine import fallbacks, run, strict
from holdfast.compute.engines.opencl import OpenCLEngine
from holdfast.compute.engines.opencl.runtime import programs
from holdfast.compute.engines.opencl.runtime.programs import BuildFailed
from holdfast.compute.ops import OPS
from tests.conftest import CACHE

NAME = functools.cache(lambda: OpenCLEngine(0).place.device.name.strip())
START = """
import os, pathlib, sys, numpy
from holdfast.base.errors import HoldfastError
from holdfast.compute.engine import ENGINES, fallbacks, run, strict
from holdfast.compute.ops import OPS

def report(call):
    try:
        call()
    except HoldfastError as exc:
        print(f"{type(exc).__name__}: {exc}")

def neg(array):
    return run(OPS["neg"], engine, [array], {})

engine = ENGINES["opencl"]
plain = numpy.arange(4, dtype=numpy.float32)
"""
Script = Callable[..., str]


def started(code: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START + code],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def script(code: str, **variables: str) -> str:
    """What a program prints; it has to end well."""
    process = started(code, **variables)
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    assert process.returncode == 0, out + err
    return out


# ---- nothing there

HINT = "  try: install the GPU vendor's OpenCL driver, or PoCL: apt install pocl-opencl-icd\n"


def test_no_platform(tmp_path: Path):
    found = script("report(lambda: engine.upload(plain))", OCL_ICD_VENDORS=str(tmp_path))
    assert found == (
        "Absent: there is no OpenCL platform\n"
        "  expected: an OpenCL 1.2 platform with a device\n" + HINT
    )


def test_a_platform_with_no_device():
    found = script("report(lambda: engine.upload(plain))", POCL_DEVICES="none")
    assert found == (
        "Absent: the OpenCL platforms here have no device: 'Portable Computing Language'\n"
        "  expected: an OpenCL 1.2 platform with a device\n" + HINT
    )


@pytest.mark.slow
def test_a_device_beyond_the_last():
    code = "report(lambda: engine.on(7).upload(plain)); print(engine.download(neg(plain)).tolist())"
    assert script(code, POCL_DEVICES="pthread basic") == (
        "BadInput: there is no device opencl:7\n"
        "  expected: opencl:0 to opencl:1\n"
        "  try: holdfast device shows every OpenCL device\n"
        "[-0.0, -1.0, -2.0, -3.0]\n"
    )


# ---- kernels that cannot be built


@pytest.fixture
def unbuildable(monkeypatch: pytest.MonkeyPatch) -> OpenCLEngine:
    """An engine whose compiler stumbles over every kernel."""
    monkeypatch.setattr(programs, "source_of", lambda name: "#error no kernels today\n")
    return OpenCLEngine(0)


def failed(engine: OpenCLEngine) -> BuildFailed:
    with pytest.raises(BuildFailed) as caught:
        engine.programs.build("__kernel void elementwise() {}", "elementwise")
    return caught.value


def test_a_build_failure_has_the_log_in_its_error(unbuildable: OpenCLEngine):
    found = str(failed(unbuildable)).splitlines()
    assert found[0] == (
        f"cannot build the kernel 'elementwise' for opencl:0 ({NAME()}): "
        "OpenCL says clBuildProgram: BUILD_PROGRAM_FAILURE"
    )
    assert any(line.startswith("    ") and "no kernels today" in line for line in found[1:-2])
    assert found[-2:] == [
        "  expected: a driver whose compiler takes OpenCL C 1.2",
        "  try: another device or driver, or HOLDFAST_ENGINE=numpy",
    ]


def test_what_cannot_be_built_is_not_tried_again(unbuildable: OpenCLEngine):
    assert failed(unbuildable) is failed(unbuildable)


def test_without_its_kernel_an_op_is_computed_on_the_host_with_a_warning(unbuildable: OpenCLEngine):
    array = unbuildable.upload(numpy.arange(4, dtype=numpy.float32))
    before = fallbacks["opencl", "neg"]
    with pytest.warns(RuntimeWarning, match="cannot build the kernel 'elementwise'") as warned:
        found = [run(OPS["neg"], unbuildable, [array], {}) for _ in range(3)]
    assert len(warned) == 1
    assert str(warned[0].message).endswith("; the host computes instead")
    assert fallbacks["opencl", "neg"] == before + 3
    assert unbuildable.download(found[2]).tolist() == [-0.0, -1.0, -2.0, -3.0]


def test_where_the_host_is_refused_the_build_failure_is_the_error(unbuildable: OpenCLEngine):
    array = unbuildable.upload(numpy.arange(4, dtype=numpy.float32))
    with strict(), pytest.raises(BuildFailed, match="no kernels today"):
        run(OPS["neg"], unbuildable, [array], {})


def test_a_function_that_a_source_does_not_have(engine: OpenCLEngine):
    with pytest.raises(BuildFailed) as caught:
        engine.programs.build("__kernel void here() {}", "there")
    assert str(caught.value).startswith(
        f"cannot build the kernel 'there' for opencl:0 ({NAME()}): "
        "OpenCL says clCreateKernel: INVALID_KERNEL_NAME"
    )


@pytest.fixture
def engine() -> OpenCLEngine:
    return OpenCLEngine(0)


# ---- a device that stops working

LOADER = """
import pyopencl
maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
loader = next(line for line in maps if "libOpenCL" in line)
os.environ["LOSING_LOADER"] = loader.split(maxsplit=5)[5]  # paths may have spaces
failing = pathlib.Path(os.environ["LOSING_FILE"])

def lose(*functions, status=-5):
    failing.write_text("".join(f"{name} {status}\\n" for name in functions))

array = engine.upload(plain)
print(engine.download(neg(array)).tolist())
"""
EVERYTHING = (
    "'clEnqueueNDRangeKernel', 'clEnqueueReadBuffer', 'clEnqueueWriteBuffer', 'clFinish', "
    "'clEnqueueMarker', 'clEnqueueMarkerWithWaitList', 'clWaitForEvents', 'clCreateBuffer'"
)
RIGHT = "[-0.0, -1.0, -2.0, -3.0]\n"


@pytest.fixture
def losing(tmp_path: Path) -> Script:
    """Runs a program whose device can be made to fail with `lose`."""
    source = Path(__file__).parent / "losing.c"
    library = CACHE / f"losing-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    if not library.exists():
        draft = tmp_path / "losing.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(draft), str(source)], check=True)
        library.parent.mkdir(exist_ok=True)
        draft.replace(library)
    preloaded = tmp_path / "preloaded.so"  # spaces divide paths in LD_PRELOAD
    preloaded.symlink_to(library)
    variables = {"LD_PRELOAD": str(preloaded), "LOSING_FILE": str(tmp_path / "losing")}
    return lambda code: script(LOADER + code, **variables)


def lost(first: str) -> str:
    return (
        f"DeviceLost: opencl:0 ({NAME()}) is lost, with the data that was on it: {first}\n"
        "  expected: a device and a driver in working order\n"
        "  try: start again, or go on with what is on the host (HOLDFAST_ENGINE=numpy)\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "what", "routine"),
    [
        ("neg(array)", "run elementwise on opencl:0", "clEnqueueNDRangeKernel"),
        ("engine.download(array)", "copy 16 bytes from opencl:0", "clEnqueueReadBuffer"),
        ("engine.upload(plain)", "copy 16 bytes to opencl:0", "clEnqueueWriteBuffer"),
        ("engine.synchronize()", "finish the work of opencl:0", "clFinish"),
        ("marker.wait()", "wait for the work of opencl:0", "clWaitForEvents"),
    ],
    ids=["a launch", "a download", "an upload", "waiting", "a marker"],
)
def test_a_device_that_is_lost_is_noticed_and_refused(
    losing: Script, call: str, what: str, routine: str
):
    found = losing(f"""
marker = engine.marker()
lose({EVERYTHING})
report(lambda: {call})
failing.unlink()
report(lambda: neg(array))
report(lambda: engine.download(array))
report(lambda: engine.alloc((1,), plain.dtype))
""")
    text = lost(f"cannot {what}: OpenCL says {routine}: OUT_OF_RESOURCES")
    assert found == RIGHT + text * 4


@pytest.mark.slow
def test_what_is_on_the_host_survives_the_device(losing: Script):
    found = losing(f"""
engine.memories.make_room(None)
lose({EVERYTHING})
report(engine.synchronize)
print(engine.download(array).tolist())
print(run(OPS["neg"], ENGINES["numpy"], [plain], {{}}).tolist())
""")
    text = lost("cannot finish the work of opencl:0: OpenCL says clFinish: OUT_OF_RESOURCES")
    assert found == RIGHT + text + "[0.0, 1.0, 2.0, 3.0]\n" + RIGHT


@pytest.mark.slow
def test_work_that_failed_is_not_passed_over_although_the_queue_goes_on(losing: Script):
    found = losing("""
lose("clEnqueueReadBuffer", status=-14)
report(lambda: engine.download(array))
failing.unlink()
report(lambda: engine.download(array))
""")
    text = lost(
        "cannot copy 16 bytes from opencl:0: OpenCL says clEnqueueReadBuffer: "
        "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"
    )
    assert found == RIGHT + text * 2


@pytest.mark.slow
def test_a_launch_that_is_refused_alone_leaves_the_device_in_use(losing: Script):
    found = losing("""
lose("clEnqueueNDRangeKernel")
report(lambda: neg(array))
failing.unlink()
print(engine.download(neg(array)).tolist())
""")
    text = (
        "Unsupported: cannot run elementwise on opencl:0: "
        "OpenCL says clEnqueueNDRangeKernel: OUT_OF_RESOURCES\n"
        "  expected: a device and a driver in working order\n"
    )
    assert found == RIGHT + text + RIGHT


@pytest.mark.slow
def test_a_driver_that_has_less_memory_than_it_says(losing: Script):
    found = losing("""
large = numpy.ones(3 << 20, numpy.float32)
lose("clCreateBuffer", status=-4)
made = neg(engine.upload(large))
print(made.memory.host is not None, float(engine.download(made).sum()), sum(fallbacks.values()))
with strict():
    report(lambda: engine.upload(large))
failing.unlink()
print(engine.download(neg(array)).tolist(), engine.upload(large).memory.host is None)
""").splitlines()
    assert found[:2] == [RIGHT.strip(), "True -3145728.0 1"]
    assert found[2].startswith("OutOfMemory: cannot allocate 12.6 MB on opencl:0: ")
    assert found[2].endswith(
        "; cannot get 12.6 MB of opencl:0: OpenCL says create_buffer: MEM_OBJECT_ALLOCATION_FAILURE"
    )
    assert found[-1] == RIGHT.strip() + " True"


# ---- several processes


@pytest.mark.slow
def test_two_processes_fill_one_empty_cache(own_cache: Path):
    code = "print([engine.download(neg(plain)).tolist() for _ in range(3)][2])"
    both = [started(code) for _ in range(2)]
    outs = [process.communicate(timeout=120) for process in both]
    assert [out for out, _ in outs] == [RIGHT, RIGHT], outs
    files = [file.name for file in own_cache.iterdir()]
    assert files
    assert all(name.endswith(".bin") for name in files)
    assert script(code) == RIGHT


def test_a_process_that_was_forked_after_use_raises():
    found = script("""
array = engine.upload(plain)
print(engine.download(neg(array)).tolist(), flush=True)
child = os.fork()
if not child:
    for call in (lambda: neg(array), lambda: engine.upload(plain), lambda: engine.download(array)):
        report(call)
    report(lambda: engine.on(1).upload(plain))
    sys.stdout.flush()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(engine.download(neg(array)).tolist())
""")
    text = (
        "Unsupported: cannot use OpenCL in this process: it was forked from one that used it\n"
        "  expected: a process that starts OpenCL itself\n"
        "  try: multiprocessing.set_start_method('spawn'), or fork before the first use\n"
    )
    assert found == RIGHT + text * 4 + RIGHT


@pytest.mark.slow
def test_a_process_that_was_forked_before_use_computes():
    found = script("""
child = os.fork()
os.write(1, f"{engine.download(neg(plain)).tolist()}\\n".encode())  # a whole line at once
if not child:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""")
    assert found == RIGHT * 2


# ---- the cache folder


def computed(engine: OpenCLEngine) -> list[float]:
    array = engine.upload(numpy.arange(4, dtype=numpy.float32))
    return engine.download(run(OPS["neg"], engine, [array], {})).tolist()


def whole(content: bytes) -> bytes:
    return hashlib.sha256(content).digest() + content


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: content[:-100],
        lambda content: content[:500] + b"spoiled" + content[507:],
        lambda content: whole(b"no program at all"),
    ],
    ids=["empty", "cut off", "changed", "of something else"],
)
def test_a_binary_that_is_no_good_is_built_again(own_cache: Path, spoil: Any):
    assert computed(OpenCLEngine(0)) == [-0.0, -1.0, -2.0, -3.0]
    files = {file: file.read_bytes() for file in own_cache.iterdir()}
    for file, content in files.items():
        file.write_bytes(spoil(content))
    assert computed(OpenCLEngine(0)) == [-0.0, -1.0, -2.0, -3.0]
    for file in files:
        content = file.read_bytes()
        assert content == whole(content[32:])


@pytest.mark.parametrize("place", ["a file", "/proc"])
def test_a_cache_that_cannot_be_written_is_done_without(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "taken" if place == "a file" else Path("/proc/holdfast")
    if place == "a file":
        folder.write_text("not a folder")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(folder))
    assert computed(OpenCLEngine(0)) == [-0.0, -1.0, -2.0, -3.0]


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_writes_leaves_nothing_broken(own_cache: Path):
    killed = started("""
import signal
os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
neg(plain)
""")
    killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    [draft] = own_cache.iterdir()
    assert draft.name.startswith(".holdfast-")
    assert computed(OpenCLEngine(0)) == [-0.0, -1.0, -2.0, -3.0]
    assert draft.exists()  # it may be somebody's who is writing just now
    old = time.time() - 2 * 3600
    os.utime(draft, (old, old))
    for file in own_cache.glob("*.bin"):
        file.unlink()
    assert computed(OpenCLEngine(0)) == [-0.0, -1.0, -2.0, -3.0]
    assert not draft.exists()

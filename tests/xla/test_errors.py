"""What JAX, XLA and torchax raise comes out in Holdfast's words, and nothing else does."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")

import jax.numpy as jnp  # noqa: E402

from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory, Unsupported  # noqa: E402
from holdfast.xla import errors  # noqa: E402
from holdfast.xla.cluster.device_holders import holders  # noqa: E402
from holdfast.xla.errors import advice, explain, in_use, translate_errors  # noqa: E402

GIB = 2**30
NOBODY = 2**22 + 1  # no process has such a number: Linux counts to 2**22


@dataclass(frozen=True)
class ShardReport:
    total_bytes: int
    parts: int


def told(raising: Callable[[], Any], **about: Any) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught, translate_errors("drawing", **about):
        raising()
    assert caught.value.__cause__ is not None
    return caught.value


def failed(text: str) -> Callable[[], None]:
    def fail() -> None:
        raise jax.errors.JaxRuntimeError(text)

    return fail


@dataclass(frozen=True)
class Process:
    pid: int
    command: str  # as it is shown: cut off


@contextmanager
def holding(file: Path) -> Iterator[Process]:
    """A process that has a file open."""
    script = f"file = open({str(file)!r}); print('open', flush=True); input()"
    arguments = [sys.executable, "-c", script]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    command = " ".join(arguments)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield Process(process.pid, command if len(command) <= 100 else f"{command[:99]}…")
    finally:
        process.communicate("\n")


def test_a_tpu_in_use_names_the_process_its_command_and_user(tmp_path: Path) -> None:
    with holding(Path(os.devnull)) as process:
        error = told(
            failed(
                f"ABORTED: The TPU is already in use by process with pid {process.pid}. Not "
                "attempting to load libtpu.so in this process."
            )
        )
        who = f"process {process.pid} ({process.command}, user {getpass.getuser()})"
    assert isinstance(error, Unsupported)
    assert str(error) == (
        f"cannot start the TPU while drawing: {who} uses it\n"
        "  expected: one process for a TPU\n"
        f"  try: end what uses it (kill {process.pid}), or JAX_PLATFORMS=cpu to run without"
    )


def test_a_process_that_has_gone_is_still_named() -> None:
    def fail() -> None:
        raise RuntimeError(
            "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process "
            f"with pid {NOBODY}. Not attempting to load libtpu.so in this process. (set "
            "JAX_PLATFORMS='' to automatically choose an available backend)"
        )

    assert str(told(fail)) == (
        f"cannot start the TPU while drawing: process {NOBODY} uses it\n"
        "  expected: one process for a TPU\n"
        f"  try: end what uses it (kill {NOBODY}), or JAX_PLATFORMS=cpu to run without"
    )


BUSY = (
    "Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/vfio/1): "
    "Device or resource busy: Device or resource busy; Couldn't open iommu group /dev/vfio/1 (set "
    "JAX_PLATFORMS='' to automatically choose an available backend)"
)


def test_without_a_pid_whoever_has_the_device_open_is_found(tmp_path: Path) -> None:
    file = tmp_path / "accel0"
    file.touch()
    pattern = [str(tmp_path / "accel*")]
    with holding(file) as process, file.open():  # this process has it open too, and is not named
        (found,) = holders(pattern)
        error = in_use(BUSY, "drawing", pattern)
        assert (found.pid, found.file) == (process.pid, str(file))
        assert (found.command, found.user) == (process.command, getpass.getuser())
    assert str(error) == (
        f"cannot start the TPU while drawing: {found} uses it\n"
        "  expected: one process for a TPU\n"
        f"  try: end what uses it (kill {found.pid}), or JAX_PLATFORMS=cpu to run without"
    )
    assert holders(pattern) == ()


def test_several_holders_are_all_named(tmp_path: Path) -> None:
    file = tmp_path / "accel0"
    file.touch()
    with holding(file) as one, holding(file) as two:
        first, second = sorted((one.pid, two.pid))
        found = holders([str(file)])
        error = in_use(BUSY, "drawing", [str(file)])
    assert [each.pid for each in found] == [first, second]
    assert error.what == f"cannot start the TPU while drawing: {found[0]} and {found[1]} use it"
    assert error.hint is not None
    assert f"(kill {first} {second})" in error.hint


def test_a_device_that_nobody_is_seen_to_use_says_how_to_look(tmp_path: Path) -> None:
    assert str(in_use(BUSY, "drawing", [str(tmp_path / "none")])) == (
        "cannot start the TPU while drawing: nobody to be seen uses it\n"
        "  expected: one process for a TPU\n"
        "  try: sudo lsof -w /dev/accel* /dev/vfio/[0-9]* shows processes of other users; "
        "JAX_PLATFORMS=cpu runs without"
    )


def test_a_lock_file_left_behind_says_so(tmp_path: Path) -> None:
    text = (
        "ABORTED: Internal error when accessing libtpu multi-process lockfile. Run "
        '"$ sudo rm /tmp/libtpu_lockfile".'
    )
    assert str(in_use(text, "drawing", [str(tmp_path / "none")])) == (
        "cannot start the TPU while drawing: nobody to be seen uses it\n"
        "  expected: one process for a TPU\n"
        "  try: rm /tmp/libtpu_lockfile, which a process that has ended left behind"
    )
    assert explain(jax.errors.JaxRuntimeError(text), "drawing") is not None


@pytest.mark.parametrize(
    "text",
    [
        "Unable to initialize backend 'cuda': INTERNAL: failed call to cuDevicePrimaryCtxRetain: "
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "INTERNAL: CUDA_ERROR_DEVICE_UNAVAILABLE: CUDA-capable device(s) is/are busy or "
        "unavailable",
    ],
)
def test_a_gpu_that_others_fill_is_in_use(text: str, tmp_path: Path) -> None:
    assert explain(RuntimeError(text), "drawing") is not None
    assert str(in_use(text, "drawing", [str(tmp_path / "none")])) == (
        "cannot start the GPU while drawing: nobody to be seen uses it\n"
        "  expected: a GPU with memory to spare\n"
        "  try: nvidia-smi shows processes of other users; JAX_PLATFORMS=cpu runs without"
    )


def test_memory_that_ran_out_on_the_cpu_is_told() -> None:
    error = told(lambda: jnp.zeros(2**44, jnp.float32).block_until_ready())
    assert isinstance(error, OutOfMemory)
    assert str(error) == (
        "ran out of memory while drawing: 70.4 TB asked for\n"
        "  try: a mesh with more devices (tp), bfloat16 weights, or a smaller picture"
    )


def test_memory_that_ran_out_says_what_would_fit() -> None:
    text = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 21.95G of 15.48G hbm. Exceeded hbm capacity by 6.47G.\n\nTotal hbm usage >= "
        "22.47G:\n    reserved        530.00M\n    program          21.95G"
    )
    error = told(failed(text), report=ShardReport(23_800_000_000, 1), dtype="bfloat16")
    assert str(error) == (
        "ran out of memory while drawing: 23.6 GB asked for, 16.6 GB there\n"
        "  expected: 23.8 GB of weights, 23.8 GB on each of 1 device, and what is computed, in "
        "16.6 GB each\n"
        "  try: a mesh with tp=2 (11.9 GB of weights on each device)"
    )


def test_memory_of_an_unknown_device_is_told_with_the_weights() -> None:
    error = told(failed("RESOURCE_EXHAUSTED: something"), report=ShardReport(23_800_000_000, 8))
    assert str(error) == (
        "ran out of memory while drawing\n"
        "  expected: 23.8 GB of weights, 3.0 GB on each of 8 devices, and what is computed\n"
        "  try: a mesh with more devices (tp), bfloat16 weights, or a smaller picture"
    )


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.\n"
            "BufferAssignment OOM Debugging.\n  parameter allocation:  372.76MiB",
            "4.8 GB asked for",
        ),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5.96GiB.", "6.4 GB asked for"),
        (
            "RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB (3206250496B) on device "
            "ordinal 0",
            "3.2 GB asked for",
        ),
        (
            "RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 1.50G. "
            "That was not possible. There are 1.17G free.; (0x0x0_HBM0)",
            "1.6 GB asked for, 1.3 GB free",
        ),
        (
            "RESOURCE_EXHAUSTED: Error loading program: Attempting to reserve 3.91G at the bottom "
            "of memory. That was not possible. There are 3.61G free, 0B reserved, and 3.61G "
            "reservable.",
            "4.2 GB asked for, 3.9 GB free",
        ),
        ("RESOURCE_EXHAUSTED: Out of memory allocating 1024 bytes.", "1.0 KB asked for"),
        ("INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory", ""),
    ],
)
def test_sizes_are_read_in_every_form(text: str, sizes: str) -> None:
    error = told(failed(text))
    assert isinstance(error, OutOfMemory)
    assert error.what == "ran out of memory while drawing" + (f": {sizes}" if sizes else "")


@pytest.mark.parametrize(
    ("weights", "capacity", "devices", "dtype", "said"),
    [
        (24 * GIB, 16 * GIB, 1, "bfloat16", "a mesh with tp=2 (12.9 GB of weights on each device)"),
        (24 * GIB, 16 * GIB, 1, None, "a mesh with tp=2 (12.9 GB of weights on each device), or "
         "bfloat16 if the weights are float32"),
        (48 * GIB, 16 * GIB, 2, "float32", "a mesh with tp=4 (12.9 GB of weights on each device), "
         "or bfloat16 weights (12.9 GB on each device)"),
        (96 * GIB, 16 * GIB, 1, "float32", "a mesh with tp=8 (12.9 GB of weights on each device), "
         "or bfloat16 weights and a mesh with tp=4 (12.9 GB of weights on each device)"),
        (2 * GIB, 16 * GIB, 1, "bfloat16", "a smaller picture or fewer frames, or a mesh with tp=2 "
         "(1.1 GB of weights on each device)"),
        (2 * GIB, 16 * GIB, 1, "torch.float32", "a smaller picture or fewer frames, or a mesh with "
         "tp=2 (1.1 GB of weights on each device), or bfloat16 weights (1.1 GB on each device)"),
        (24 * GIB, 2**20, 1, "bfloat16", "a smaller model: 4096 devices are too few"),
        (24 * GIB, 0, 1, "float32", "a smaller model: 4096 devices are too few"),
    ],
)  # fmt: skip
def test_advice_says_what_would_fit(
    weights: int, capacity: int, devices: int, dtype: str | None, said: str
) -> None:
    assert advice(weights, capacity, devices, dtype) == said


def test_an_operator_that_nobody_has_written_comes_with_the_lines_to_write() -> None:
    from holdfast.xla.module.calls import ModuleCall

    class Special(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.airy_ai(x)

    call = ModuleCall(Special())
    error = told(lambda: jax.jit(lambda x: call({}, {"x": x}))(jnp.ones(3)))
    assert isinstance(error, Unsupported)
    assert str(error) == (
        "nobody has written aten.special_airy_ai.default for JAX, which was needed while drawing\n"
        "  expected: operators that torchax has, that Holdfast has, or that the port brings along\n"
        "  try: write it, with JAX arrays in and out:\n"
        "    def my_special_airy_ai(x):\n"
        "        return jax.numpy...\n"
        '    Port(..., ops={"aten.special_airy_ai.default": my_special_airy_ai})'
    )


class OperatorNotFound(Exception):
    """As torchax names it."""


@pytest.mark.parametrize(
    ("name", "key", "function", "arguments"),
    [
        ("aten::lgamma", "aten.lgamma.default", "my_lgamma", "self"),
        ("aten::rot90", "aten.rot90.default", "my_rot90", "self, k=1, dims=[0, 1]"),
        ("gelu", "gelu", "my_gelu", "*args, **kwargs"),
    ],
)
def test_the_lines_have_the_operators_own_arguments(
    name: str, key: str, function: str, arguments: str
) -> None:
    error = explain(OperatorNotFound(f"Operator with name {name} has no lowering"), "drawing")
    assert error is not None
    assert error.what.startswith(f"nobody has written {key} for JAX")
    assert error.hint is not None
    assert f"    def {function}({arguments}):\n" in error.hint
    assert error.hint.endswith(f'    Port(..., ops={{"{key}": {function}}})')


def by_branch(x: Any, height: Any) -> Any:
    return x if height > 3 else x + 1


def by_shape(x: Any, height: Any) -> Any:
    return jnp.zeros((height,)) + x


def by_count(x: Any, height: Any) -> Any:
    return sum(x for _ in range(height))


def by_array(x: Any, height: Any) -> Any:
    import numpy as np

    return x + np.asarray(height)


@pytest.mark.parametrize("function", [by_branch, by_shape, by_count, by_array])
def test_an_input_whose_value_is_looked_at_should_be_static(function: Callable[..., Any]) -> None:
    error = told(lambda: jax.jit(function)(1.0, 5))
    assert isinstance(error, Unsupported)
    assert str(error) == (
        "cannot compile while drawing: the model's Python looks at the value of 'height'\n"
        "  expected: code whose branches and shapes depend on static inputs alone\n"
        '  try: Port(..., static=("height",)), which compiles once for each value'
    )


def test_inputs_in_containers_are_named_and_weights_are_not() -> None:
    def step(weights: Any, inputs: Any) -> Any:
        kept = weights["a.b"] > 0
        return inputs["x"] if kept & inputs["sizes"][0] & inputs["mask"]["of"]["text"] else 0

    inputs = {"x": 1.0, "sizes": [True], "mask": {"of": {"text": True}}}
    error = told(lambda: jax.jit(step)({"a.b": 1.0}, inputs))
    assert str(error) == (
        "cannot compile while drawing: the model's Python looks at the value of 'mask' and "
        "'sizes'\n"
        "  expected: code whose branches and shapes depend on static inputs alone\n"
        '  try: Port(..., static=("mask", "sizes")), which compiles once for each value'
    )


UNNAMED = (
    "cannot compile while drawing: the model's Python looks at a value that only the running "
    "program has\n"
    "  expected: code whose branches and shapes depend on static inputs alone\n"
    '  try: name the input that decides: Port(..., static=("name",))'
)


def test_an_input_that_jax_does_not_name_is_left_to_the_reader() -> None:
    error = told(lambda: jax.jit(lambda x, mask: x[mask])(jnp.ones(3), jnp.ones(3, bool)))
    assert str(error) == UNNAMED


def test_a_torch_model_that_makes_a_shape_of_a_value_is_told_the_same() -> None:
    from holdfast.xla.module.calls import ModuleCall

    class Counting(torch.nn.Module):
        def forward(self, count: Any) -> Any:
            return torch.zeros(count)

    call = ModuleCall(Counting())
    assert str(told(lambda: jax.jit(lambda n: call({}, {"count": n}))(jnp.int32(3)))) == UNNAMED


def test_a_value_kept_from_an_earlier_trace_is_told_with_its_line() -> None:
    kept = []

    @jax.jit
    def step(x: Any) -> Any:
        kept.append(x * 2)
        return x

    step(1.0)
    error = told(lambda: kept[0] + 1)
    assert isinstance(error, Unsupported)
    line = step.__wrapped__.__code__.co_firstlineno + 2
    assert str(error) == (
        "cannot compile while drawing: the model kept a value of an earlier trace, made at "
        f"{__file__}:{line}:20\n"
        "  expected: a model that keeps nothing of a call, or whose cache is empty when it begins\n"
        "  try: clear what the model keeps between calls, or make the input it comes from static: "
        'Port(..., static=("name",))'
    )


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of memory"),
        RuntimeError("CUDA out of memory"),  # torch's, which others translate
        RuntimeError("[Errno 98] Address already in use"),
        TypeError("unsupported operand"),
        jax.errors.JaxRuntimeError("INVALID_ARGUMENT: shapes"),
        BadInput("no such picture"),
        OutOfMemory("told already: RESOURCE_EXHAUSTED"),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_everything_else_passes_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, translate_errors("drawing"):
        raise error
    assert caught.value is error
    assert caught.value.__cause__ is None


def test_nothing_is_raised_where_nothing_goes_wrong() -> None:
    with errors.translate_errors("drawing", ShardReport(1, 1)):
        pass

"""What a second process need not do again, and what happens to a cache that cannot be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from holdfast.base.errors import BadInput
from holdfast.xla.module import cache
from holdfast.xla.module.cache import (
    CacheUnusable,
    Programs,
    digest,
    trim,
    use_compile_cache,
)

pytestmark = pytest.mark.xla

X = jnp.arange(4.0)
_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


class Counted:
    """x -> 2 x, and how often Python ran it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x * 2


@pytest.fixture
def settings() -> Iterator[None]:
    before = {name: getattr(jax.config, name) for name in _SETTINGS}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    cache.compilation_cache.reset_cache()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*"))


# ---- programs


def test_program_is_traced_once_and_then_read(tmp_path: Path) -> None:
    first, second = Counted(), Counted()
    made = Programs(tmp_path)
    assert made.program({"a": 1}, first, (X,))(X).tolist() == [0, 2, 4, 6]
    read = Programs(tmp_path)
    assert read.program({"a": 1}, second, (X,))(X).tolist() == [0, 2, 4, 6]
    assert (first.calls, second.calls) == (1, 0)
    assert ((made.found, made.made), (read.found, read.made)) == ((0, 1), (1, 0))
    assert made.failures == read.failures == []


def test_programs_lie_in_the_cache_folder() -> None:
    programs = Programs()
    assert programs.folder == Path(os.environ["HOLDFAST_CACHE_DIR"]) / "xla"
    programs.program({}, Counted(), (X,))
    assert len(files(programs.folder)) == 1


def test_shapes_alone_are_enough(tmp_path: Path) -> None:
    program = Programs(tmp_path).program({}, Counted(), (jax.ShapeDtypeStruct((4,), jnp.float32),))
    assert program(X).tolist() == [0, 2, 4, 6]


def test_donated_arguments_are_given_up(tmp_path: Path) -> None:
    for _ in range(2):
        x = jnp.arange(4.0)
        program = Programs(tmp_path).program({}, Counted(), (x,), donate=(0,))
        assert program(x).tolist() == [0, 2, 4, 6]
        assert x.is_deleted()


def test_program_over_eight_devices_keeps_its_shards(tmp_path: Path) -> None:
    mesh = Mesh(np.array(jax.devices()), ("tp",))
    split, whole = (NamedSharding(mesh, one) for one in (PartitionSpec("tp"), PartitionSpec()))
    weights = {"w": jax.device_put(jnp.ones((16, 4)), split)}
    x = jax.device_put(jnp.ones((2, 4)), whole)

    def function(weights: Any, x: Any) -> Any:
        return {"y": x @ weights["w"].T, "all": jax.lax.with_sharding_constraint(x, whole)}

    for made in (1, 0):
        programs = Programs(tmp_path)
        answer = programs.program({}, function, (weights, x))(weights, x)
        assert programs.made == made
        assert answer["y"].sharding.is_equivalent_to(
            NamedSharding(mesh, PartitionSpec(None, "tp")), 2
        )
        assert (np.asarray(answer["y"]) == 4).all()
        assert answer["all"].sharding.is_fully_replicated


def test_kernels_without_a_lasting_form_are_written_down(tmp_path: Path) -> None:
    """As cuDNN's and Triton's are."""

    def function(x: Any) -> Any:
        return jax.ffi.ffi_call("no_such_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    programs = Programs(tmp_path)
    programs.program({}, function, (X,))
    assert programs.failures == []
    assert len(files(tmp_path)) == 1


def test_what_tracing_raises_is_the_callers(tmp_path: Path) -> None:
    with pytest.raises(jax.errors.TracerBoolConversionError):
        Programs(tmp_path).program({}, lambda x: x if x[0] > 0 else -x, (X,))
    assert files(tmp_path) == []


def test_program_that_cannot_be_written_down_is_compiled(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        jax.debug.callback(lambda one: None, x)  # Python cannot be written down
        return x * 2

    programs = Programs(tmp_path)
    x = jnp.arange(4.0)
    assert programs.program({}, function, (x,), donate=(0,))(x).tolist() == [0, 2, 4, 6]
    assert [one.partition(":")[0] for one in programs.failures] == ["NotImplementedError"]
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "harm",
    [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:-9] + b"\0" * 9, lambda b: b"x" * 99],
    ids=["truncated", "empty", "overwritten", "something else"],
)
def test_broken_file_is_removed_and_made_anew(
    tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    Programs(tmp_path).program({}, Counted(), (X,))
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(harm(whole))
    again = Counted()
    with pytest.warns(CacheUnusable) as caught:
        assert Programs(tmp_path).program({}, again, (X,))(X).tolist() == [0, 2, 4, 6]
    assert [str(one.message) for one in caught] == [
        f"removed {str(file)!r}, which is broken (its check is wrong); the program is traced again"
    ]
    assert again.calls == 1
    assert len(file.read_bytes()) == len(whole)


def test_folder_that_cannot_be_written_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    programs = Programs(tmp_path / "file" / "folder")
    with pytest.warns(CacheUnusable) as caught:
        assert programs.program({"a": 1}, Counted(), (X,))(X).tolist() == [0, 2, 4, 6]
    assert [str(one.message) for one in caught] == [
        f"cannot use the cache {str(programs.folder)!r}: Not a directory; "
        "programs are traced in each process"
    ]
    for again in (programs, Programs(programs.folder)):
        assert again.program({"a": 2}, Counted(), (X,))(X).tolist() == [0, 2, 4, 6]


def test_programs_that_were_not_used_go_first(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    for number in range(4):
        programs.program({"number": number}, Counted(), (X,))
    by_number = {n: tmp_path / f"{digest({'number': n}, (X,))}.program" for n in range(4)}
    for number, file in by_number.items():
        os.utime(file, (number, number))
    programs.program({"number": 0}, Counted(), (X,))  # now the youngest
    (tmp_path / "something of somebody").write_text("x" * 10_000)
    size = by_number[0].stat().st_size
    assert trim(tmp_path, 2 * size) <= 2 * size
    assert [n for n, file in by_number.items() if file.exists()] == [0, 3]
    Programs(tmp_path, limit_bytes=size).program({"number": 4}, Counted(), (X,))
    assert len(list(tmp_path.glob("*.program"))) == 1


# ---- names


def test_name_is_the_same_for_the_same_program() -> None:
    assert digest({"a": 1, "b": {2, 3}}, (X,)) == digest({"b": {3, 2}, "a": 1}, (X + 1,))


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ({"a": 2}, (X,)),
        ({"a": "1"}, (X,)),
        ({}, (X,)),
        ({"a": 1}, (X[:3],)),
        ({"a": 1}, (X.astype(jnp.bfloat16),)),
        ({"a": 1}, (X, X)),
        ({"a": 1}, ({"x": X},)),
        (
            {"a": 1},
            (jax.device_put(X, NamedSharding(jax.make_mesh((4,), ("tp",)), PartitionSpec())),),
        ),
        (
            {"a": 1},
            (jax.device_put(X, NamedSharding(jax.make_mesh((4,), ("tp",)), PartitionSpec("tp"))),),
        ),
    ],
)
def test_another_program_has_another_name(key: dict[str, Any], arguments: Any) -> None:
    assert digest(key, arguments) != digest({"a": 1}, (X,))


def test_settings_of_jax_are_part_of_the_name() -> None:
    plain = digest({}, (X,))
    with jax.default_matmul_precision("highest"):
        assert digest({}, (X,)) != plain


def test_name_that_would_not_be_found_again_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        digest({"a": [Counted.__call__]}, ())
    assert str(caught.value) == (
        f"{Counted.__call__!r} cannot be part of the name of a program\n"
        "  expected: a value that looks the same in another process"
    )


# ---- compiled programs


def test_compiled_programs_are_kept(tmp_path: Path, settings: None) -> None:
    folder = tmp_path / "compiled"
    assert use_compile_cache(folder) == folder
    jax.jit(lambda x: x * 17 + len(str(folder)))(X).block_until_ready()
    assert len(files(folder)) >= 1
    assert use_compile_cache() == folder  # what JAX was told before stays


def test_specification_says_where_compiled_programs_are_kept(
    tmp_path: Path, settings: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", None)
    assert use_compile_cache() == tmp_path / ".cache" / "jax_cache"


def test_a_folder_that_jax_was_told_and_cannot_have_is_not_asked_at_each_program(
    tmp_path: Path, settings: None
) -> None:
    (tmp_path / "file").write_text("")
    jax.config.update(_SETTINGS[0], str(tmp_path / "file" / "y"))
    with pytest.warns(CacheUnusable):
        assert use_compile_cache() is None
    assert getattr(jax.config, _SETTINGS[0]) is None


def test_compile_cache_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, settings: None
) -> None:
    (tmp_path / "file").write_text("")
    before = getattr(jax.config, _SETTINGS[0])
    with pytest.warns(CacheUnusable) as caught:
        assert use_compile_cache(tmp_path / "file" / "x") is None
    assert [str(one.message) for one in caught] == [
        f"cannot use the cache {str(tmp_path / 'file' / 'x')!r}: Not a directory; "
        "compiled programs are not kept"
    ]
    assert use_compile_cache(tmp_path / "file" / "x") is None  # and says so once
    assert getattr(jax.config, _SETTINGS[0]) == before


# ---- two processes

_PROGRAM = """
import json, sys, time
from pathlib import Path
import jax
import torch
from holdfast.xla import tiny
from holdfast.xla.arrays import to_jax
from holdfast.xla.module.cache import Programs, use_compile_cache
from holdfast.xla.module.calls import ModuleCall

folder = Path(sys.argv[1])
use_compile_cache(folder / "compiled")
made = tiny.make("diffusers:WanTransformer3DModel")
call = ModuleCall(made.module)
weights = {name: to_jax(one.detach()) for name, one in call.weights.items()}
inputs = made.inputs()
arrays = {name: to_jax(one) for name, one in inputs.items() if isinstance(one, torch.Tensor)}
others = {name: one for name, one in inputs.items() if name not in arrays}
traced = 0

def function(weights, arrays):
    global traced
    traced += 1
    return call(weights, {**others, **arrays})

jax.block_until_ready(weights)
programs = Programs(folder / "programs")
start = time.perf_counter()
program = programs.program({"module": "tiny wan"}, function, (weights, arrays))
middle = time.perf_counter()
(answer,) = jax.block_until_ready(program(weights, arrays))
end = time.perf_counter()
with torch.no_grad():
    right = to_jax(made(**made.inputs())[0])
error = float(abs(answer - right).max() / abs(right).max())
print(json.dumps({"traced": traced, "trace_s": middle - start, "compile_s": end - middle,
    "error": error, "failures": programs.failures}))
"""


@pytest.mark.slow
def test_second_process_does_not_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path)]
    first, second = (
        json.loads(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)
        for _ in range(2)
    )
    took = [one["trace_s"] + one["compile_s"] for one in (first, second)]
    print(f"trace and compile: {took[0]:.2f} s, then {took[1]:.2f} s: {took[1] / took[0]:.3f}")
    print(first, second)
    assert (first["traced"], second["traced"]) == (1, 0)
    assert first["failures"] == second["failures"] == []
    assert max(first["error"], second["error"]) < 1e-5
    assert len(files(tmp_path / "programs")) == 1

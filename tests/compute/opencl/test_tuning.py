"""Parameters of kernels: which are used, what is kept on disk, finding better ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute.engines.opencl import OpenCLEngine
from holdfast.compute.engines.opencl.matrix import clblast, gemm_search
from holdfast.compute.engines.opencl.runtime import tuned_parameters
from holdfast.compute.engines.opencl.runtime.array import NotHere
from tests.compute.opencl import checks


@pytest.fixture
def engine(own_cache: Path, request: pytest.FixtureRequest) -> OpenCLEngine:
    """An engine that knows of no measurements, with a folder of its own for them."""
    made = OpenCLEngine(0)
    made.mapping = getattr(request, "param", "cpu")
    made.programs = checks.engine(made.mapping).programs  # built already
    return made


BOTH = pytest.mark.parametrize("engine", ["cpu", "gpu"], indirect=True)


@pytest.mark.parametrize(
    ("size", "name"),
    [((10, 10), "small"), ((256, 256), "small"), ((1024, 512), "square"), ((4096, 64), "tall"),
     ((64, 4096), "wide"), ((1, 100_000), "wide")],
)  # fmt: skip
def test_results_are_small_square_tall_or_wide(size: tuple[int, int], name: str):
    assert tuned_parameters.size_class(*size) == name


@BOTH
def test_there_are_good_parameters_without_any_measurement(engine: OpenCLEngine):
    assert tuned_parameters.current(engine) == tuned_parameters.defaults(engine)
    assert set(tuned_parameters.current(engine)) == set(tuned_parameters.CLASSES)
    assert not tuned_parameters.file_of(engine).exists()


@BOTH
def test_what_was_measured_is_there_for_the_next_process(engine: OpenCLEngine):
    way = gemm_search.candidates(engine, "square")[1]
    tuned_parameters.save(engine, {"square": way})
    later = OpenCLEngine(0)
    later.mapping = engine.mapping
    assert tuned_parameters.settings(later, 1000, 1000) == way
    assert tuned_parameters.settings(later, 10, 10) == tuned_parameters.defaults(later)["small"]


def test_both_mappings_are_in_one_file(engine: OpenCLEngine):
    tuned_parameters.save(engine, {"wide": tuned_parameters.defaults(engine)["wide"]})
    other = OpenCLEngine(0)
    other.mapping = "gpu"
    tuned_parameters.save(other, {"small": tuned_parameters.defaults(other)["small"]})
    content = json.loads(tuned_parameters.file_of(engine).read_text())
    assert set(content) == {"made with", "cpu", "gpu"}


@pytest.mark.parametrize(
    "change",
    [
        lambda content: {**content, "made with": {"platform": "x", "driver": "y"}},
        lambda content: {**content, "cpu": []},
        lambda content: {**content, "cpu": {"square": {"VEC": 16}}},
        lambda content: {**content, "cpu": {"square": {**content["cpu"]["square"], "MR": -1}}},
        lambda content: {**content, "cpu": {"round": content["cpu"]["square"]}},
        lambda content: [],
    ],
)
def test_a_file_that_is_not_to_be_understood_is_as_good_as_none(engine: Any, change: Any):
    way = {**tuned_parameters.defaults(engine)["square"], "MR": 14}
    tuned_parameters.save(engine, {"square": way})
    file = tuned_parameters.file_of(engine)
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    assert tuned_parameters.current(engine) == tuned_parameters.defaults(engine)


def test_half_a_file_is_as_good_as_none(engine: OpenCLEngine):
    tuned_parameters.save(engine, {"square": tuned_parameters.defaults(engine)["square"]})
    file = tuned_parameters.file_of(engine)
    file.write_bytes(file.read_bytes()[:40])
    assert tuned_parameters.current(engine) == tuned_parameters.defaults(engine)
    tuned_parameters.save(engine, {"square": tuned_parameters.defaults(engine)["square"]})
    assert set(json.loads(file.read_text())) == {"made with", "cpu"}


def test_a_folder_that_cannot_be_written_to_is_left_alone(engine: OpenCLEngine, own_cache: Path):
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text("no folder")
    tuned_parameters.save(engine, {"square": tuned_parameters.defaults(engine)["square"]})
    assert own_cache.read_text() == "no folder"


@pytest.mark.parametrize("count", [1, 8, 1000])
def test_small_products_are_cut_into_enough_work_items(engine: OpenCLEngine, count: int):
    tile = tuned_parameters.cpu_tile(engine, numpy.dtype("float32"))
    rows, columns = tuned_parameters.cpu_block(engine, 96 * count, 128, 1, tile)
    assert rows % tile["MR"] == 0 == columns % (tile["NV"] * tile["VEC"])
    assert rows >= tile["MR"]


# ---- searching


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """Candidates: one that works, and whatever a test adds; small matrices."""
    ways = [{"VEC": 16, "MR": 12, "NV": 2, "ROWS": 4, "COLUMNS": 4}]
    monkeypatch.setattr(gemm_search, "candidates", lambda engine, name, quick=False: ways)
    sizes = dict.fromkeys(tuned_parameters.CLASSES, ((70, 70, 40), (70, 70, 40)))
    monkeypatch.setattr(gemm_search, "_SIZES", {"cpu": sizes, "gpu": sizes})
    monkeypatch.setattr(gemm_search, "_LEAST_S", 1e-4)
    monkeypatch.setattr(tuned_parameters, "size_class", lambda m, n: "small")
    return ways


def test_a_search_keeps_the_fastest_of_each_class(engine: OpenCLEngine, few: Any, monkeypatch: Any):
    taken = iter([3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0] * 4)
    monkeypatch.setattr(gemm_search._Trial, "_time_s", lambda self: next(taken))
    monkeypatch.setattr(gemm_search._Trial, "_is_right", lambda self: True)
    seen: list[tuple[str, int, int]] = []
    found = list(gemm_search.search(engine, progress=lambda *words: seen.append(words)))
    assert [one.name for one in found] == list(tuned_parameters.CLASSES)
    assert all((one.before_ms, one.after_ms) == (3000, 1000) for one in found)
    assert all(one.settings == few[0] and one.failed == 0 for one in found)
    assert tuned_parameters.load(engine) == dict.fromkeys(tuned_parameters.CLASSES, few[0])
    assert seen[:2] == [("small", 0, 1), ("small", 1, 1)]


def test_a_candidate_that_is_hardly_faster_changes_nothing(engine: Any, few: Any, monkeypatch: Any):
    taken = iter([1.0, 0.99] * 20)
    monkeypatch.setattr(gemm_search._Trial, "_time_s", lambda self: next(taken))
    monkeypatch.setattr(gemm_search._Trial, "_is_right", lambda self: True)
    found = next(gemm_search.search(engine))
    assert found.settings == tuned_parameters.defaults(engine)["small"]


def test_a_candidate_that_cannot_be_built_or_is_wrong_is_passed_over(
    engine: Any, few: Any, monkeypatch: Any
):
    def time_s(self: Any) -> float:
        return 1.0 if tuned_parameters.current(self.engine)["small"] == few[0] else 2.0

    monkeypatch.setattr(gemm_search._Trial, "_time_s", time_s)
    few += [
        {"VEC": 5, "MR": 12, "NV": 2, "ROWS": 4, "COLUMNS": 4},  # there is no float5
        {"VEC": 16, "MR": 12, "NV": 2, "ROWS": 4, "COLUMNS": 4, "CLBLAST": 1},
    ]
    found = next(gemm_search.search(engine))
    assert (found.tried, found.failed) == (3, 1)
    assert found.settings == few[0]


def test_a_wrong_result_is_seen(engine: OpenCLEngine, few: Any, monkeypatch: pytest.MonkeyPatch):
    trial = gemm_search._Trial(engine, (70, 70, 40))
    assert trial._is_right()
    trial.expected[3, 4] += 1
    assert trial.time_s("small", tuned_parameters.defaults(engine)["small"]) is None


def test_stopping_leaves_parameters_that_work(engine: Any, few: Any, monkeypatch: Any):
    def stop(self: Any) -> float:
        raise KeyboardInterrupt

    before = dict(tuned_parameters.current(engine))
    monkeypatch.setattr(gemm_search._Trial, "_time_s", stop)
    with pytest.raises(KeyboardInterrupt):
        next(gemm_search.search(engine))
    assert tuned_parameters.current(engine) == before
    assert not tuned_parameters.file_of(engine).exists()


def test_a_device_on_which_nothing_works_raises(engine: Any, few: Any, monkeypatch: Any):
    monkeypatch.setattr(gemm_search._Trial, "_is_right", lambda self: False)
    with pytest.raises(NotHere, match="no kernel for products works on opencl:0"):
        next(gemm_search.search(engine))


# ---- CLBlast


def test_clblast_can_be_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clblast, "_library", lambda: object())
    assert clblast.is_available()
    monkeypatch.setenv("HOLDFAST_CLBLAST", "off")
    assert not clblast.is_available()
    monkeypatch.setenv("HOLDFAST_CLBLAST", "perhaps")
    with pytest.raises(BadInput) as caught:
        clblast.is_available()
    assert str(caught.value) == "HOLDFAST_CLBLAST is 'perhaps'\n  expected: auto or off"


def test_where_clblast_is_missing_our_own_kernels_do_it(engine: OpenCLEngine, monkeypatch: Any):
    monkeypatch.setattr(clblast, "_library", lambda: None)
    tuned_parameters.current(engine)["small"] = {
        **tuned_parameters.defaults(engine)["small"],
        "CLBLAST": 1,
    }
    assert gemm_search._Trial(engine, (20, 21, 22))._is_right()


@pytest.mark.skipif(clblast._library() is None, reason="CLBlast, which nothing needs, is not here")
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_clblast_multiplies_as_our_own_kernels_do(engine: OpenCLEngine, turned: tuple[int, int]):
    one = numpy.arange(1, 3 * 20 * 7 + 1, dtype="float32").reshape(3, 1, 20, 7)
    other = numpy.cos(numpy.arange(3 * 7 * 9, dtype="float32")).reshape(3, 1, 7, 9)
    given = [
        engine.upload(x.swapaxes(2, 3)).transpose((0, 1, 3, 2)) if turn else engine.upload(x)
        for x, turn in zip((one, other), turned, strict=True)
    ]
    out, base = engine.alloc((3, 1, 20, 9), given[0].dtype), engine.upload(one[:, :, :, :1])
    assert clblast.gemm(engine, given[0], given[1], out, base.broadcast_to(out.shape), 2.0, 0.5)
    expected = 2 * one @ other + 0.5 * one[:, :, :, :1]
    numpy.testing.assert_allclose(engine.download(out), expected, rtol=1e-4, atol=1e-2)

"""Recording what happens to memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

from holdfast.base.errors import BadInput, Misuse, Unsupported
from holdfast.memory.core import tags
from holdfast.memory.hooks import import_hooks, torch_cpu
from holdfast.memory.pools import pool
from holdfast.memory.pools.pool import Pool
from holdfast.memory.profile import samples, torch_cuda_trace
from holdfast.memory.profile.recorder import Recorder, resolve
from holdfast.memory.profile.recording import (
    Event,
    Frame,
    Kind,
    Lifetime,
    MemoryPlace,
    Recording,
)
from holdfast.memory.profile.script import run_script
from holdfast.memory.profile.torch_cuda_trace import merge

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_older_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the threads that earlier tests left for good: tqdm's monitor, torch's autograd."""
    older = {*threading.enumerate()} - {threading.main_thread()}
    listed = threading.enumerate
    monkeypatch.setattr(threading, "enumerate", lambda: [t for t in listed() if t not in older])


def blocks(recording: Recording, source: str) -> list[Lifetime]:
    places = [n for n, place in enumerate(recording.places_table) if place.source == source]
    return [life for life in recording.lifetimes() if life.place in places]


def only(found: list[Lifetime], size: int) -> Lifetime:
    (one,) = [life for life in found if life.size == size]
    return one


@pytest.fixture
def build(tmp_path_factory) -> dict[str, str]:
    """The environment for other processes: they compile once among them."""
    folder = tmp_path_factory.getbasetemp() / "build"
    return {**os.environ, "HOLDFAST_BUILD_DIR": str(folder)}


# ---- sources


def test_a_block_of_a_pool_is_recorded_with_its_line_and_its_tag():
    mine = Pool(name="mine")
    with Recorder() as recorder, tags.tag("vae"):
        address = mine.allocate(5000)
        line = sys._getframe().f_lineno - 1
        mine.free(address)
    recording = recorder.stop()
    life = only(blocks(recording, "pool"), 5000)
    frame = recording.stacks_table[life.stack][0]
    assert frame == Frame(
        __file__, line, "test_a_block_of_a_pool_is_recorded_with_its_line_and_its_tag"
    )
    assert recording.places_table[life.place] == MemoryPlace("pool", "cpu", "mine")
    assert recording.tags_table[life.tag] == "vae"
    assert life.end_ns is not None
    assert 0 < life.start_ns <= life.end_ns <= recording.duration_ns


def test_blocks_and_segments_from_before_begin_with_the_recording():
    mine = Pool(name="early")
    address = mine.allocate(7000)
    with Recorder() as recorder:
        mine.free(address)
    recording = recorder.stop()
    life = only(blocks(recording, "pool"), 7000)
    assert (life.start_ns, life.stack) == (0, 0)
    assert life.end_ns is not None
    kinds = {event.kind for event in recording.events() if event.place == life.place}
    assert Kind.RESERVE in kinds


def test_a_pool_made_meanwhile_is_recorded_too():
    with Recorder() as recorder:
        late = Pool(name="late")
        late.allocate(3000)
    assert only(blocks(recorder.stop(), "pool"), 3000).end_ns is None


def test_arrays_are_recorded_with_the_line_that_made_them():
    with Recorder() as recorder:
        array = np.empty(123_456, np.uint8)
        line = sys._getframe().f_lineno - 1
        kept = np.empty(23_456, np.uint8)
        del array
    found = blocks(recorder.stop(), "numpy")
    assert only(found, 123_456).end_ns is not None
    assert only(found, 23_456).end_ns is None
    stack = recorder.stop().stacks_table[only(found, 123_456).stack]
    assert stack[0][:2] == (__file__, line)
    del kept


def test_arrays_of_threads_that_start_meanwhile_are_recorded():
    def work() -> None:
        np.empty(77_777, np.uint8)

    class Worker(threading.Thread):
        def run(self) -> None:
            np.empty(88_888, np.uint8)

    with Recorder() as recorder:
        for thread in (threading.Thread(target=work), Worker()):
            thread.start()
            thread.join()
    recording = recorder.stop()
    assert recording.notes == []
    for size in (77_777, 88_888):
        stack = recording.stacks_table[only(blocks(recording, "numpy"), size).stack]
        assert stack[0].file == __file__
        assert not any(frame.file == import_hooks.__file__ for frame in stack)


def test_the_notes_name_threads_from_before():
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        with Recorder() as recorder:
            pass
    finally:
        go.set()
        thread.join()
    assert recorder.stop().notes == [
        "NumPy's memory is not recorded for 1 thread that started before the recording"
    ]


def test_tensors_are_recorded_with_the_line_that_made_them():
    with Recorder() as recorder:
        a = torch.ones(300, 300)
        b = a @ a
        line = sys._getframe().f_lineno - 1
        del a
    recording = recorder.stop()
    first, second = blocks(recording, "torch")[:2]
    assert (first.size, second.size) == (360_000, 360_000)
    assert first.end_ns is not None
    assert second.end_ns is None
    assert recording.stacks_table[second.stack][0][:2] == (__file__, line)
    del b


def test_tensors_made_in_backward_carry_the_line_that_called_it():
    weight = torch.ones(200, 200, requires_grad=True)
    with Recorder() as recorder:
        (weight @ weight).sum().backward()
        line = sys._getframe().f_lineno - 1
    recording = recorder.stop()
    life = next(life for life in blocks(recording, "torch") if life.end_ns is None)
    lines = [frame.line for frame in recording.stacks_table[life.stack] if frame.file == __file__]
    assert lines[0] == line


def test_a_pool_under_torch_is_recorded_as_a_pool_with_the_lines_of_torch():
    under = Pool(name="under torch")
    with torch_cpu.install_torch_pool(under), Recorder() as recorder:
        kept = torch.ones(100_000)
        line = sys._getframe().f_lineno - 1
    recording = recorder.stop()
    assert blocks(recording, "torch") == []
    life = only(blocks(recording, "pool"), 400_000)
    assert recording.places_table[life.place] == MemoryPlace("pool", "cpu", "under torch")
    assert recording.stacks_table[life.stack][0][:2] == (__file__, line)
    del kept


def test_small_blocks_are_left_out():
    with Recorder(least=1000) as recorder:
        kept = [np.empty(999, np.uint8), np.empty(1000, np.uint8)]
    assert [life.size for life in blocks(recorder.stop(), "numpy")] == [1000]
    del kept


def test_only_the_named_sources_are_recorded():
    mine = Pool()
    with Recorder(sources=["numpy"]) as recorder:
        kept = [np.empty(10_000), torch.empty(10_000), mine.allocate(10_000)]
    recording = recorder.stop()
    assert recording.places_table == [MemoryPlace("numpy", "cpu")]
    assert len(recording) == 1
    del kept


def test_the_size_of_the_process_is_sampled():
    with Recorder() as recorder:
        pass
    times, values = recorder.stop().series["rss"]
    assert len(times) >= 2
    assert all(a <= b for a, b in itertools.pairwise(times))
    assert min(values) > 10_000_000


def test_python_objects_are_a_series_and_lines_in_the_notes():
    with Recorder(sources=["python"]) as recorder:
        kept = [str(n) * 100 for n in range(10_000)]
        line = sys._getframe().f_lineno - 1
    recording = recorder.stop()
    _, values = recording.series["python"]
    assert values[-1] - values[0] > 4_000_000
    assert recording.notes[0].startswith("Python's own objects at the end: ")
    assert recording.notes[0].endswith(f" from {__file__}:{line}")
    del kept


def test_the_stack_is_as_deep_as_asked():
    def deep(n: int) -> object:
        return deep(n - 1) if n else np.empty(55_555, np.uint8)

    for depth in (0, 1, 3):
        with Recorder(depth=depth) as recorder:
            deep(5)
        recording = recorder.stop()
        life = only(blocks(recording, "numpy"), 55_555)
        assert len(recording.stacks_table[life.stack]) == depth


# ---- beginning, ending, going wrong


def everything_is_out() -> bool:
    watched = pool._watcher is not None or torch_cpu._use.watched
    threads = [t for t in threading.enumerate() if t.name == samples.THREAD]
    finders = [finder for finder in sys.meta_path if isinstance(finder, import_hooks.AfterImport)]
    own = get_handler_name() == "default_allocator"
    return own and not watched and not threads and not finders


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_an_error_inside_leaves_nothing_installed(error):
    start = threading.Thread.start
    with contextlib.suppress(error), Recorder() as recorder:
        assert not everything_is_out()
        raise error
    assert everything_is_out()
    assert threading.Thread.start is start
    assert isinstance(recorder.stop(), Recording)


def test_ctrl_c_in_the_middle_of_starting_leaves_nothing_installed(monkeypatch):
    def interrupt(*_) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "_add_existing_blocks", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Recorder().start()
    assert everything_is_out()
    monkeypatch.undo()
    with Recorder():
        pass


def test_a_second_recorder_is_refused_and_the_first_goes_on():
    with Recorder() as recorder:
        with pytest.raises(Misuse) as caught:
            Recorder().start()
        kept = np.empty(44_444, np.uint8)
    assert str(caught.value) == (
        "memory is being recorded already\n"
        "  expected: one recorder at a time\n"
        "  try: stop the other one first; enable_memory_profiling(False) stops that one"
    )
    assert only(blocks(recorder.stop(), "numpy"), 44_444)
    del kept


def test_a_recorder_can_be_started_again():
    recorder = Recorder()
    for size in (10_000, 20_000):
        recorder.start()
        np.empty(size, np.uint8)
        assert [life.size for life in blocks(recorder.stop(), "numpy")] == [size]


def test_stopping_what_was_not_started_is_an_error():
    with pytest.raises(Misuse, match=r"^this recorder was not started\n"):
        Recorder().stop()


def test_an_unknown_source_is_refused():
    with pytest.raises(BadInput) as caught:
        Recorder(sources=["gpu"])
    assert str(caught.value) == (
        "cannot record 'gpu'\n  expected: some of ['pool', 'numpy', 'torch', 'python']"
    )


def test_what_is_there_so_far_can_be_had_meanwhile():
    with Recorder() as recorder:
        first = np.empty(10_000, np.uint8)
        so_far = recorder.so_far()
        second = np.empty(20_000, np.uint8)
    assert [life.size for life in blocks(so_far, "numpy")] == [10_000]
    assert [life.size for life in blocks(recorder.stop(), "numpy")] == [10_000, 20_000]
    del first, second


def test_at_the_limit_it_stops_to_grow_and_says_so():
    mine = Pool()
    recorder = Recorder(limit=100)
    recorder.start()
    for _ in range(60):
        mine.free(mine.allocate(1000))
    recorder._check_limit()
    for _ in range(60):
        mine.free(mine.allocate(1000))
        np.empty(10_000)
    recording = recorder.stop()
    count = sum(event.kind in (Kind.ALLOC, Kind.FREE) for event in recording.events())
    assert 120 <= count < 140
    assert len(recording.notes) == 1
    assert recording.notes[0].startswith("recording stopped after 12")
    assert recording.notes[0].endswith(" events: the limit is 100")


def test_the_notes_say_what_cannot_be_watched(monkeypatch):
    def refuse(*_) -> None:
        raise Unsupported("there is no C++ compiler on this machine")

    monkeypatch.setattr(torch_cpu, "watch", refuse)
    with Recorder() as recorder:
        pass
    assert recorder.stop().notes == [
        "torch's CPU memory is not recorded: there is no C++ compiler on this machine"
    ]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_fork_inside_does_not_disturb_either_side():
    mine = Pool()
    with Recorder() as recorder:
        child = os.fork()
        if not child:
            try:
                kept = [mine.allocate(1000), np.empty(10_000), torch.empty(10_000)]
                recording = recorder.stop()
                with Recorder() as own:
                    kept.append(np.empty(33_333, np.uint8))
                only(blocks(own.stop(), "numpy"), 33_333)
                note = "this is the child of a fork: what it did itself is not recorded"
                os._exit(0 if recording.notes == [note] else 1)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        kept = np.empty(22_222, np.uint8)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [life.size for life in blocks(recorder.stop(), "numpy")] == [22_222]
    del kept


def test_a_recording_survives_saving_and_loading(tmp_path):
    with Recorder(title="all of it") as recorder:
        kept = [np.empty(10_000), torch.empty(10_000)]
    recording = recorder.stop()
    assert Recording.load(recording.save(tmp_path / "x.hfmem")) == recording
    del kept


# ---- the Python core


@pytest.mark.slow
def test_with_the_python_core_pools_are_recorded_and_the_rest_is_in_the_notes(build):
    program = """
        import numpy as np, torch
        from holdfast.memory.pools.pool import Pool
        from holdfast.memory.profile.recorder import Recorder
        early = Pool(name="early")
        with Recorder() as recorder:
            early.allocate(5000)
            np.empty(10_000), torch.empty(10_000)
        recording = recorder.stop()
        print(recording.places_table, [life.size for life in recording.lifetimes()])
        print(*recording.notes, sep="\\n")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**build, "HOLDFAST_CORE": "python"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == (
        "[MemoryPlace(source='pool', device='cpu', name='early')] [5000]\n"
        "torch's CPU memory is not recorded: this needs the compiled core of the pools\n"
        "NumPy's memory is not recorded: this needs the compiled core of the pools\n"
    ), done.stderr


# ---- imports that come later


@pytest.mark.slow
def test_modules_imported_meanwhile_are_watched_and_none_is_imported_by_us(build):
    program = """
        import sys
        from holdfast.memory.profile.recorder import Recorder
        with Recorder() as recorder:
            assert not {"numpy", "torch"} & set(sys.modules)
            import torch
            kept = torch.empty(100_000), torch.empty(100_000).numpy().copy()
        sizes = {l.size: recorder.recording.places_table[l.place].source
                 for l in recorder.recording.lifetimes() if l.end_ns is None}
        print(sizes.get(400_000), recorder.recording.notes)
        with Recorder() as recorder:
            pass
        del sys.modules["torch"], sys.modules["numpy"]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=build,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "numpy []\n", done.stderr


def test_an_import_that_fails_fails_as_ever(tmp_path, monkeypatch):
    (tmp_path / "broken_one.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    called = []
    hook = import_hooks.AfterImport("broken_one", lambda: called.append(1))
    hook.start()
    with pytest.raises(ZeroDivisionError):
        __import__("broken_one")
    (tmp_path / "broken_one.py").write_text("fine = True\n")
    sys.path_importer_cache.clear()
    assert __import__("broken_one").fine
    assert called == [1]
    hook.stop()
    assert hook not in sys.meta_path


# ---- CUDA


def test_events_of_cuda_are_put_among_the_others_by_the_wall_clock():
    recording = Recording(started_s=100.0, places_table=[MemoryPlace("pool", "cpu")])
    recording.add(Event(1_000_000_000, Kind.ALLOC, 1, 10, 0, 0, 0))
    recording.add(Event(3_000_000_000, Kind.FREE, 1, 10, 0, 0, 0))
    cuda = Recording(started_s=99.5, places_table=[MemoryPlace("torch", "cuda:0")], notes=["seen"])
    cuda.stacks_table.append((Frame("a.py", 1, "f"),))
    cuda.add(Event(0, Kind.ALLOC, 7, 70, 0, 0, 0))
    cuda.add(Event(2_500_000_000, Kind.ALLOC, 8, 80, 1, 0, 0))
    merge(recording, cuda)
    assert list(recording.events()) == [
        Event(0, Kind.ALLOC, 7, 70, 0, 1, 0),
        Event(1_000_000_000, Kind.ALLOC, 1, 10, 0, 0, 0),
        Event(2_000_000_000, Kind.ALLOC, 8, 80, 1, 1, 0),
        Event(3_000_000_000, Kind.FREE, 1, 10, 0, 0, 0),
    ]
    assert recording.places_table == [MemoryPlace("pool", "cpu"), MemoryPlace("torch", "cuda:0")]
    assert recording.stacks_table == [(), (Frame("a.py", 1, "f"),)]
    assert recording.notes == ["seen"]


class FakeCuda:
    """torch.cuda as far as the recorder knows it."""

    def __init__(self, refuse: str = "") -> None:
        self.memory = self
        self.calls: list[str] = []
        self.waiting: list = []
        self.refuse = refuse

    def _lazy_call(self, then) -> None:
        self.waiting.append(then)

    def initialise(self) -> None:
        for then in self.waiting:
            then()

    def _record_memory_history(self, enabled, **options) -> None:
        if self.refuse:
            raise RuntimeError(self.refuse)
        self.calls.append(f"history {enabled}")

    def _snapshot(self) -> dict:
        self.calls.append("snapshot")
        entry = {"action": "alloc", "addr": 512, "size": 4096, "time_us": time.time_ns() // 1000}
        frames = [{"filename": "a.py", "line": 3, "name": "f"}]
        return {"segments": [], "device_traces": [[{**entry, "frames": frames}]]}


def test_torchs_history_of_cuda_is_switched_on_when_cuda_comes_up_and_off_at_the_end(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch_cuda_trace, "_cuda", lambda: fake)
    with Recorder(sources=["torch"]) as recorder:
        assert fake.calls == []
        fake.initialise()
    recording = recorder.stop()
    assert fake.calls == ["history all", "snapshot", "history None"]
    life = only(recording.lifetimes(), 4096)
    assert recording.places_table[life.place] == MemoryPlace("torch", "cuda:0")
    assert recording.stacks_table[life.stack] == (Frame("a.py", 3, "f"),)
    assert 0 <= life.start_ns <= recording.duration_ns + 1_000_000_000


def test_a_program_that_never_uses_cuda_leaves_torchs_history_alone(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(torch_cuda_trace, "_cuda", lambda: fake)
    with Recorder(sources=["torch"]):
        pass
    fake.initialise()  # later, and no longer our affair
    assert fake.calls == []


def test_the_notes_name_a_history_that_torch_refuses(monkeypatch):
    fake = FakeCuda(refuse="no such thing")
    monkeypatch.setattr(torch_cuda_trace, "_cuda", lambda: fake)
    with Recorder(sources=["torch"]) as recorder:
        fake.initialise()
    assert recorder.stop().notes == ["torch's CUDA memory is not recorded: no such thing"]


def test_the_line_of_an_instruction_is_the_one_of_its_statement():
    def two_lines():
        a = 1
        return a + 2

    code = two_lines.__code__
    last = len(code.co_code) - 2
    name = "test_the_line_of_an_instruction_is_the_one_of_its_statement.<locals>.two_lines"
    frame = Frame(__file__, code.co_firstlineno + 2, name)
    assert resolve([[], [(code, last)]]) == [(), (frame,)]


# ---- scripts


def record_script(build, tmp_path: Path, text: str, *argv: str) -> subprocess.CompletedProcess:
    (tmp_path / "prog.py").write_text(textwrap.dedent(text))
    runner = (
        "import sys\nfrom pathlib import Path\n"
        "from holdfast.memory.profile.script import run_script\n"
        f"argv = {['prog.py', *argv]!r}\n"
        "sys.exit(run_script(argv, False, Path('out.hfmem')))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", runner], env=build, cwd=tmp_path, capture_output=True, text=True
    )


def test_a_script_runs_as_python_would_run_it(build, tmp_path):
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    done = record_script(
        build,
        tmp_path,
        """
        import sys, threading, beside
        import numpy as np
        def work():
            global kept
            kept = np.empty(54_321, np.uint8)
        if __name__ == "__main__":
            print(sys.argv, beside.name)
            sys.modules["__main__"].work
            threading.Thread(target=work).start()
        """,
        "--n",
        "3",
    )
    assert (done.stdout, done.stderr) == ("['prog.py', '--n', '3'] beside\n", "")
    assert done.returncode == 0
    recording = Recording.load(tmp_path / "out.hfmem")
    assert recording.title == "prog.py --n 3"
    life = only(blocks(recording, "numpy"), 54_321)
    assert life.end_ns is None
    assert recording.stacks_table[life.stack][0] == Frame("prog.py", 6, "work")


def test_an_error_of_the_script_is_shown_as_python_shows_it(build, tmp_path):
    text = """
        import numpy as np
        kept = np.empty(54_321, np.uint8)
        def fail():
            return 1 / 0
        fail()
        """
    done = record_script(build, tmp_path, text)
    plain = subprocess.run(
        [sys.executable, "prog.py"], cwd=tmp_path, capture_output=True, text=True
    )
    shown = plain.stderr.replace(f'"{tmp_path}/prog.py"', '"prog.py"')
    assert (done.stderr, done.returncode) == (shown, 1)
    recording = Recording.load(tmp_path / "out.hfmem")
    stack = recording.stacks_table[only(blocks(recording, "numpy"), 54_321).stack]
    assert stack == (Frame("prog.py", 3, "<module>"),)


@pytest.mark.parametrize(
    ("end", "status", "shown"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no good')", 1, "no good\n"),
        ("sys.exit(-1)", 255, ""),
    ],
)
def test_the_exit_status_of_the_script_is_kept(build, tmp_path, end, status, shown):
    done = record_script(build, tmp_path, f"import sys\n{end}\n")
    assert (done.returncode, done.stderr) == (status, shown)
    assert Recording.load(tmp_path / "out.hfmem").title == "prog.py"


def test_an_interrupted_script_leaves_its_recording(build, tmp_path):
    done = record_script(
        build,
        tmp_path,
        f"import os\nos.kill(os.getpid(), {int(signal.SIGINT)})\nwhile True: pass\n",
    )
    assert done.returncode == 130
    assert done.stderr.endswith("\nKeyboardInterrupt\n")
    assert (tmp_path / "out.hfmem").exists()


def test_a_child_that_the_script_forks_writes_no_recording(build, tmp_path):
    done = record_script(
        build,
        tmp_path,
        """
        import os, sys, numpy
        if not os.fork():
            sys.exit(5)
        os.wait()
        kept = numpy.empty(54_321, numpy.uint8)
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert only(blocks(Recording.load(tmp_path / "out.hfmem"), "numpy"), 54_321)


def test_a_module_can_be_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "a_module.py").write_text("import sys; print(__name__, sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)
    before = sys.argv, sys.path[:]
    assert run_script(["a_module", "x"], True, tmp_path / "out.hfmem") == 0
    assert (sys.argv, sys.path) == before
    assert capsys.readouterr().out == "__main__ ['x']\n"


def test_a_script_or_module_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        run_script(["nothing.py"], False, tmp_path / "out.hfmem")
    assert str(caught.value) == "there is no file 'nothing.py'\n  expected: a Python script"
    with pytest.raises(BadInput) as caught:
        run_script(["nothing_here"], True, tmp_path / "out.hfmem")
    assert str(caught.value) == (
        "cannot run the module 'nothing_here': No module named nothing_here\n  expected: a module"
    )
    assert not (tmp_path / "out.hfmem").exists()

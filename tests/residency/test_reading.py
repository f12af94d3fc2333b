from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import BadInput, Misuse
from holdfast.residency.files import reading
from holdfast.residency.files.reading import FileRange, Reading, read_into

SIZE = 300_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def file(folder: Path) -> Path:
    path = folder / "bytes.bin"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture(autouse=True)
def nothing_left_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small pieces, and every test ends with the threads and the open files it began with."""
    monkeypatch.setattr(reading, "PIECE_BYTES", 4096)
    threads, files = set(threading.enumerate()), _open_files()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join()  # over already, but for its last breath
    assert _open_files() == files


def _open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def _calls(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], object]) -> list[int]:
    """The sizes of all reads; `before` is told how many there were before each."""
    sizes: list[int] = []
    real = os.preadv

    def preadv(descriptor: int, views: Any, offset: int) -> int:
        before(len(sizes))
        count = real(descriptor, views, offset)
        sizes.append(count)
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    return sizes


def _set_when_stopped(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as the threads know that they are to stop."""
    stopped = threading.Event()
    real = reading._Crew.__exit__

    def leave(self: Any, *about: object) -> None:
        real(self, *about)
        stopped.set()

    monkeypatch.setattr(reading._Crew, "__exit__", leave)
    return stopped


# ---- what is read


def test_a_buffer_an_array_and_a_tensor_get_the_bytes_of_their_part(file: Path) -> None:
    content = file.read_bytes()
    plain, tensor = bytearray(10_001), torch.zeros(50_000, dtype=torch.uint8)
    read_into([FileRange(file, 7, 10_001, plain), FileRange(file, 100_000, 50_000, tensor)])
    assert plain == content[7:10_008]
    assert tensor.numpy().tobytes() == content[100_000:150_000]


def test_a_tensor_of_numbers_is_filled_by_its_bytes(folder: Path) -> None:
    numbers = torch.rand(33, 7)
    (folder / "numbers").write_bytes(numbers.numpy().tobytes())
    target = torch.empty(33, 7)
    read_into([FileRange(folder / "numbers", 0, 33 * 7 * 4, target)])
    assert torch.equal(target, numbers)


@given(
    spans=st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 20_000)), max_size=12),
    threads=st.integers(1, 4),
    most=st.integers(1, 5000),
)
def test_any_parts_in_any_order_are_read_though_the_system_gives_a_little_at_a_time(
    file: Path, spans: list[tuple[int, int]], threads: int, most: int
) -> None:
    content = file.read_bytes()
    parts = [FileRange(file, a, min(n, SIZE - a), bytearray(min(n, SIZE - a))) for a, n in spans]
    with pytest.MonkeyPatch.context() as patch:
        real = os.preadv
        patch.setattr(os, "preadv", lambda fd, v, at: real(fd, [v[0][: max(most, 500)]], at))
        read_into(parts, threads=threads)
    for part in parts:
        assert part.target == content[part.offset : part.offset + part.nbytes]


def test_small_neighbours_are_read_by_one_call(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = _calls(monkeypatch, lambda _: None)
    parts = [FileRange(file, at * 10, 10, bytearray(10)) for at in range(300)]
    read_into(parts)
    assert sizes == [3000]
    assert b"".join(part.target for part in parts) == file.read_bytes()[:3000]


def test_a_system_that_cannot_read_at_a_place_reads_all_the_same(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "preadv")
    target = bytearray(SIZE)
    read_into([FileRange(file, 0, SIZE, target)], threads=4)
    assert target == file.read_bytes()


def test_a_sink_gets_every_byte_once(file: Path) -> None:
    found: dict[int, bytes] = {}
    sink = FileRange(file, 5, 50_000, sink=lambda at, view: found.update({at: bytes(view)}))
    read_into([sink, FileRange(file, 50_005, 100, bytearray(100))], threads=3)
    assert all(at % 4096 == 0 for at in found)
    assert b"".join(found[at] for at in sorted(found)) == file.read_bytes()[5:50_005]


def test_progress_grows_to_the_whole_and_comes_from_the_calling_thread(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    slow = threading.Event()
    _calls(monkeypatch, lambda count: slow.wait(0.05) if count == 20 else None)
    threads = set()

    def progress(done: int, total: int) -> None:
        threads.add(threading.current_thread())
        told.append((done, total))

    read_into([FileRange(file, 0, SIZE, bytearray(SIZE))], threads=2, progress=progress)
    assert told == sorted(told)
    assert told[-1] == (SIZE, SIZE)
    assert threads == {threading.current_thread()}


def test_nothing_to_read_is_no_work() -> None:
    told: list[tuple[int, int]] = []
    read_into([], progress=lambda *numbers: told.append(numbers))
    assert told == [(0, 0)]


# ---- breaking off and going on


def test_what_was_read_before_an_interrupt_is_not_read_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = _set_when_stopped(monkeypatch)
    sizes = _calls(monkeypatch, lambda count: count < 10 or stopped.wait(60))
    target = bytearray(SIZE)
    work = Reading([FileRange(file, 0, SIZE, target)], threads=3)

    def check() -> None:
        if len(sizes) >= 10:
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        work.run(check=check)
    # Each thread ends the one read it was in; three may have begun when nine were over.
    assert len(sizes) <= 9 + 3 + 3
    assert 0 < work.done_bytes < SIZE
    assert not work.is_done
    work.run()
    assert sum(sizes) == SIZE
    assert work.is_done
    assert target == file.read_bytes()


def test_control_c_comes_out_and_the_rest_can_be_read_later(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = _set_when_stopped(monkeypatch)

    def strike(count: int) -> None:
        if count == 5 and not stopped.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            stopped.wait(60)

    sizes = _calls(monkeypatch, strike)
    target = bytearray(SIZE)
    work = Reading([FileRange(file, 0, SIZE, target)], threads=1)
    with pytest.raises(KeyboardInterrupt):
        work.run()
    assert len(sizes) == 6
    work.run()
    assert sum(sizes) == SIZE
    assert target == file.read_bytes()


def test_a_piece_for_a_sink_is_read_again_unless_it_was_whole(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[int, bytes] = {}

    def sink(at: int, view: memoryview) -> None:
        assert at not in found
        if at == 8192 and not failed:
            failed.append(at)
            raise InterruptedError
        found[at] = bytes(view)

    failed: list[int] = []
    work = Reading([FileRange(file, 0, 20_000, sink=sink)], threads=1)
    with pytest.raises(InterruptedError):
        work.run()
    assert work.done_bytes == 8192
    work.run()
    assert b"".join(found[at] for at in sorted(found)) == file.read_bytes()[:20_000]


def test_check_is_called_before_anything_is_opened(folder: Path) -> None:
    def check() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        read_into([FileRange(folder / "none", 0, 1, bytearray(1))], check=check)


def test_a_read_that_takes_long_is_followed_by_a_smaller_one() -> None:
    pace = reading._Pace()
    start = pace.step_bytes
    pace.adjust(1.0)
    assert pace.step_bytes == start // 2
    for _ in range(20):
        pace.adjust(1.0)
    assert pace.step_bytes == reading.SMALLEST_BYTES
    for _ in range(20):
        pace.adjust(0.0)
    assert pace.step_bytes == reading.LARGEST_BYTES
    pace.adjust(0.01)
    assert pace.step_bytes == reading.LARGEST_BYTES


# ---- what goes wrong


def test_an_error_of_the_system_stops_all_threads_and_is_told_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(count: int) -> None:
        if count >= 10:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    sizes = _calls(monkeypatch, fail)
    with pytest.raises(BadInput) as caught:
        read_into([FileRange(file, 0, SIZE, bytearray(SIZE))], threads=4)
    assert str(caught.value) == (
        f"cannot read weights {str(file)!r}: Input/output error\n  expected: a readable file"
    )
    assert len(sizes) <= 10 + 4


def test_a_file_that_ends_too_soon_says_where(file: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read_into([FileRange(file, SIZE - 10, 30, bytearray(30))])
    assert str(caught.value) == (
        f"cannot read weights {str(file)!r}: it ends after 300 KB\n"
        "  expected: more than 300000 B: a whole file\n"
        "  try: download or copy it again"
    )


def test_a_missing_file_gives_the_systems_reason(folder: Path) -> None:
    path = folder / "none"
    with pytest.raises(BadInput) as caught:
        read_into([FileRange(path, 0, 1, bytearray(1))])
    assert str(caught.value) == (
        f"cannot read weights {str(path)!r}: No such file or directory\n  expected: a readable file"
    )


def test_going_on_with_another_file_of_that_name_is_refused(folder: Path) -> None:
    path = folder / "changing"
    path.write_bytes(bytes(10_000))
    work = Reading([FileRange(path, 0, 20_000, bytearray(20_000))])
    with pytest.raises(BadInput, match="it ends after"):
        work.run()
    path.write_bytes(bytes(20_000))
    with pytest.raises(BadInput) as caught:
        work.run()
    assert str(caught.value) == (
        f"cannot go on reading {str(path)!r}: the file has changed since\n"
        "  expected: the file that was begun\n"
        "  try: load the model from the start"
    )


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (bytes(10), "a buffer that cannot be written to"),
        (bytearray(9), "9 B for 10 B"),
        (None, "a NoneType"),
        (torch.empty(10, device="meta"), "a tensor that is not contiguous host memory"),
        (torch.empty(20, dtype=torch.uint8)[::2], "a tensor that is not contiguous host memory"),
    ],
)
def test_a_target_that_cannot_take_the_bytes_is_refused(file: Path, target: Any, what: str) -> None:
    with pytest.raises(BadInput) as caught:
        Reading([FileRange(file, 0, 10, target)])
    assert str(caught.value) == (
        f"cannot read {str(file)!r} into {what}\n"
        "  expected: a writable, contiguous buffer or tensor in host memory, as large as the part"
    )


def test_two_runs_at_once_are_refused(file: Path) -> None:
    work = Reading([FileRange(file, 0, 10, bytearray(10))])
    with pytest.raises(Misuse) as caught:
        work.run(check=work.run)
    assert str(caught.value) == (
        "these parts are being read already\n  expected: one run() at a time"
    )
    work.run()
    assert work.is_done

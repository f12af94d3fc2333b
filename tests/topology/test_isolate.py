"""Functions for the child are below; the tests call them in a process of their own."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from holdfast.base.errors import Absent, OutOfTime, Unsupported
from holdfast.topology import isolate

HERE = __name__


def double(numbers: list[int]) -> list[int]:
    print("drivers print what they like")
    return [2 * n for n in numbers]


def refuse() -> None:
    raise Absent("nothing here", expected="something", hint="elsewhere")


def stumble() -> None:
    raise KeyError("vendor")


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    print("libvendor: fatal", file=sys.stderr)
    os._exit(3)


def hang() -> None:
    time.sleep(60)


def test_the_result_comes_back_whatever_is_printed() -> None:
    assert isolate.call(f"{HERE}:double", [[1, 2]], timeout_s=60) == [2, 4]


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("refuse", Absent, "nothing here\n  expected: something\n  try: elsewhere"),
        ("stumble", Unsupported, "KeyError: 'vendor'"),
        (
            "crash",
            Unsupported,
            "its process was ended by signal 11: nothing on standard error\n"
            "  expected: a driver that answers without crashing",
        ),
        (
            "leave",
            Unsupported,
            "its process ended with status 3: libvendor: fatal\n"
            "  expected: a driver that answers without crashing",
        ),
    ],
)
def test_what_went_wrong_there_is_raised_here(
    function: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        isolate.call(f"{HERE}:{function}", [], timeout_s=60)
    assert type(caught.value) is error
    assert str(caught.value) == message


def test_a_process_that_hangs_is_ended() -> None:
    with pytest.raises(OutOfTime) as caught:
        isolate.call(f"{HERE}:hang", [], timeout_s=0.5)
    assert str(caught.value) == (
        "no answer from a child process within 0.5 s\n"
        "  expected: a driver that answers\n"
        "  try: a longer HOLDFAST_PROBE_TIMEOUT_S, or look for a driver that hangs"
    )

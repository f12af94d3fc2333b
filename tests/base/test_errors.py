from __future__ import annotations

import pickle

import pytest

from holdfast.base import errors


def test_an_error_says_what_happened_what_was_expected_and_what_to_try() -> None:
    error = errors.OutOfMemory(
        "cannot load 'flux-dev' (23.8 GB) on cuda:0: 7.2 GB free after unloading 3 models",
        expected="23.8 GB of weights + 1.0 GB of headroom",
        hint="holdfast run --budget 6GB (streams the rest), or --precision fp8",
    )
    assert str(error) == (
        "cannot load 'flux-dev' (23.8 GB) on cuda:0: 7.2 GB free after unloading 3 models\n"
        "  expected: 23.8 GB of weights + 1.0 GB of headroom\n"
        "  try: holdfast run --budget 6GB (streams the rest), or --precision fp8"
    )


def test_parts_that_are_not_known_are_left_out() -> None:
    assert str(errors.BadInput("no")) == "no"


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.BadInput, ValueError),
        (errors.NotFound, LookupError),
        (errors.AlreadyRegistered, ValueError),
        (errors.MissingDependency, ImportError),
        (errors.Unsupported, RuntimeError),
        (errors.Absent, RuntimeError),
        (errors.OutOfTime, TimeoutError),
        (errors.OutOfMemory, MemoryError),
    ],
)
def test_every_error_is_the_builtin_a_caller_expects_and_survives_pickling(
    error: type[errors.HoldfastError], builtin: type[Exception]
) -> None:
    original = error("what", expected="this", hint="that")
    assert isinstance(original, builtin)
    copy = pickle.loads(pickle.dumps(original))
    assert type(copy) is error
    assert str(copy) == str(original)


def test_the_drawing_of_the_tree_names_every_class() -> None:
    classes = [
        value.__name__
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.HoldfastError)
    ]
    assert errors.__doc__ is not None
    assert [name for name in classes if name not in errors.__doc__] == []

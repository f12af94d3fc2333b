from __future__ import annotations

import pytest

from holdfast.base.interrupts import is_interrupt


def _import_lazily() -> None:
    try:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as exc:
            raise ImportError("no module") from exc
    except ImportError:
        raise RuntimeError("failed to import")  # noqa: B904  the context is what is tested


def test_ctrl_c_is_found_behind_what_a_library_made_of_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        _import_lazily()
    assert is_interrupt(caught.value)
    assert is_interrupt(KeyboardInterrupt())


def test_other_errors_are_no_ctrl_c() -> None:
    assert not is_interrupt(RuntimeError("x"))

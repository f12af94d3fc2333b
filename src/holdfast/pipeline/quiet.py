"""Keeping diffusers and transformers from talking over us."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import diffusers.utils.logging
import transformers.utils.logging

_VOICES = (diffusers.utils.logging, transformers.utils.logging)
_lock = threading.Lock()
_before: list[tuple[int, bool]] = []  # how loud each voice was before the first block
_blocks = 0


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No bars and no advice from the libraries; how loud the user had them is restored.

    Blocks may overlap, in one thread or several: the last one to be left restores.
    """
    global _blocks
    with _lock:
        if _blocks == 0:
            _before[:] = [(v.get_verbosity(), v.is_progress_bar_enabled()) for v in _VOICES]
        _blocks += 1
        for voice in _VOICES:
            voice.set_verbosity_error()
            voice.disable_progress_bar()
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _restore()


def _restore() -> None:
    for voice, (verbosity, bars) in zip(_VOICES, _before, strict=True):
        voice.set_verbosity(verbosity)
        if bars:
            voice.enable_progress_bar()

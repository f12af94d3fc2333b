"""Silence the logging and progress bars of diffusers and transformers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import diffusers.utils.logging
import transformers.utils.logging

_LOGGERS = (diffusers.utils.logging, transformers.utils.logging)
_lock = threading.Lock()
_before: list[tuple[int, bool]] = []  # verbosity and bars of each logger before the first block
_blocks = 0


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the libraries inside the block, then restore the user's settings.

    Blocks may overlap, in one thread or several: the last one to exit restores.
    """
    global _blocks
    with _lock:
        if _blocks == 0:
            _before[:] = [(v.get_verbosity(), v.is_progress_bar_enabled()) for v in _LOGGERS]
        _blocks += 1
        for logger in _LOGGERS:
            logger.set_verbosity_error()
            logger.disable_progress_bar()
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            for logger, (verbosity, bars) in () if _blocks else zip(_LOGGERS, _before, strict=True):
                logger.set_verbosity(verbosity)
                if bars:
                    logger.enable_progress_bar()

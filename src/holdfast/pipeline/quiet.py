"""Keeping diffusers and transformers from talking over us."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import diffusers.utils.logging
import transformers.utils.logging


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No bars and no advice from the libraries; how loud the user had them is restored."""
    voices = [diffusers.utils.logging, transformers.utils.logging]
    before = [(voice, voice.get_verbosity(), voice.is_progress_bar_enabled()) for voice in voices]
    try:
        for voice in voices:
            voice.set_verbosity_error()
            voice.disable_progress_bar()
        yield
    finally:
        for voice, verbosity, bars in before:
            voice.set_verbosity(verbosity)
            if bars:
                voice.enable_progress_bar()

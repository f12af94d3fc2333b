"""Progress and previews while a sampler runs.

Previews take at most a fifth of the time, except the first, which may compile, and the last, which
stays. A preview that fails is left out; without a client there are none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.base.errors import HoldfastError
from holdfast.nodes import host

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from holdfast.nodes.xla.sockets import LatentLayout
    from holdfast.pipeline import Pipeline, Settings

# An autoencoder of this size decodes a small picture fast enough.
_SMALL_WEIGHTS = 5_000_000
_SMALL_PICTURE = 256 * 256
_PAUSE = 4  # times what the last preview took
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 0.5


def make_step_callback(steps: int) -> Callable[[int | None], None]:
    """Make a callback for steps done, which moves the bar and raises if the user stops the run.

    With None it only checks for a stop. Packs that `holdfast port new` writes use it.
    """
    show = host.progress()
    return lambda done: host.check() if done is None else show(done, steps)


class Steps:
    """Step callback of a run. `latents` is called too if the sampling loop supports it."""

    def __init__(self, pipe: Pipeline, layout: LatentLayout, settings: Settings) -> None:
        self._pipe, self._layout, self._settings = pipe, layout, settings
        self._show = host.progress()
        self._due_s = 0.0
        self._done = 0
        self._preview: Image | None = None

    def __call__(self, done: int) -> None:
        """Show that `done` steps are done."""
        self._done = done
        preview, self._preview = self._preview, None
        if done == 1:
            host.text(f"drawing, {self._settings.steps} steps")
        self._show(done, self._settings.steps, preview)

    def latents(self, get: Callable[[], torch.Tensor]) -> None:
        """Called before `__call__`; `get()` returns the latents of the step on the CPU."""
        began_s = time.perf_counter()
        last = self._done + 1 == self._settings.steps and math.isfinite(self._due_s)
        if not host.has_screen() or (began_s < self._due_s and not last):
            return
        try:
            self._preview = self._picture(get())
        except (HoldfastError, RuntimeError):
            self._due_s = float("inf")  # it would fail again
            return
        now_s = time.perf_counter()
        pause_s = max(_PAUSE * (now_s - began_s), _SHORTEST_PAUSE_S)
        self._due_s = now_s + min(pause_s, _LONGEST_PAUSE_S)

    def _picture(self, latents: torch.Tensor) -> Image:
        """Decode by the model's own autoencoder if that is fast, else by a matrix."""
        if self._is_fast():
            from PIL import Image

            return Image.fromarray(self._pipe.decode(latents, self._settings)[0])
        wide = self._layout.unpack(latents, self._settings)
        return mix_colours(wide, host.rgb_factors(self._layout.family, self._layout.channels))

    def _is_fast(self) -> bool:
        """False for videos: their autoencoders decode all frames."""
        settings = self._settings
        small = settings.height * settings.width <= _SMALL_PICTURE
        elements = self._pipe.source.elements().get("vae", 0) if small else 0
        return small and self._layout.family == "flux" and 0 < elements <= _SMALL_WEIGHTS


def mix_colours(latents: torch.Tensor, factors: tuple[Any, Any] | None) -> Image:
    """The first latent of a batch as a picture; of a video the middle frame.

    Without factors the first three channels are the colours.
    """
    import torch
    from PIL import Image

    one = latents[0].float()
    if one.ndim == 4:
        one = one[:, one.shape[1] // 2]
    if factors is None:
        colours = one[:3].permute(1, 2, 0)
        low, high = colours.amin(), colours.amax()
        colours = (colours - low) / (high - low).clamp(min=1e-6)
    else:
        matrix, bias = (torch.tensor(part, dtype=torch.float32) for part in factors)
        colours = ((one.permute(1, 2, 0) @ matrix + bias + 1) / 2).clamp(0, 1)
    found = Image.fromarray((colours * 255).round().to(torch.uint8).numpy())
    return found.resize((found.width * 8, found.height * 8))

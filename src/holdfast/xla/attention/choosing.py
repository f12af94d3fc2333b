"""Which engine computes an attention, and why. Pure: nothing here imports JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Engine = Literal["splash", "cudnn", "xla"]
MaskKind = Literal["keys", "bool", "float"]

ENGINES: dict[str, Engine] = {"splash": "splash", "cudnn": "cudnn", "xla": "xla"}

# Scores for one head from which a fused kernel is worth its start and its padding.
SPLASH_SCORES = 1024 * 1024
CUDNN_SCORES = 256 * 256
CUDNN_WIDEST = 128
CUDNN_WIDEST_HOPPER = 256
HOPPER = (9, 0)


@dataclass(frozen=True, slots=True)
class Form:
    """All that the choice depends on. Lengths and dims in numbers of elements."""

    queries: int
    keys: int
    dim: int
    value_dim: int
    dtype: str = "bfloat16"
    mask: MaskKind | None = None
    """`keys`: one bool for each key, the same for all heads and queries (padding of a text)."""
    mask_dtype: str | None = None
    is_causal: bool = False

    @property
    def scores(self) -> int:
        """Scores for one head."""
        return self.queries * self.keys


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine and the reason for it."""

    engine: Engine
    reason: str


def choose(platform: str, form: Form, *, capability: tuple[int, int] | None = None) -> EngineChoice:
    """The engine for `platform`: tpu, cuda, cpu or any other that XLA has.

    `capability` is the compute capability of an NVIDIA card; unknown counts as before Hopper.
    """
    fused: dict[str, tuple[Engine, int]] = {
        "tpu": ("splash", SPLASH_SCORES),
        "cuda": ("cudnn", CUDNN_SCORES),
    }
    if platform not in fused:
        return EngineChoice("xla", f"there is no fused attention for {platform}")
    engine, least_scores = fused[platform]
    why_not = obstacle(engine, form, capability=capability)
    if why_not is not None:
        return EngineChoice("xla", f"{engine} cannot: {why_not}")
    if form.scores < least_scores:
        return EngineChoice("xla", f"{form.queries} x {form.keys} scores are few for {engine}")
    return EngineChoice(engine, f"{form.queries} x {form.keys} scores on {platform}")


def obstacle(
    engine: Engine, form: Form, *, capability: tuple[int, int] | None = None
) -> str | None:
    """Why this engine cannot compute it at all; None where it can."""
    if engine == "xla":
        return None
    if form.scores == 0:
        return "there are no scores"
    if form.mask is not None and form.is_causal:
        return "it takes a mask or causal order, not both"
    return _splash_obstacle(form) if engine == "splash" else _cudnn_obstacle(form, capability)


def _splash_obstacle(form: Form) -> str | None:
    if form.mask not in (None, "keys"):
        return "its mask is one bool for each key, the same for all heads and queries"
    if form.dtype == "float64":
        return "it computes in float32 at most"
    return None


def _cudnn_obstacle(form: Form, capability: tuple[int, int] | None) -> str | None:
    if form.dtype not in ("bfloat16", "float16"):
        return f"it takes bfloat16 and float16, not {form.dtype}"
    widest = CUDNN_WIDEST_HOPPER if (capability or (0, 0)) >= HOPPER else CUDNN_WIDEST
    if max(form.dim, form.value_dim) > widest:
        return f"heads of {max(form.dim, form.value_dim)} are wider than {widest}"
    if form.mask == "float" and form.mask_dtype != form.dtype:
        return f"a {form.mask_dtype} mask would be rounded to {form.dtype}"
    return None

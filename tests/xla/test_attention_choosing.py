"""Which engine computes an attention, in what pieces, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from holdfast.base.errors import BadInput, HoldfastError, NotFound, Unsupported  # noqa: E402
from holdfast.xla.attention import (  # noqa: E402
    EngineChoice,
    Form,
    choose,
    obstacle,
    scaled_dot_product_attention,
)
from holdfast.xla.attention.plain import rows_at_once  # noqa: E402
from holdfast.xla.attention.splash import block  # noqa: E402

pytestmark = pytest.mark.xla

LONG = Form(queries=4608, keys=4608, dim=128, value_dim=128)
TEXT = Form(queries=4608, keys=512, dim=128, value_dim=128, mask="keys", mask_dtype="bool")


@pytest.mark.parametrize(
    ("platform", "form", "capability", "choice"),
    [
        ("cpu", LONG, None, EngineChoice("xla", "there is no fused attention for cpu")),
        ("rocm", LONG, None, EngineChoice("xla", "there is no fused attention for rocm")),
        ("tpu", LONG, None, EngineChoice("splash", "4608 x 4608 scores on tpu")),
        ("tpu", TEXT, None, EngineChoice("splash", "4608 x 512 scores on tpu")),
        (
            "tpu",
            replace(LONG, dtype="float32"),
            None,
            EngineChoice("splash", "4608 x 4608 scores on tpu"),
        ),
        ("tpu", replace(LONG, dim=40), None, EngineChoice("splash", "4608 x 4608 scores on tpu")),
        (
            "tpu",
            replace(LONG, keys=77),
            None,
            EngineChoice("xla", "4608 x 77 scores are few for splash"),
        ),
        (
            "tpu",
            replace(LONG, mask="float", mask_dtype="float32"),
            None,
            EngineChoice(
                "xla",
                "splash cannot: its mask is one bool for each key, the same for all heads and "
                "queries",
            ),
        ),
        (
            "tpu",
            replace(TEXT, is_causal=True),
            None,
            EngineChoice("xla", "splash cannot: it takes a mask or causal order, not both"),
        ),
        ("cuda", LONG, (8, 0), EngineChoice("cudnn", "4608 x 4608 scores on cuda")),
        ("cuda", TEXT, (8, 0), EngineChoice("cudnn", "4608 x 512 scores on cuda")),
        ("cuda", replace(LONG, keys=77), (8, 0), EngineChoice("cudnn", "4608 x 77 scores on cuda")),
        (
            "cuda",
            replace(LONG, queries=77, keys=77),
            (8, 0),
            EngineChoice("xla", "77 x 77 scores are few for cudnn"),
        ),
        (
            "cuda",
            replace(LONG, dtype="float32"),
            (9, 0),
            EngineChoice("xla", "cudnn cannot: it takes bfloat16 and float16, not float32"),
        ),
        (
            "cuda",
            replace(LONG, dim=192),
            (8, 9),
            EngineChoice("xla", "cudnn cannot: heads of 192 are wider than 128"),
        ),
        (
            "cuda",
            replace(LONG, dim=192),
            (9, 0),
            EngineChoice("cudnn", "4608 x 4608 scores on cuda"),
        ),
        (
            "cuda",
            replace(LONG, dim=512),
            (9, 0),
            EngineChoice("xla", "cudnn cannot: heads of 512 are wider than 256"),
        ),
        (
            "cuda",
            replace(LONG, dim=192),
            None,
            EngineChoice("xla", "cudnn cannot: heads of 192 are wider than 128"),
        ),
        (
            "cuda",
            replace(LONG, mask="float", mask_dtype="float32"),
            (9, 0),
            EngineChoice("xla", "cudnn cannot: a float32 mask would be rounded to bfloat16"),
        ),
        (
            "cuda",
            replace(LONG, mask="float", mask_dtype="bfloat16"),
            (9, 0),
            EngineChoice("cudnn", "4608 x 4608 scores on cuda"),
        ),
        (
            "cuda",
            replace(LONG, keys=0),
            (9, 0),
            EngineChoice("xla", "cudnn cannot: there are no scores"),
        ),
    ],
)
def test_the_choice_and_its_reason(
    platform: str, form: Form, capability: tuple[int, int] | None, choice: EngineChoice
) -> None:
    assert choose(platform, form, capability=capability) == choice


def test_xla_has_no_obstacle() -> None:
    assert obstacle("xla", replace(TEXT, keys=0, dtype="float64", is_causal=True)) is None


@pytest.mark.parametrize(
    ("length", "dim", "size"),
    [
        (1, 128, 128),
        (129, 128, 256),
        (300, 128, 128),
        (512, 128, 512),
        (4608, 128, 512),
        (4999, 128, 1024),
        (75600, 128, 1024),
        (75600, 200, 512),
        (75600, 512, 256),
        (75600, 4096, 128),
    ],
)
def test_blocks_are_large_where_that_pads_little(length: int, dim: int, size: int) -> None:
    assert block(length, dim) == size


@pytest.mark.parametrize(
    ("queries", "row_bytes", "score_bytes", "rows"),
    [(100, 1, 100, 100), (100, 1, 99, 56), (100, 1, 1, 1), (100, 10, 5, 1), (1000, 1, 301, 256)],
)
def test_queries_go_in_runs_of_about_equal_size(
    queries: int, row_bytes: int, score_bytes: int, rows: int
) -> None:
    assert rows_at_once(queries, row_bytes, score_bytes) == rows


def refusal(kind: type[HoldfastError], *shapes: Any, mask: Any = None, **options: Any) -> str:
    query, key, value = (
        jnp.zeros(one) if isinstance(one, tuple) else jnp.zeros((2, 3, 4, 8), one) for one in shapes
    )
    with pytest.raises(kind) as caught:
        scaled_dot_product_attention(query, key, value, mask, **options)
    return str(caught.value)


SAME = [(2, 3, 4, 8)] * 3


def test_dropout_is_refused() -> None:
    assert refusal(Unsupported, *SAME, dropout_p=0.1) == (
        "attention with dropout_p=0.1\n"
        "  expected: dropout_p=0.0: ports run models, they do not train them\n"
        "  try: model.eval()"
    )


def test_an_unknown_engine_is_refused() -> None:
    assert refusal(NotFound, *SAME, engine="flash") == (
        "no attention engine 'flash'\n"
        "  expected: splash, cudnn or xla\n"
        "  try: engine=None, which chooses"
    )


def test_an_engine_that_cannot_is_refused_when_asked_for() -> None:
    assert refusal(Unsupported, *SAME, mask=jnp.zeros((4, 4)), engine="splash") == (
        "attention by splash: its mask is one bool for each key, the same for all heads and "
        "queries\n"
        "  expected: a form that the engine has\n"
        '  try: engine="xla", or engine=None, which chooses'
    )


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a cuDNN here")
def test_cudnn_where_there_is_none_is_refused() -> None:
    assert refusal(Unsupported, *["bfloat16"] * 3, engine="cudnn") == (
        "attention by cuDNN: cuDNN is not detected.\n"
        "  expected: a JAX for CUDA, and cuDNN\n"
        '  try: pip install "jax[cuda13]", or engine="xla"'
    )


def test_arrays_that_do_not_fit_are_refused() -> None:
    assert refusal(BadInput, (8,), (8,), (8,)) == (
        "attention over query (8,), key (8,), value (8,)\n"
        "  expected: two dimensions at least: [..., length, dim]"
    )
    assert refusal(BadInput, "float32", "bfloat16", "float32") == (
        "attention over query float32, key bfloat16, value float32\n"
        "  expected: one floating type for all three"
    )
    assert refusal(BadInput, "int32", "int32", "int32") == (
        "attention over query int32, key int32, value int32\n"
        "  expected: one floating type for all three"
    )
    assert refusal(BadInput, (4, 8), (4, 6), (4, 8)) == (
        "attention over query (4, 8), key (4, 6), value (4, 8)\n"
        "  expected: the last dimension of query and key alike"
    )
    assert refusal(BadInput, (4, 8), (4, 8), (5, 8)) == (
        "attention over query (4, 8), key (4, 8), value (5, 8)\n  expected: as many keys as values"
    )
    assert refusal(BadInput, (2, 1, 4, 8), (3, 1, 4, 8), (3, 1, 4, 8)) == (
        "attention over query (2, 1, 4, 8), key (3, 1, 4, 8), value (3, 1, 4, 8)\n"
        "  expected: batch dimensions that broadcast"
    )


def test_heads_that_do_not_fit_are_refused() -> None:
    assert refusal(BadInput, (1, 6, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)) == (
        "attention of 6 heads over 2 heads of keys and 2 of values\n"
        "  expected: as many heads of keys and values, or one\n"
        "  try: enable_gqa=True"
    )
    assert refusal(BadInput, (1, 6, 4, 8), (1, 4, 4, 8), (1, 4, 4, 8), enable_gqa=True) == (
        "attention of 6 heads over 4 heads of keys and 4 of values\n"
        "  expected: heads of keys and values that divide those of the query"
    )


def test_masks_that_do_not_fit_are_refused() -> None:
    assert refusal(BadInput, *SAME, mask=jnp.zeros((4, 4), "int32")) == (
        "an attention mask of int32 for a query of float32\n"
        "  expected: bool or float32\n"
        "  try: mask.astype(bool), where True keeps a key"
    )
    assert refusal(BadInput, *SAME, mask=jnp.zeros((4, 5))) == (
        "an attention mask of (4, 5) for scores of (2, 3, 4, 4)\n"
        "  expected: a mask that broadcasts to the scores"
    )
    assert refusal(BadInput, *SAME, mask=jnp.zeros((1, 1, 1, 1, 4))) == (
        "an attention mask of (1, 1, 1, 1, 4) for scores of (2, 3, 4, 4)\n"
        "  expected: a mask that broadcasts to the scores"
    )

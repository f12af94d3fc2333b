"""Mends of torchax's numbers, of flex_attention and of experts, as in test_compat.

A test named "... still ..." fails once torchax no longer needs the mend: then both can go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention import flex_attention as flex_module  # noqa: E402

from holdfast.base.errors import Unsupported  # noqa: E402
from holdfast.xla.arrays import to_jax, to_torch  # noqa: E402
from holdfast.xla.compat import experts, flex  # noqa: E402
from holdfast.xla.compat.environment import Environment, Tensor  # noqa: E402
from holdfast.xla.compat.writing import write_slice  # noqa: E402
from tests.xla.compat_cases import X, fails, jitted, plain, right  # noqa: E402

# torchax makes whole numbers 64 bits wide in some places, and JAX warns that it has none.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")


# ---- convolutions

IMAGE = torch.randn(2, 16, 6, 5, generator=torch.Generator().manual_seed(0))
POINTS = torch.randn(16, 8, 1, 1, generator=torch.Generator().manual_seed(1))


def mixed(x: Any, columns: Any, weight: Any) -> Any:
    """A split matrix, then a convolution of two groups at single points."""
    return functional.conv2d((x.movedim(1, -1) @ columns).movedim(-1, 1), weight, groups=2)


def apart(env: Any) -> float:
    """Eight devices against one."""

    def inner(*arrays: jax.Array) -> jax.Array:
        with torch.no_grad(), env:
            return mixed(*(Tensor(one, env) for one in arrays)).jax()

    columns = torch.randn(16, 16, generator=torch.Generator().manual_seed(2))
    mesh = Mesh(np.array(jax.devices()[:8]), ("tp",))
    whole = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(None, "tp"))
    one, weight = (jax.device_put(to_jax(given), whole) for given in (IMAGE, POINTS))
    found = jax.jit(inner)(one, jax.device_put(to_jax(columns), split), weight)
    expected = mixed(IMAGE, columns, POINTS)
    return float((to_torch(found) - expected).abs().max() / expected.abs().max())


def test_xla_still_splits_convolutions_of_several_groups_wrongly() -> None:
    assert apart(plain()) > 0.1


def test_convolutions_of_several_groups_are_the_same_on_eight_devices() -> None:
    assert apart(Environment()) < 1e-5


def transposed(x: Any, weight: Any) -> Any:
    return functional.conv_transpose2d(x, weight, stride=2, groups=2)


WEIGHT = torch.randn(16, 3, 3, 3, generator=torch.Generator().manual_seed(3))


def test_transposed_convolutions_still_mix_up_their_groups() -> None:
    assert fails(plain(), transposed, IMAGE, WEIGHT)


def test_transposed_convolutions_keep_their_groups() -> None:
    found = jitted(Environment(), transposed, IMAGE, WEIGHT)
    torch.testing.assert_close(found, transposed(IMAGE, WEIGHT), rtol=1e-4, atol=1e-4)


def test_points_of_several_groups_are_those_of_torch() -> None:
    def strided(x: Any, weight: Any, bias: Any) -> Any:
        return functional.conv2d(x, weight, bias, stride=(2, 3), groups=2)

    bias = torch.linspace(-1, 1, 16)
    found = jitted(Environment(), strided, IMAGE, POINTS, bias)
    torch.testing.assert_close(found, strided(IMAGE, POINTS, bias), rtol=1e-4, atol=1e-4)


# ---- writing


def numbers(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def scores(put: Callable[..., Any], x: Any, bias: Any) -> Any:
    """Of two heads whose later tokens are rotated and written back, as in CogVideoX."""

    def heads(one: Any) -> Any:
        one = one.reshape(2, 52, 2, 16).transpose(0, 2, 1, 3)
        later = one[:, :, 7:]
        pairs = later.reshape(2, 2, 45, 8, 2)
        turned = jax.numpy.stack([-pairs[..., 1], pairs[..., 0]], -1).reshape(later.shape)
        key = (slice(None), slice(None), slice(7, None))
        return put(one, key, later * numbers(45, 16) + turned * numbers(45, 16))

    queries, keys = heads(x @ numbers(32, 32)), heads(x @ numbers(32, 32) + bias)
    return jax.numpy.einsum("bhqd,bhkd->bhqk", queries, keys)


def scores_apart(put: Callable[..., Any]) -> float:
    """Eight devices against one; the bias is split."""
    mesh = Mesh(np.array(jax.devices()[:8]), ("tp",))
    x, bias = numbers(2, 52, 32), numbers(32)
    split = jax.device_put(bias, NamedSharding(mesh, PartitionSpec("tp")))
    program = jax.jit(lambda x, bias: scores(put, x, bias))
    one = np.asarray(program(x, bias))
    eight = np.asarray(program(jax.device_put(x, NamedSharding(mesh, PartitionSpec())), split))
    return float(np.abs(eight - one).max() / np.abs(one).max())


@pytest.mark.slow
def test_xla_still_splits_what_is_written_into_slices_wrongly() -> None:
    assert scores_apart(lambda array, key, value: array.at[key].set(value)) > 0.1


@pytest.mark.slow
def test_what_is_written_into_slices_is_the_same_on_eight_devices() -> None:
    assert scores_apart(write_slice) < 1e-5


KEYS: list[Any] = [
    (0,), (-1, slice(1, 3)), (slice(None), 2), (Ellipsis, slice(2, None)), (slice(1, 1),),
    (slice(None, None, 2),), (slice(None), slice(None, None, -1)), ([2, 0],), (slice(-2, None), -1),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_writing_is_that_of_numpy(key: Any) -> None:
    expected = X.numpy().copy()
    expected[key] = -7
    assert np.array_equal(np.asarray(write_slice(to_jax(X), key, -7)), expected)
    filled = X.numpy().copy()
    value = np.arange(filled[key].size, dtype=np.float32).reshape(filled[key].shape)
    filled[key] = value
    found = write_slice(to_jax(X), key, jax.numpy.asarray(value)[None])
    assert np.array_equal(np.asarray(found), filled)


# ---- rounding

NOISE = torch.linspace(-6, 6, 1024).to(torch.bfloat16).reshape(4, 256)
ROUNDED: dict[str, Callable[..., Any]] = {
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "glu": functional.glu,
    "cumsum": lambda x: x.cumsum(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "avg_pool1d": lambda x: functional.avg_pool1d(x, 4),
    "bicubic": lambda x: functional.interpolate(x[None, None], size=(7, 99), mode="bicubic"),
}


def off(env: Any, function: Callable[..., Any]) -> float:
    """The error in bfloat16, as a multiple of what one rounding costs."""
    exact = function(NOISE.float())
    once = exact.to(torch.bfloat16).float()
    found = jitted(env, function, NOISE)
    assert found.dtype == torch.bfloat16
    return float((found.float() - exact).norm() / (once - exact).norm())


@pytest.mark.parametrize("name", ROUNDED)
def test_torchax_still_rounds_at_every_step(name: str) -> None:
    assert off(plain(), ROUNDED[name]) > 1.05


@pytest.mark.parametrize("name", ROUNDED)
def test_what_torch_rounds_once_is_rounded_once(name: str) -> None:
    assert off(Environment(), ROUNDED[name]) < 1.05


def test_a_format_that_is_asked_for_is_given() -> None:
    def wide(x: Any) -> Any:
        return x.cumsum(-1, dtype=torch.float32) + x.softmax(-1, dtype=torch.float32)

    found = jitted(Environment(), wide, NOISE)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wide(NOISE))


# ---- flex_attention and vmap

SHAPE = (1, 2, 256, 16)


def three(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(SHAPE, generator=generator) for _ in range(3)]


def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


def by_function(query: Any, key: Any, value: Any) -> Any:
    mask = flex_module.create_block_mask(causal, None, None, 256, 256, device="cpu")
    return flex_module.flex_attention(query, key, value, block_mask=mask)


def by_blocks(query: Any, key: Any, value: Any) -> Any:
    """Blocks of 64: each sees itself, and the second also the first; nobody is asked inside."""
    number = torch.tensor([[[1, 2, 1, 1]] * 2], dtype=torch.int32, device=query.device)
    rows = [[0, 1, 2, 3], [0, 1, 2, 3], [2, 0, 1, 3], [3, 0, 1, 2]]
    indices = torch.tensor([[rows] * 2], dtype=torch.int32, device=query.device)
    mask = flex_module.BlockMask.from_kv_blocks(
        torch.zeros_like(number), indices, number, indices, BLOCK_SIZE=64
    )
    return flex_module.flex_attention(query, key, value, block_mask=mask)


def written_by_hand(query: Any, key: Any, value: Any) -> Any:
    block = torch.eye(4, dtype=torch.bool)
    block[1, 0] = True
    mask = block.repeat_interleave(64, 0).repeat_interleave(64, 1)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def test_torchs_flex_attention_still_refuses() -> None:
    env = Environment()
    original = vars(flex_module.flex_attention)["before_holdfast"]
    given = [Tensor(to_jax(one), env) for one in three()]
    with env, pytest.raises(ValueError, match="FlexAttention is only supported on"):
        original(*given)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_that_of_torch() -> None:
    expected = by_function(*three())  # torch's own, eagerly
    found = jitted(Environment(), by_function, *three())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_lists_of_blocks_count_though_torch_ignores_them_eagerly() -> None:
    expected = written_by_hand(*three())
    assert not torch.allclose(by_blocks(*three()), expected, atol=1e-2)
    found = jitted(Environment(), by_blocks, *three())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with flex.everywhere():
        torch.testing.assert_close(by_blocks(*three()), expected, rtol=1e-4, atol=1e-5)


def test_changed_scores_are_refused() -> None:
    def scored(query: Any, key: Any, value: Any) -> Any:
        return flex_module.flex_attention(query, key, value, score_mod=lambda score, *_: score * 2)

    with pytest.raises(Unsupported) as caught:
        jitted(Environment(), scored, *three())
    assert str(caught.value) == (
        "cannot run flex_attention on XLA with a score_mod or return_lse\n"
        "  expected: a block mask at most\n"
        "  try: another attention processor for this model"
    )


def mapped(x: Any) -> Any:
    def row(one: Any, other: Any) -> Any:
        made = one.new_zeros(4)
        made[1:3] = one[:2] + other
        return made

    return torch.vmap(row, in_dims=(0, None), out_dims=1)(x, x[0, 1])


def test_torchs_vmap_still_fails_on_torchaxs_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "vmap", vars(torch.vmap)["before_holdfast"])
    with pytest.raises(Exception):  # noqa: B017, PT011  whichever comes first
        jitted(Environment(), by_blocks, *three())


def test_vmap_maps() -> None:
    right(mapped, X)
    assert torch.equal(torch.vmap(lambda one: one * 2)(X), X * 2)


def test_detours_are_made_once() -> None:
    flex.detour()
    assert not hasattr(vars(flex_module.flex_attention)["before_holdfast"], "before_holdfast")
    assert torch.vmap is torch.func.vmap


# ---- experts


def feed_forward() -> Any:
    from diffusers.models.transformers import transformer_hidream_image as hidream

    torch.manual_seed(0)
    module: Any = hidream.MOEFeedForwardSwiGLU(8, 16, num_routed_experts=4, num_activated_experts=2)
    torch.nn.init.normal_(module.gate.weight)
    return module.eval()


def test_experts_by_token_still_have_shapes_that_depend_on_numbers() -> None:
    module = feed_forward()
    chosen, weights = torch.tensor([0, 3, 1, 1, 2, 0]), torch.rand(6, 1)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jitted(Environment(), lambda x, c, w: module.moe_infer(x, c, w), X[:, :8], chosen, weights)


def test_all_experts_together_give_the_same() -> None:
    module = feed_forward()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = module(x)
        experts.rewrite(module)
        torch.testing.assert_close(module(x), expected)

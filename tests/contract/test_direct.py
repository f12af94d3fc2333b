"""Ops that torch's database does not reach in float32, called by their ATen names.

Each is called twice with the same arguments, by torch and on our table.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from holdfast.compute import random
from holdfast.compute.engine import ENGINES
from tests.contract import op_db
from tests.contract.test_conformance import ENGINES_HERE, OWN, kernels_kept  # noqa: F401
from tests.contract.torch_bridge import OnTable


def floats(*shape: int, low: float = -2.0, high: float = 2.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape) + len(shape))
    return torch.rand(shape, generator=generator) * (high - low) + low


def whole(*shape: int, low: int = 0, high: int = 9, dtype: Any = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape) + low)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


IMAGE = floats(2, 3, 6, 5)
POLYNOMIALS = [
    f"special_{name}"
    for name in (
        *("chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v"),
        *("chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he"),
        *("laguerre_polynomial_l", "legendre_polynomial_p", "shifted_chebyshev_polynomial_t"),
        *("shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v"),
        "shifted_chebyshev_polynomial_w",
    )
]
INTS = (whole(4, 3), whole(4, 3, low=1))
CASES: dict[str, tuple[Any, ...]] = {
    # numbers beside tensors
    **{f"{name}.n_scalar": (floats(5, low=0, high=1), 3) for name in POLYNOMIALS},
    **{f"{name}.x_scalar": (0.3, whole(5, high=5)) for name in POLYNOMIALS},
    **{f"bitwise_{op}.Scalar": (INTS[0], 5) for op in ("and", "or", "xor")},
    **{f"bitwise_{op}.Scalar_Tensor": (5, INTS[0]) for op in ("and", "or", "xor")},
    "bitwise_xor.Tensor": INTS,
    **{f"bitwise_{op}_shift.Tensor": INTS for op in ("left", "right")},
    **{f"bitwise_{op}_shift.Tensor_Scalar": (INTS[0], 2) for op in ("left", "right")},
    **{f"bitwise_{op}_shift.Scalar_Tensor": (40, INTS[0]) for op in ("left", "right")},
    "gcd": INTS,
    "lcm": INTS,
    "floor_divide.Scalar": (floats(7), 0.3),
    "fmod.Scalar": (floats(7), 0.3),
    "remainder.Scalar_Tensor": (5.5, floats(7, low=0.5)),
    "div.Scalar_mode": (floats(7), 0.3, "floor"),
    "clamp_max": (floats(7), 0.5),
    "xlogy.Scalar_Other": (floats(4, low=0.1), 1.5),
    "xlogy.Scalar_Self": (1.5, floats(4, low=0.1)),
    "special_xlog1py.other_scalar": (floats(4, low=0.1), 1.5),
    "special_xlog1py.self_scalar": (1.5, floats(4, low=0.1)),
    "special_zeta.other_scalar": (floats(4, low=1.5, high=4), 2.0),
    "special_zeta.self_scalar": (2.5, floats(4, low=1.5, high=4)),
    "special_polygamma": (1, floats(4, low=0.5)),
    "isin.Scalar_Tensor": (3, whole(4)),
    "isin.Tensor_Scalar": (whole(9), 3),
    "bucketize.Scalar": (0.4, torch.tensor([0.0, 0.25, 0.5])),
    "fill.Tensor": (floats(3), torch.tensor(2.5)),
    # views and copies
    **{
        name: (floats(2, 3),) for name in ("alias", "contiguous", "detach_copy", "lift", "positive")
    },
    **{name: (floats(2, 3),) for name in ("lift_fresh", "lift_fresh_copy", "square", "isfinite")},
    "isreal": (torch.tensor([1 + 0j, 2 + 1j]),),
    "real": (torch.tensor([1 + 2j, 2 + 1j]),),
    "imag": (torch.tensor([1 + 2j, 2 + 1j]),),
    "view_as_complex_copy": (floats(3, 2),),
    "view_as_real_copy": (torch.tensor([1 + 2j, 2 + 1j]),),
    "view.dtype": (floats(3, 2), torch.int32),
    "view_copy.dtype": (floats(3, 2), torch.int16),
    "reshape": (floats(6, 2).T, [3, 4]),
    "_reshape_alias": (floats(6, 2), [3, 4], [4, 1]),
    "_reshape_copy": (floats(6, 2), [3, 4]),
    "select_copy.int": (floats(3, 4), 1, -1),
    "slice_copy.Tensor": (floats(7), 0, 1, 6, 2),
    "split_copy.Tensor": (floats(7, 2), 3),
    "squeeze_copy.dims": (floats(1, 3, 1), [0, 2]),
    "unsafe_split_with_sizes": (floats(7), [3, 4]),
    **{f"sym_{what}": (floats(3, 4), 1) for what in ("size.int", "stride.int")},
    **{f"sym_{what}": (floats(3, 4),) for what in ("numel", "storage_offset")},
    "sym_is_contiguous": (floats(3, 4),),
    # indexing, sorting
    "_index_put_impl_": (floats(5), [torch.tensor([1, 3])], floats(2), True),
    "_unsafe_index.Tensor": (floats(5, 2), [torch.tensor([1, 3])]),
    "_unsafe_index_put": (floats(5), [torch.tensor([1, 3])], floats(2)),
    "scatter.reduce": (floats(4), 0, torch.tensor([0, 0, 2]), floats(3)),
    "scatter.value_reduce": (floats(4), 0, torch.tensor([0, 0, 2]), 2.0),
    "bincount": (whole(20),),
    "value_selecting_reduction_backward": (floats(3), 1, whole(3, high=4), [3, 4], False),
    # products, reductions, norms
    "matmul": (floats(2, 3, 4), floats(4, 5)),
    "linear": (floats(2, 3, 4), floats(5, 4), floats(5)),
    "linalg_eigvals": (torch.diag(torch.arange(1.0, 5.0)) + floats(4, 4).triu(1),),
    "var.dim": (floats(4, 5), [1]),
    "norm.Scalar": (floats(4, 5),),
    "norm.ScalarOpt_dtype": (floats(4, 5), 2),
    "norm.ScalarOpt_dim_dtype": (floats(4, 5), 2, [1], True),
    "_fused_rms_norm": (floats(4, 5), [5], floats(5), 1e-5),
    "_native_batch_norm_legit_no_training": (
        *(IMAGE, floats(3), floats(3), floats(3), floats(3, low=0.5), 0.1, 1e-5),
    ),
    "embedding_renorm": (floats(6, 4), whole(5, high=6), 0.7, 2.0),
    "fft_fftfreq": (7, 0.5),
    "fft_rfftfreq": (7, 0.5),
    # pictures
    "adaptive_avg_pool1d": (floats(2, 3, 7), [3]),
    "avg_pool1d": (floats(2, 3, 7), [3], [2], [1]),
    "affine_grid_generator": (floats(2, 2, 3), [2, 1, 4, 5], True),
    "affine_grid_generator_backward": (floats(2, 4, 5, 2), [2, 1, 4, 5], True),
    "native_channel_shuffle": (floats(2, 6, 2, 2), 3),
    **{
        f"upsample_{name}.vec": (floats(2, 3, *[4] * n), [7] * n, *more, None)
        for name, n, more in (
            *(("nearest1d", 1, ()), ("nearest2d", 2, ()), ("nearest3d", 3, ())),
            *(("linear1d", 1, (True,)), ("bilinear2d", 2, (False,)), ("bicubic2d", 2, (False,))),
            ("trilinear3d", 3, (False,)),
        )
    },
    **{
        f"_upsample_nearest_exact{n}d.vec": (floats(2, 3, *[4] * n), None, [1.5] * n)
        for n in (1, 2, 3)
    },
    **{
        f"_upsample_{name}2d_aa.vec": (IMAGE, [4, 9], False, None)
        for name in ("bilinear", "bicubic", "lanczos")
    },
    "_upsample_bicubic2d_aa": (IMAGE, [4, 9], False),
    "_upsample_bicubic2d_aa_backward": (floats(2, 3, 4, 9), [4, 9], [2, 3, 6, 5], False),
    "_upsample_lanczos2d_aa": (IMAGE, [4, 9], False),
    "_upsample_lanczos2d_aa_backward": (floats(2, 3, 4, 9), [4, 9], [2, 3, 6, 5], False),
    # quantization
    "_int_mm": (whole(32, 16, dtype=torch.int8), whole(16, 8, dtype=torch.int8)),
    "fake_quantize_per_tensor_affine_cachemask": (floats(9), 0.1, 2, -8, 7),
    "fake_quantize_per_tensor_affine_cachemask_backward": (floats(9), whole(9, high=2) > 0),
    "fake_quantize_per_channel_affine_cachemask": (
        *(floats(3, 4), floats(4, low=0.1), whole(4, dtype=torch.int32), 1, -8, 7),
    ),
    "fake_quantize_per_channel_affine_cachemask_backward": (floats(9), whole(9, high=2) > 0),
    # random numbers, with one seed
    "bernoulli.Tensor": (floats(20), floats(20, low=0, high=1)),
    "native_dropout": (floats(20), 0.4, True),
    "normal.float_Tensor": (0.5, floats(20, low=0.1)),
    "rand_like": (floats(20),),
    "randint_like.Tensor": (whole(20), torch.tensor(7)),
    "random": (whole(20),),
    "random.from": (whole(20), 3, 90),
    "random.to": (whole(20), 90),
    "randperm": (20,),
}
MORE: dict[str, dict[str, Any]] = {
    "div.Scalar_mode": {},
    "scatter.reduce": {"reduce": "multiply"},
    "scatter.value_reduce": {"reduce": "add"},
    "norm.ScalarOpt_dtype": {"dtype": torch.float64},
    "norm.ScalarOpt_dim_dtype": {"dtype": torch.float64},
}
MORE["div.Scalar_mode"] = {"rounding_mode": "floor"}
CASES["div.Scalar_mode"] = (floats(7), 0.3)

# Compared elsewhere: layers in tests/compute/nn, the convolution in tests/compute/quant.
ELSEWHERE = OWN | {"_embedding_bag_dense_backward", "_fused_rms_norm_backward"}


def called(overload: Any, name: str) -> Any:
    args = [a.clone() if isinstance(a, torch.Tensor) else a for a in CASES[name]]
    torch.manual_seed(3)
    random.manual_seed(3)
    return overload(*args, **MORE.get(name, {}))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES_HERE)
@pytest.mark.parametrize("name", CASES)
def test_an_op_answers_as_torch_does(name: str, engine: str):
    base, _, overload = name.partition(".")
    target = getattr(getattr(torch.ops.aten, base), overload or "default")
    expected = called(target, name)
    bridge = OnTable(engine)
    with bridge:
        found = called(target, name)
    ours = torch.utils._pytree.tree_leaves(found)
    theirs = torch.utils._pytree.tree_leaves(expected)
    assert bridge.fallbacks == {}
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, check_stride=False)


def test_every_kernel_is_compared_with_torch_somewhere():
    reached = set(op_db.known()["ops"])
    missing = set(ENGINES["numpy"].kernels) - reached - set(CASES) - ELSEWHERE
    assert sorted(missing) == []

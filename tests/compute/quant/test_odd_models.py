"""Models that are not a plain row of layers: shared parts, own forwards, other formats, misuse."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute import manual_seed, nn, quant, randn
from holdfast.compute.quant import Scheme
from holdfast.compute.tensors.custom_tensor import CustomTensor


@pytest.fixture(autouse=True)
def _seeded() -> None:
    manual_seed(0)


def norm(channels: int) -> nn.BatchNorm2d:
    """One that has seen something."""
    made = nn.BatchNorm2d(channels)
    draw = numpy.random.default_rng(1)
    made.running_mean.data = draw.normal(size=channels)
    made.running_var.data = draw.uniform(0.5, 2, channels)
    return made


def far(found: Any, expected: Any) -> float:
    """The largest error, in parts of the largest number."""
    return float(numpy.abs(found.data - expected.data).max() / numpy.abs(expected.data).max())


def static(model: Any, data: Any) -> tuple[Any, Any]:
    """The prepared model, and the converted one."""
    prepared = quant.prepare(model)
    prepared(data)
    return prepared, quant.convert(prepared)


class Doubled(nn.Conv2d):
    """Computes something else than a convolution."""

    def forward(self, input: CustomTensor) -> CustomTensor:
        return super().forward(input) * 2


class Between(nn.Sequential):
    """Does something between its modules."""

    def forward(self, input: Any) -> Any:
        return self[1](self[0](input).relu())


def shared_activation() -> nn.Module:
    act = nn.ReLU()
    return nn.Sequential(act, nn.Conv2d(3, 3, 3), act, norm(3))


def shared_convolution() -> nn.Module:
    conv = nn.Conv2d(3, 3, 3)
    return nn.Sequential(conv, norm(3), conv, norm(3))


def tied_weights() -> nn.Module:
    first, second = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
    second.weight = first.weight
    return nn.Sequential(first, norm(3), second)


def words_for_padding() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding="same", dilation=2),
        nn.Conv2d(4, 4, 3, padding="valid"),
        nn.Conv2d(4, 4, 2, padding="same"),
    )


def own_forwards() -> nn.Module:
    return nn.Sequential(Doubled(3, 3, 3), Between(nn.Conv2d(3, 3, 3), norm(3)))


@pytest.mark.parametrize(
    "make",
    [shared_activation, shared_convolution, tied_weights, words_for_padding, own_forwards],
)
def test_odd_models_compute_the_same_in_every_way(make: Any) -> None:
    model = make().eval()
    data = randn(4, 3, 9, 9)
    expected = model(data)
    prepared, converted = static(model, data)
    assert far(prepared(data), expected) < 1e-5
    assert far(converted(data), expected) < 0.03
    assert far(quant.quantize_weights(model)(data), expected) < 0.03
    assert far(quant.quantize_dynamic(model)(data), expected) < 0.03
    learning = quant.prepare_qat(model)
    for module in learning.modules():  # statistics stay as they are, to be comparable
        module.training = not isinstance(module, nn.BatchNorm2d)
    assert far(learning(data), expected) < 0.05


def test_a_layer_with_two_names_stays_one_layer() -> None:
    conv = nn.Conv2d(3, 3, 3)
    made: Any = quant.quantize_dynamic(nn.Sequential(conv, nn.ReLU(), conv))
    assert isinstance(made[0], quant.QuantizedConv2d)
    assert made[0] is made[2]


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_affine_weights_keep_their_zero_points(axis: int | None) -> None:
    model = nn.Sequential(nn.Linear(16, 8))
    model[0].weight.data = numpy.abs(model[0].weight.data) + 1
    made = quant.quantize_weights(model, Scheme(symmetric=False, axis=axis))
    data = randn(4, 16)
    assert far(made(data), model(data)) < 0.01
    assert "0.weight_zero_point" in made.state_dict()


@pytest.mark.parametrize("way", [quant.quantize_weights, quant.quantize_dynamic])
def test_pictures_without_a_batch(way: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 3))
    picture = randn(3, 8, 8)
    made = way(model)
    assert far(made(picture), model(picture)) < 0.02
    with pytest.raises(BadInput, match=r"QuantizedConv2d.*cannot take float32\[2, 8, 8\]"):
        made(randn(2, 8, 8))


@pytest.mark.parametrize("kind", ["float16", "float64", "bfloat16"])
def test_other_formats_come_out_as_they_went_in(kind: str) -> None:
    parts = nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)
    model = nn.Sequential(*parts, nn.LayerNorm(3)).to(dtype=kind).eval()
    data = randn(4, 1, 4, 4).to(kind)
    for made in (
        quant.quantize_weights(model),
        quant.quantize_dynamic(model),
        *static(model, data),
    ):
        assert made(data).dtype == data.dtype


def test_a_nan_stays_one_whatever_the_ranges() -> None:
    model = nn.Sequential(nn.Linear(4, 2))
    data = randn(3, 4)
    _, converted = static(model, data)
    data[1, 2] = float("nan")
    assert numpy.isnan(converted(data).data).tolist() == [[False] * 2, [True] * 2, [False] * 2]


@pytest.mark.parametrize("data", [numpy.full((1, 4), 3e38), numpy.linspace(-3e38, 3e38, 4)[None]])
def test_ranges_as_wide_as_float32_are_counted(data: Any) -> None:
    observer = quant.Histogram("wide")
    observer(CustomTensor(data))
    low, high = observer.range()
    assert numpy.isfinite([low, high]).all()


class Answers(nn.Module):
    """Returns several things, and has a layer that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout()

    def forward(self, input: CustomTensor) -> Any:
        return {"out": self.used(input), "more": (input, [input])}


def test_models_are_compared_whatever_they_return_and_left_in_their_modes() -> None:
    model = Answers().train()
    model.drop.eval()
    report = quant.compare(model, quant.quantize_dynamic(model), randn(2, 4))
    assert [row.layer for row in report.rows] == ["used"]
    assert (model.training, model.drop.training) == (True, False)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda m: quant.prepare(3), "a int cannot be quantized\n  expected: an nn.Module"),
        (lambda m: quant.prepare_qat(3), "a int cannot be quantized\n  expected: an nn.Module"),
        (lambda m: quant.compare(m, 3, 3), "a int cannot be compared\n  expected: an nn.Module"),
        (
            lambda m: quant.quantize_dynamic(m, "int8"),
            "'int8' is no scheme\n  expected: a quant.Scheme\n  try: quant.Scheme(bits=8)",
        ),
        (
            lambda m: quant.prepare_qat(m, activation=Scheme(axis=1)),
            "int8 per axis 1 cannot be used for the input of a layer\n"
            "  expected: a scheme with one scale for the tensor\n"
            "  try: Scheme(bits=8, symmetric=True)",
        ),
        (lambda m: Scheme(bits=7.5), "7.5 bits are not supported\n  expected: 2 to 8 bits"),
        (
            lambda m: quant.quantize(CustomTensor([1.0]), scale=0.0),
            "cannot quantize float32[1] by a scale of 0.0\n  expected: scales above 0",
        ),
        (
            lambda m: quant.quantize(CustomTensor([1.0]), scale=[1, 2]),
            "scale has 2 elements\n  expected: 1, one for each channel or group",
        ),
        (
            lambda m: quant.quantize_dynamic(m)(CustomTensor([[1] * 4], dtype="int64")),
            "QuantizedLinear([2, 4], int8 per axis 0, dynamic) cannot take int64[1, 4]: it holds "
            "no fractions\n  expected: floating-point numbers\n  try: tensor.to('float32')",
        ),
    ],
    ids=lambda v: "",
)
def test_misuse_is_refused(use: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        use(nn.Sequential(nn.Linear(4, 2)))
    assert str(caught.value) == text


def test_a_single_number_is_quantized_too() -> None:
    assert quant.quantize(CustomTensor(3.0)).dequantize().item() == 3.0

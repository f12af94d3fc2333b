"""Inputs and arguments that make no sense: the whole text of every error."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from holdfast.base.errors import BadInput
from holdfast.compute import nn
from holdfast.compute.tensors.custom_tensor import CustomTensor


def _of(*shape: int, kind: str = "float32") -> CustomTensor:
    return CustomTensor(numpy.ones(shape), dtype=kind)


_INPUTS: list[tuple[Any, Any, str]] = [
    (
        lambda: nn.Linear(10, 5),
        _of(3, 7),
        "Linear(in_features=10, out_features=5, bias=True) cannot take float32[3, 7]: its last "
        "size is 7, not 10\n  expected: a tensor of [..., 10]\n  try: Linear(7, 5)",
    ),
    (
        lambda: nn.Conv2d(3, 8, 3),
        _of(2, 4, 9, 9),
        "Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1)) cannot take float32[2, 4, 9, 9]: it has "
        "4 dimensions, 4 channels\n  expected: [batch, 3, height, width] or [3, height, width]",
    ),
    (
        lambda: nn.Conv1d(3, 8, 3),
        _of(9),
        "Conv1d(3, 8, kernel_size=(3,), stride=(1,)) cannot take float32[9]: it has 1 dimensions\n"
        "  expected: [batch, 3, width] or [3, width]",
    ),
    (
        lambda: nn.Conv2d(3, 8, 5, dilation=2),
        _of(1, 3, 8, 20),
        "Conv2d(3, 8, kernel_size=(5, 5), stride=(1, 1), dilation=(2, 2)) cannot take "
        "float32[1, 3, 8, 20]: with padding its sizes are [8, 20]\n"
        "  expected: at least [9, 9], which is what the kernel covers",
    ),
    (
        lambda: nn.BatchNorm2d(4),
        _of(2, 4, 3),
        "BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=True, bias=True, "
        "track_running_stats=True) cannot take float32[2, 4, 3]: it has 3 dimensions\n"
        "  expected: [batch, 4, height, width]",
    ),
    (
        lambda: nn.BatchNorm1d(4),
        _of(1, 4),
        "BatchNorm1d(4, eps=1e-05, momentum=0.1, affine=True, bias=True, "
        "track_running_stats=True) cannot take float32[1, 4]: one value for each channel has no "
        "variance\n  expected: at least two values for each channel while training\n"
        "  try: eval()",
    ),
    (
        lambda: nn.InstanceNorm2d(4),
        _of(2, 4, 1, 1),
        "InstanceNorm2d(4, eps=1e-05, momentum=0.1, affine=False, bias=False, "
        "track_running_stats=False) cannot take float32[2, 4, 1, 1]: one value for each channel "
        "has no variance\n  expected: at least two values for each channel of an instance",
    ),
    (
        lambda: nn.LayerNorm((3, 4)),
        _of(2, 4, 3),
        "LayerNorm((3, 4), eps=1e-05, elementwise_affine=True, bias=True) cannot take "
        "float32[2, 4, 3]: its last sizes are [4, 3], not [3, 4]\n"
        "  expected: a tensor of [..., 3, 4]",
    ),
    (
        lambda: nn.GroupNorm(2, 4),
        _of(2, 6, 3),
        "GroupNorm(2, 4, eps=1e-05, affine=True, bias=True) cannot take float32[2, 6, 3]: it has "
        "6 channels\n  expected: a tensor of [batch, 4, ...]",
    ),
    (
        lambda: nn.Embedding(5, 3),
        _of(2),
        "Embedding(5, 3) cannot take float32[2]: its elements are not integers\n"
        "  expected: int64\n  try: tensor.to('int64')",
    ),
    (
        lambda: nn.Embedding(5, 3),
        CustomTensor([1, 5], dtype="int64"),
        "Embedding(5, 3) cannot take int64[2]: its elements range from 1 to 5\n  expected: 0 to 4",
    ),
    (
        lambda: nn.MaxPool2d(4),
        _of(1, 2, 3, 8),
        "MaxPool2d(kernel_size=4, stride=4, padding=0, dilation=1, ceil_mode=False) cannot take "
        "float32[1, 2, 3, 8]: its sizes are [3, 8]\n"
        "  expected: at least the window, which is [4, 4]",
    ),
    (
        lambda: nn.AvgPool2d(2),
        _of(3, 8),
        "AvgPool2d(kernel_size=2, stride=2, padding=0) cannot take float32[3, 8]: it has 2 "
        "dimensions\n  expected: [batch, channels, height, width] or [channels, height, width]",
    ),
    (
        lambda: nn.PixelShuffle(2),
        _of(1, 6, 3, 3),
        "PixelShuffle(upscale_factor=2) cannot take float32[1, 6, 3, 3]: 6 channels\n"
        "  expected: [..., channels, height, width] with channels a multiple of 4",
    ),
    (
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
        _of(1, 6, 3),
        "Upsample(scale_factor=2.0, mode='bilinear') cannot take float32[1, 6, 3]: it has 3 "
        "dimensions\n  expected: 4 dimensions",
    ),
    (
        lambda: nn.Unflatten(1, (2, 3)),
        _of(4, 5),
        "Unflatten(dim=1, unflattened_size=(2, 3)) cannot take float32[4, 5]: dimension 1 cannot "
        "be taken apart into (2, 3)\n  expected: a dimension whose size is the product of those",
    ),
    (
        lambda: nn.Flatten(2),
        _of(4, 5),
        "Flatten(start_dim=2, end_dim=-1) cannot take float32[4, 5]: it has 2 dimensions\n"
        "  expected: a tensor that has both dimensions, the first not behind the last",
    ),
    (
        lambda: nn.PReLU(3),
        _of(4, 5),
        "PReLU(num_parameters=3) cannot take float32[4, 5]: it has 5 channels\n"
        "  expected: a tensor of [batch, 3, ...]",
    ),
    (
        lambda: nn.LSTM(3, 4, batch_first=True),
        _of(2, 5, 6),
        "LSTM(3, 4, batch_first=True) cannot take float32[2, 5, 6]: its last size is 6, not 3\n"
        "  expected: [batch, steps, 3] or [steps, 3]",
    ),
    (
        lambda: nn.GRUCell(3, 4),
        _of(2, 5),
        "GRUCell(3, 4) cannot take float32[2, 5]: it is not 3 features of each\n"
        "  expected: [batch, 3] or [3]",
    ),
    (
        lambda: nn.Dropout2d(),
        _of(2, 5),
        "Dropout2d(p=0.5, inplace=False) cannot take float32[2, 5]: it has 2 dimensions\n"
        "  expected: 3 or 4 dimensions",
    ),
]


@pytest.mark.parametrize(("make", "given", "text"), _INPUTS, ids=lambda v: "")
def test_an_input_that_does_not_fit_is_refused(make: Any, given: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        make()(given)
    assert str(caught.value) == text


_INPUTS += [
    (
        lambda: nn.Linear(3, 2),
        _of(2, 3, kind="int64"),
        "Linear(in_features=3, out_features=2, bias=True) cannot take int64[2, 3]: the weights are "
        "float32\n  expected: both in float32\n  try: tensor.to('float32')",
    ),
    (
        lambda: nn.Linear(3, 2),
        [1.0, 2.0, 3.0],
        "Linear(in_features=3, out_features=2, bias=True) cannot take list: it is not a tensor\n"
        "  expected: a tensor\n  try: CustomTensor(data)",
    ),
    (
        lambda: nn.Conv2d(1, 2, 3),
        numpy.ones((1, 1, 4, 4)),
        "Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1)) cannot take float64[1, 1, 4, 4]: it is "
        "not a tensor\n  expected: a tensor\n  try: CustomTensor(data)",
    ),
    (
        lambda: nn.GRU(3, 4),
        _of(0, 2, 3),
        "GRU(3, 4) cannot take float32[0, 2, 3]: there are no steps\n  expected: at least one step",
    ),
]


_ARGUMENTS: list[tuple[Any, str]] = [
    (
        lambda: nn.Conv2d(3, 8, 3, groups=2),
        "Conv2d cannot split 3 input and 8 output channels into 2 groups\n"
        "  expected: groups that divide both",
    ),
    (
        lambda: nn.Conv2d(3, 8, 3, padding_mode="mirror"),
        "Conv2d has no padding mode 'mirror'\n"
        "  expected: one of zeros, reflect, replicate, circular",
    ),
    (
        lambda: nn.Conv2d(3, 8, 3, padding="full"),
        "Conv2d has no padding 'full'\n"
        '  expected: an integer, one for each dimension, "same" or "valid"',
    ),
    (
        lambda: nn.Conv2d(3, 8, 3, stride=2, padding="same"),
        "Conv2d cannot keep the size with a stride of (2, 2)\n"
        '  expected: a stride of 1 with padding="same"',
    ),
    (
        lambda: nn.ConvTranspose2d(3, 8, 3, stride=2)(_of(1, 3, 4, 4), [4, 4]),
        "ConvTranspose2d(3, 8, kernel_size=(3, 3), stride=(2, 2)) cannot take "
        "float32[1, 3, 4, 4]: it cannot give a size of [4, 4]\n"
        "  expected: sizes from [9, 9] to [10, 10]",
    ),
    (
        lambda: nn.GroupNorm(3, 4),
        "GroupNorm cannot split 4 channels into 3 groups\n"
        "  expected: groups that divide the channels",
    ),
    (lambda: nn.Dropout(1.5), "1.5 is no probability for Dropout\n  expected: 0 <= p <= 1"),
    (
        lambda: nn.Embedding(5, 3, padding_idx=5),
        "Embedding has 5 rows, none at padding_idx 5\n  expected: -5 to 4",
    ),
    (
        lambda: nn.Embedding(5, 3, max_norm=1.0),
        "Embedding was given max_norm=1.0, sparse=False\n"
        "  expected: max_norm=None and sparse=False, which is all there is",
    ),
    (
        lambda: nn.Upsample(),
        "Upsample was given size=None and scale_factor=None\n  expected: one of the two",
    ),
    (
        lambda: nn.Upsample(size=3, mode="cubic"),
        "Upsample has no mode 'cubic'\n"
        "  expected: one of bicubic, bilinear, linear, nearest, nearest-exact, trilinear",
    ),
    (
        lambda: nn.RNN(3, 4, nonlinearity="gelu"),
        "RNN has no nonlinearity 'gelu'\n  expected: one of tanh, relu",
    ),
    (
        lambda: nn.GRU(3, 4, proj_size=2),
        "GRU cannot have proj_size=2 with hidden_size=4\n"
        "  expected: an LSTM, with proj_size below hidden_size",
    ),
    (
        lambda: nn.LSTM(3, 4)(_of(5, 2, 3), (_of(1, 3, 4), _of(1, 3, 4))),
        "LSTM(3, 4) cannot take float32[5, 2, 3]: the first state is float32[1, 3, 4]\n"
        "  expected: a state of [1, 2, 4]",
    ),
    (
        lambda: nn.MultiheadAttention(8, 3),
        "MultiheadAttention cannot split embed_dim=8 into 3 heads\n"
        "  expected: num_heads that divide embed_dim, both above 0",
    ),
    (
        lambda: nn.MultiheadAttention(8, 2)(_of(5, 2, 8), _of(5, 2, 7), _of(5, 2, 8)),
        "MultiheadAttention(8, 2) cannot take [float32[5, 2, 8], float32[5, 2, 7], "
        "float32[5, 2, 8]]: query, key and value do not fit\n"
        "  expected: [length, batch, 8], [length, batch, 8], [length, batch, 8], or all without "
        "batch",
    ),
    (
        lambda: nn.MultiheadAttention(8, 2)(*[_of(5, 2, 8)] * 3, attn_mask=_of(5, 4)),
        "MultiheadAttention(8, 2) cannot take float32[5, 4]: attn_mask does not fit\n"
        "  expected: [5, 5] or [4, 5, 5]",
    ),
    (
        lambda: nn.TransformerEncoderLayer(8, 2, activation="tanh"),
        "TransformerEncoderLayer has no activation 'tanh'\n"
        "  expected: relu, gelu, or a function of a tensor",
    ),
    (
        lambda: nn.MSELoss(reduction="median"),
        "MSELoss has no reduction 'median'\n  expected: one of none, mean, sum",
    ),
    (
        lambda: nn.L1Loss(reduce=True),
        "L1Loss was given size_average=None, reduce=True\n"
        '  expected: reduction="mean", "sum" or "none"',
    ),
    (
        lambda: nn.CustomMSELoss()(_of(4, 1), _of(4)),
        "CustomMSELoss cannot compare float32[4, 1] with float32[4]\n"
        "  expected: equal shapes\n  try: reshape one of them, or expand it on purpose",
    ),
    (
        lambda: nn.CrossEntropyLoss()(_of(4, 3), _of(5, kind="int64")),
        "CrossEntropyLoss cannot compare float32[4, 3] with int64[5]\n"
        "  expected: class indices of [4], or probabilities of [4, 3]",
    ),
    (
        lambda: nn.NLLLoss()(_of(4, 3), _of(5, kind="int64")),
        "NLLLoss cannot compare float32[4, 3] with int64[5]\n  expected: class indices of [4]",
    ),
    (
        lambda: nn.init.calculate_gain("step"),
        "no gain is known for 'step'\n  expected: one of linear, conv1d, conv2d, conv3d, sigmoid, "
        "tanh, relu, selu, leaky_relu",
    ),
    (
        lambda: nn.init.xavier_uniform_(_of(3)),
        "float32[3] has no fan in and fan out\n  expected: a weight of at least two dimensions",
    ),
    (
        lambda: nn.init.kaiming_normal_(_of(3, 3), mode="fan"),
        "'fan' is no mode\n  expected: one of fan_in, fan_out",
    ),
    (lambda: nn.init.eye_(_of(3)), "eye_ cannot fill float32[3]\n  expected: a matrix"),
    (
        lambda: nn.Bilinear(2, 3, 4)(_of(5, 2), _of(5, 2)),
        "Bilinear(in1_features=2, in2_features=3, out_features=4, bias=True) cannot take "
        "[float32[5, 2], float32[5, 2]]: the last size of [5, 2] is not 3\n"
        "  expected: tensors of [..., 2] and [..., 3]",
    ),
]


@pytest.mark.parametrize(("use", "text"), _ARGUMENTS, ids=lambda v: "")
def test_arguments_that_make_no_sense_are_refused(use: Any, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        use()
    assert str(caught.value) == text

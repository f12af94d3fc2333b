"""What the modules are tested with."""

from __future__ import annotations

import numpy

from tests.compute.nn.peers import Build, Case

_IMAGE = (2, 4, 7, 9)
_LINE = (2, 4, 9)
_FIGURE = (2, 4, 5, 6, 7)
_POSITIVE = numpy.random.default_rng(5).uniform(0.05, 0.95, (3, 5)).astype(numpy.float32)
_CLASSES = numpy.array([1, 0, 4, 2], numpy.int64)
_MAP = numpy.random.default_rng(6).integers(0, 5, (2, 3, 4))
_SPREAD = (_POSITIVE / _POSITIVE.sum(1, keepdims=True)).astype(numpy.float32)
_WEIGHT = numpy.array([0.5, 1.0, 2.0, 1.5, 0.25], numpy.float32)
_LATER = numpy.triu(numpy.ones((5, 5), bool), 1)
_PADDED = numpy.zeros((2, 5), bool)
_PADDED[1, 3:] = True
_ADDED = numpy.random.default_rng(7).standard_normal((8, 5, 5)).astype(numpy.float32)

_PLAIN = [
    Case("Identity", (), (_IMAGE,)),
    Case("Linear", (5, 3), ((4, 5),)),
    Case("Linear", (5, 3), ((2, 4, 5),), {"bias": False}),
    Case("Linear", (5, 3), ((5,),)),
    Case("Bilinear", (3, 4, 5), ((2, 6, 3), (2, 6, 4))),
    Case("Flatten", (), (_IMAGE,)),
    Case("Flatten", (0, 2), (_IMAGE,)),
    Case("Unflatten", (1, (2, -1)), (_IMAGE,)),
]
_CONVOLUTIONS = [
    Case("Conv1d", (4, 6, 3), (_LINE,)),
    Case("Conv1d", (4, 6, 3), ((4, 9),), {"stride": 2, "padding": 2, "dilation": 2}),
    Case("Conv2d", (4, 6, 3), (_IMAGE,), {"padding": 1}),
    Case("Conv2d", (4, 6, (3, 2)), (_IMAGE,), {"stride": (2, 1), "groups": 2, "bias": False}),
    Case("Conv2d", (4, 4, 3), (_IMAGE,), {"groups": 4, "padding": 1}),
    Case("Conv2d", (4, 6, (3, 4)), (_IMAGE,), {"padding": "same"}),
    Case("Conv2d", (4, 6, 3), (_IMAGE,), {"padding": "valid"}),
    Case("Conv2d", (4, 6, 3), (_IMAGE,), {"padding": 1, "padding_mode": "reflect"}),
    Case("Conv2d", (4, 6, 3), (_IMAGE,), {"padding": (1, 2), "padding_mode": "replicate"}),
    Case("Conv2d", (4, 6, 3), (_IMAGE,), {"padding": (1, 2), "padding_mode": "circular"}),
    Case("Conv3d", (4, 3, 3), (_FIGURE,), {"padding": 1}),
    Case("ConvTranspose1d", (4, 6, 3), (_LINE,), {"stride": 2, "output_padding": 1}),
    Case("ConvTranspose2d", (4, 6, 3), (_IMAGE,)),
    Case("ConvTranspose2d", (4, 6, 3), (_IMAGE,), {"stride": 2, "padding": 1, "groups": 2}),
    Case("ConvTranspose2d", (4, 6, 3), (_IMAGE,), {"stride": 2}, {"output_size": [15, 20]}),
    Case("ConvTranspose3d", (4, 3, 2), (_FIGURE,), {"dilation": 2}),
]
_NORMS = [
    Case("BatchNorm1d", (4,), ((6, 4),)),
    Case("BatchNorm1d", (4,), (_LINE,)),
    Case("BatchNorm2d", (4,), (_IMAGE,)),
    Case("BatchNorm2d", (4,), (_IMAGE,), eval=True),
    Case("BatchNorm2d", (4,), (_IMAGE,), {"affine": False}),
    Case("BatchNorm2d", (4,), (_IMAGE,), {"momentum": None}),
    Case("BatchNorm2d", (4,), (_IMAGE,), {"track_running_stats": False}, eval=True),
    Case("BatchNorm3d", (4,), (_FIGURE,)),
    Case("LayerNorm", (9,), (_IMAGE,)),
    Case("LayerNorm", ((7, 9),), (_IMAGE,), {"bias": False}),
    Case("LayerNorm", (9,), (_IMAGE,), {"elementwise_affine": False}),
    Case("GroupNorm", (2, 4), (_IMAGE,)),
    Case("GroupNorm", (2, 4), ((3, 4, 5),), {"affine": False}),
    Case("InstanceNorm1d", (4,), (_LINE,)),
    Case("InstanceNorm2d", (4,), (_IMAGE,)),
    Case("InstanceNorm2d", (4,), ((4, 7, 9),), {"affine": True}),
    Case("InstanceNorm2d", (4,), (_IMAGE,), {"track_running_stats": True}),
    Case("InstanceNorm2d", (4,), (_IMAGE,), {"track_running_stats": True}, eval=True),
    Case("InstanceNorm3d", (4,), (_FIGURE,)),
    Case("RMSNorm", (9,), (_IMAGE,)),
    Case("RMSNorm", ((7, 9),), (_IMAGE,), {"eps": 1e-3}),
]
_ACTIVATIONS = [
    *(Case(name, (), (_IMAGE,)) for name in (
        *("ReLU", "ReLU6", "LeakyReLU", "ELU", "GELU", "SiLU", "Mish", "Sigmoid", "Tanh"),
        *("Softplus", "Hardswish", "Hardsigmoid", "PReLU"),
    )),
    Case("LeakyReLU", (0.2,), (_IMAGE,)),
    Case("ELU", (0.7,), (_IMAGE,)),
    Case("GELU", (), (_IMAGE,), {"approximate": "tanh"}),
    Case("Softplus", (2.0, 1.0), (_IMAGE,)),
    Case("PReLU", (4,), (_IMAGE,)),
    Case("Softmax", (1,), (_IMAGE,)),
    Case("LogSoftmax", (-1,), (_IMAGE,)),
    Case("Dropout", (0.5,), (_IMAGE,), eval=True),
    Case("Dropout2d", (0.5,), (_IMAGE,), eval=True),
]  # fmt: skip
_POOLS = [
    Case("MaxPool1d", (3,), (_LINE,), {"stride": 2, "padding": 1}),
    Case("MaxPool2d", (2,), (_IMAGE,)),
    Case("MaxPool2d", (3,), (_IMAGE,), {"stride": 2, "dilation": 2, "return_indices": True}),
    Case("MaxPool2d", ((2, 3),), ((4, 7, 9),), {"ceil_mode": True}),
    Case("AvgPool1d", (3,), (_LINE,), {"stride": 2, "padding": 1}),
    Case("AvgPool2d", (2,), (_IMAGE,)),
    Case("AvgPool2d", (3,), (_IMAGE,), {"padding": 1, "count_include_pad": False}),
    Case("AdaptiveAvgPool1d", (4,), (_LINE,)),
    Case("AdaptiveAvgPool2d", (1,), (_IMAGE,)),
    Case("AdaptiveAvgPool2d", ((3, None),), (_IMAGE,)),
    Case("AdaptiveMaxPool2d", (3,), (_IMAGE,)),
    Case("AdaptiveMaxPool2d", ((2, None),), (_IMAGE,), {"return_indices": True}),
]
_SHAPES = [
    Case("Upsample", (), (_IMAGE,), {"scale_factor": 2}),
    Case("Upsample", (), (_IMAGE,), {"size": (10, 5)}),
    Case("Upsample", (), (_IMAGE,), {"scale_factor": 1.5, "mode": "bilinear"}),
    Case("Upsample", (), (_IMAGE,), {"size": 12, "mode": "bilinear", "align_corners": True}),
    Case("Upsample", (), (_IMAGE,), {"scale_factor": 2, "mode": "bicubic"}),
    Case("Upsample", (), (_LINE,), {"scale_factor": 2, "mode": "linear"}),
    Case("PixelShuffle", (2,), (_IMAGE,)),
    Case("PixelUnshuffle", (2,), ((2, 3, 6, 8),)),
    Case("ZeroPad2d", (2,), (_IMAGE,)),
    Case("ZeroPad2d", ((1, 0, 2, 3),), (_IMAGE,)),
    Case("ConstantPad2d", (1, 3.5), (_IMAGE,)),
    Case("Embedding", (7, 3), (numpy.array([[1, 2, 6], [0, 2, 2]]),)),
    Case("Embedding", (7, 3), (numpy.array([[1, 2, 6], [0, 2, 2]]),), {"padding_idx": 2}),
    Case("Embedding", (7, 3), (numpy.array([1, 2, 2]),), {"scale_grad_by_freq": True}),
]
_STEPS = (6, 3, 5)
_RECURRENT = [
    Case("RNN", (5, 4), (_STEPS,)),
    Case("RNN", (5, 4), (_STEPS,), {"nonlinearity": "relu", "num_layers": 2, "bias": False}),
    Case("LSTM", (5, 4), (_STEPS,)),
    Case("LSTM", (5, 4), ((6, 5),)),
    Case("LSTM", (5, 4), (_STEPS,), {"num_layers": 2, "bidirectional": True}),
    Case("LSTM", (5, 4), (_STEPS,), {"batch_first": True, "bias": False}),
    Case("LSTM", (5, 4), (_STEPS,), {"proj_size": 2, "bidirectional": True}),
    Case("LSTM", (5, 4), (_STEPS,), {"num_layers": 2, "dropout": 0.5}, eval=True),
    Case("GRU", (5, 4), (_STEPS,)),
    Case("GRU", (5, 4), (_STEPS, (4, 3, 4)), {"num_layers": 2, "bidirectional": True}),
    Case("GRU", (5, 4), (_STEPS,), {"batch_first": True, "bias": False}),
    Case("LSTMCell", (5, 4), ((3, 5),)),
    Case("LSTMCell", (5, 4), ((5,),), {"bias": False}),
    Case("GRUCell", (5, 4), ((3, 5), (3, 4))),
    Case("GRUCell", (5, 4), ((5,),)),
    Case("RNNCell", (5, 4), ((3, 5), (3, 4)), {"nonlinearity": "relu"}),
]
_QUERY, _FIRST = (5, 2, 8), (2, 5, 8)
_THREE = (_QUERY, _QUERY, _QUERY)
_ATTENTION = [
    Case("MultiheadAttention", (8, 4), _THREE),
    Case("MultiheadAttention", (8, 4), ((5, 8), (6, 8), (6, 8))),
    Case("MultiheadAttention", (8, 4), _THREE, {"bias": False}, {"need_weights": False}),
    Case("MultiheadAttention", (8, 4), (_FIRST,) * 3, {"batch_first": True},
         {"attn_mask": _LATER, "average_attn_weights": False}),
    Case("MultiheadAttention", (8, 4), _THREE, {}, {"key_padding_mask": _PADDED}),
    Case("MultiheadAttention", (8, 4), _THREE, {},
         {"attn_mask": _ADDED, "need_weights": False}),
    Case("MultiheadAttention", (8, 2), (_QUERY, (6, 2, 3), (6, 2, 7)), {"kdim": 3, "vdim": 7}),
    Case("MultiheadAttention", (8, 2), _THREE, {"add_bias_kv": True, "add_zero_attn": True},
         {"attn_mask": _LATER}),
    Case("TransformerEncoderLayer", (8, 2, 16, 0.0), (_QUERY,)),
    Case("TransformerEncoderLayer", (8, 2, 16, 0.0), (_FIRST,),
         {"batch_first": True, "norm_first": True, "activation": "gelu"},
         {"src_mask": _LATER, "src_key_padding_mask": _PADDED}),
    Case("TransformerEncoderLayer", (8, 2, 16, 0.0), ((5, 8),), {"bias": False}),
    Case("TransformerEncoder",
         (Build("TransformerEncoderLayer", (8, 2, 16, 0.0), {"batch_first": True}), 2),
         (_FIRST,), {"norm": Build("LayerNorm", (8,)), "enable_nested_tensor": False}),
]  # fmt: skip
_PAIR = ((3, 5), (3, 5))
_LOSSES = [
    *(Case(name, (), _PAIR, {"reduction": reduction})
      for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
      for reduction in ("mean", "sum", "none")),
    Case("SmoothL1Loss", (), _PAIR, {"beta": 0.3}),
    Case("HuberLoss", (), _PAIR, {"delta": 0.3}),
    *(Case("CrossEntropyLoss", (), ((4, 5), _CLASSES), options) for options in (
        {}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 4},
        {"label_smoothing": 0.1}, {"weight": _WEIGHT},
    )),
    Case("CrossEntropyLoss", (), ((2, 5, 3, 4), _MAP), {"weight": _WEIGHT}),
    Case("CrossEntropyLoss", (), ((5,), numpy.array(3))),
    Case("CrossEntropyLoss", (), ((3, 5), _SPREAD), {"label_smoothing": 0.2}),
    Case("NLLLoss", (), ((4, 5), _CLASSES)),
    Case("NLLLoss", (), ((2, 5, 3, 4), _MAP), {"weight": _WEIGHT, "reduction": "sum"}),
    Case("BCELoss", (), (_POSITIVE, _SPREAD)),
    Case("BCELoss", (), (_POSITIVE, _SPREAD), {"weight": _WEIGHT, "reduction": "sum"}),
    Case("BCEWithLogitsLoss", (), ((3, 5), _SPREAD)),
    Case("BCEWithLogitsLoss", (), ((3, 5), _SPREAD), {"pos_weight": _WEIGHT, "weight": _WEIGHT}),
    *(Case("KLDivLoss", (), ((3, 5), _SPREAD), {"reduction": reduction})
      for reduction in ("batchmean", "sum", "none")),
    Case("KLDivLoss", (), _PAIR, {"log_target": True, "reduction": "sum"}),
    Case("CosineSimilarity", (), _PAIR),
    Case("CosineSimilarity", (-1, 1e-3), ((2, 3, 5), (2, 3, 5))),
]  # fmt: skip

CASES = [
    *_PLAIN, *_CONVOLUTIONS, *_NORMS, *_ACTIVATIONS, *_POOLS, *_SHAPES, *_RECURRENT,
    *_ATTENTION, *_LOSSES,
]  # fmt: skip

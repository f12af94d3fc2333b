"""Neural-network modules without torch: names, arguments and weights are torch.nn's.

There are more than 16 modules because each holds one family of torch.nn.

    activation      ReLU, GELU, Softmax …
    attention       MultiheadAttention, TransformerEncoder
    cells           RNNCell, LSTMCell, GRUCell
    container       Sequential, ModuleList, ModuleDict, Flatten
    conv            Conv1d/2d/3d and their transposes
    convert         moving and casting a module's tensors
    custom          the names of specification 003: CustomLinear …
    dropout         Dropout, Dropout1d/2d/3d
    embedding       Embedding
    init            initialization of parameters
    linear          Linear, Bilinear, Identity
    loss            losses
    module          Module, the base class
    normalization   BatchNorm, InstanceNorm, LayerNorm, GroupNorm, RMSNorm
    padding         ZeroPad2d, Upsample, PixelShuffle …
    parameter       Parameter
    pooling         MaxPool, AvgPool, adaptive pooling
    recurrent       RNN, LSTM, GRU
    serialization   save and load safetensors
    state           checks of a state_dict against a module
    utils           gradient clipping, parameters_to_vector
"""

from __future__ import annotations

from holdfast.compute.nn import init, utils
from holdfast.compute.nn.activation import (
    ELU,
    GELU,
    Hardsigmoid,
    Hardswish,
    LeakyReLU,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from holdfast.compute.nn.attention import (
    MultiheadAttention,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from holdfast.compute.nn.cells import GRUCell, LSTMCell, RNNCell
from holdfast.compute.nn.container import Flatten, ModuleDict, ModuleList, Sequential, Unflatten
from holdfast.compute.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from holdfast.compute.nn.custom import CustomConv2d, CustomLinear, CustomMSELoss
from holdfast.compute.nn.dropout import Dropout, Dropout1d, Dropout2d, Dropout3d
from holdfast.compute.nn.embedding import Embedding
from holdfast.compute.nn.linear import Bilinear, Identity, Linear
from holdfast.compute.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineSimilarity,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from holdfast.compute.nn.module import Module
from holdfast.compute.nn.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from holdfast.compute.nn.padding import (
    ConstantPad2d,
    PixelShuffle,
    PixelUnshuffle,
    Upsample,
    ZeroPad2d,
)
from holdfast.compute.nn.parameter import Parameter
from holdfast.compute.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    MaxPool1d,
    MaxPool2d,
)
from holdfast.compute.nn.recurrent import GRU, LSTM, RNN
from holdfast.compute.nn.serialization import load, save

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "ConstantPad2d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CosineSimilarity",
    "CrossEntropyLoss",
    "CustomConv2d",
    "CustomLinear",
    "CustomMSELoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "HuberLoss",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "NLLLoss",
    "PReLU",
    "Parameter",
    "PixelShuffle",
    "PixelUnshuffle",
    "RMSNorm",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "Tanh",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Unflatten",
    "Upsample",
    "ZeroPad2d",
    "init",
    "load",
    "save",
    "utils",
]

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
    layer           Layer, whose annotations are its arguments
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

# ruff: noqa: F403 - each module names what it offers in its `__all__`
from holdfast.compute.nn import (
    activation,
    attention,
    cells,
    container,
    conv,
    custom,
    dropout,
    embedding,
    init,
    linear,
    loss,
    normalization,
    padding,
    pooling,
    recurrent,
    utils,
)
from holdfast.compute.nn.activation import *
from holdfast.compute.nn.attention import *
from holdfast.compute.nn.cells import *
from holdfast.compute.nn.container import *
from holdfast.compute.nn.conv import *
from holdfast.compute.nn.custom import *
from holdfast.compute.nn.dropout import *
from holdfast.compute.nn.embedding import *
from holdfast.compute.nn.linear import *
from holdfast.compute.nn.loss import *
from holdfast.compute.nn.module import Module
from holdfast.compute.nn.normalization import *
from holdfast.compute.nn.padding import *
from holdfast.compute.nn.parameter import Parameter
from holdfast.compute.nn.pooling import *
from holdfast.compute.nn.recurrent import *
from holdfast.compute.nn.serialization import load, save

__all__ = ["Module", "Parameter", "init", "load", "save", "utils"]
__all__ += activation.__all__
__all__ += attention.__all__
__all__ += cells.__all__
__all__ += container.__all__
__all__ += conv.__all__
__all__ += custom.__all__
__all__ += dropout.__all__
__all__ += embedding.__all__
__all__ += linear.__all__
__all__ += loss.__all__
__all__ += normalization.__all__
__all__ += padding.__all__
__all__ += pooling.__all__
__all__ += recurrent.__all__

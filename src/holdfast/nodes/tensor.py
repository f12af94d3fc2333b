"""Nodes that compute without a driver: linear layer, convolution, activation, loss, tensor ops.

A result has the kind of its input: torch tensors stay torch tensors on their device, latents stay
latents, anything else becomes a `CustomTensor`. A node keeps its weights from run to run until its
settings change; with a seed they are the same in every process.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

from holdfast import compute
from holdfast.base.errors import BadInput
from holdfast.nodes import node
from holdfast.nodes.refusing import only_links
from holdfast.nodes.tensor_inputs import (
    check_choice,
    check_convolution,
    check_integer,
    check_linear,
    check_pair,
    check_pictures,
    format_shape,
    read_tensor,
    to_floating,
    to_image_batch,
)

CATEGORY = "PyTorch Custom"
TENSOR = "TENSOR,IMAGE,MASK,LATENT"  # ComfyUI links outputs to inputs that share one of the names
KEPT_LAYERS, KEPT_BYTES = 64, 1 << 30  # the last one is kept whatever its size

_TENSOR = node.link(TENSOR)
_HIDDEN = {"unique_id": "UNIQUE_ID"}
_SEED = {"seed": node.integer(-1, -1, 2**53 - 1, control_after_generate=False)}
_BIAS = {"use_bias": node.boolean(True)}


def _size(default: int, least: int = 1, most: int = 1 << 16) -> node.Input:
    return node.integer(default, least, most)


class _TensorNode(node.Node):
    CATEGORY = CATEGORY


class _Layer(_TensorNode):
    """A node with weights. In plain Python each object is a node with its own weights."""

    def __init__(self) -> None:
        self._own = f"python:{next(_numbers)}"

    def _find_layer(
        self, unique_id: object, make: Callable[..., Any], device: Any, seed: int, *settings: Any
    ) -> Any:
        node = self._own if unique_id is None else str(unique_id)
        key = type(self).__name__, node, str(device), seed, *settings
        return _layers.find(key, lambda: _draw_layer(make, device, seed, settings))


class CustomPyTorchLinear(_Layer):
    """Every row times a matrix."""

    RETURN_TYPES = (TENSOR,)
    RETURN_NAMES = ("tensor",)
    FUNCTION = "forward"
    INPUTS = node.declare(
        {"tensor": _TENSOR, "in_features": _size(10), "out_features": _size(5), **_BIAS},
        _SEED,
        _HIDDEN,
    )
    VALIDATE_INPUTS = only_links("tensor")

    def forward(
        self,
        tensor: Any,
        in_features: int,
        out_features: int,
        use_bias: bool = True,
        seed: int = -1,
        unique_id: object = None,
    ) -> tuple[Any]:
        """(tensor,). Raises BadInput for a tensor whose last size is another."""
        ins = check_integer("in_features", in_features)
        outs = check_integer("out_features", out_features)
        taken = read_tensor("tensor", tensor)
        last = taken.tensor.shape[-1] if taken.tensor.ndim else None
        if last != ins:
            raise BadInput(
                f"the tensor {format_shape(taken)} "
                + (f"has {last} as its last size" if last is not None else "has no dimensions")
                + f", in_features is {ins}",
                expected=f"a tensor of [..., {ins}]",
                hint=f"set in_features to {last}" if last else "connect another tensor",
            )
        check_linear(taken, ins, outs)
        settings = (ins, outs, bool(use_bias))
        layer = self._find_layer(
            unique_id, compute.CustomLinear, taken.tensor.device, seed, *settings
        )
        return (taken.restore(_apply(layer, taken.tensor)),)


class CustomPyTorchConv2D(_Layer):
    """A window that slides over pictures."""

    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("image",)
    FUNCTION = "forward"
    INPUTS = node.declare(
        {
            "image": node.link("IMAGE"),
            "in_channels": _size(3),
            "out_channels": _size(3),
            "kernel_size": _size(3, most=1024),
            "stride": _size(1),
            "padding": _size(1, least=0),
            **_BIAS,
        },
        {"clamp": node.boolean(False), **_SEED},
        _HIDDEN,
    )
    VALIDATE_INPUTS = only_links("image")

    def forward(
        self,
        image: Any,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int = 1,
        use_bias: bool = True,
        clamp: bool = False,
        seed: int = -1,
        unique_id: object = None,
    ) -> tuple[Any]:
        """(image,). Raises BadInput for what is no picture, or has other channels."""
        names = ("in_channels", "out_channels", "kernel_size", "stride")
        given = (in_channels, out_channels, kernel_size, stride)
        sizes = (
            *map(check_integer, names, given),
            check_integer("padding", padding, least=0),
        )
        taken = read_tensor("image", image)
        batch, single = to_image_batch(taken), taken.tensor.ndim == 3
        check_pictures(taken, batch, sizes)
        check_convolution(batch, sizes)
        layer = self._find_layer(
            unique_id, _convolution, batch.device, seed, *sizes, bool(use_bias)
        )
        out = _apply(layer, batch.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()
        out = out.clamp(0, 1) if clamp else out
        return (taken.restore(out[0] if single else out),)


class CustomPyTorchActivation(_TensorNode):
    """A function of every number."""

    RETURN_TYPES = (TENSOR,)
    RETURN_NAMES = ("tensor",)
    FUNCTION = "activate"
    KINDS: ClassVar[tuple[str, ...]] = ("relu", "sigmoid", "tanh")
    INPUTS = node.declare({"tensor": _TENSOR, "activation_type": node.choice(KINDS, "relu")})
    VALIDATE_INPUTS = only_links("tensor")

    def activate(self, tensor: Any, activation_type: str = "relu") -> tuple[Any]:
        """(tensor,)"""
        function = check_choice("activation_type", activation_type, self.KINDS)
        taken = read_tensor("tensor", tensor)
        return (taken.restore(getattr(compute.functional, function)(taken.tensor)),)


class CustomPyTorchLoss(_TensorNode):
    """How far a prediction is from its target."""

    RETURN_TYPES = ("FLOAT",)
    RETURN_NAMES = ("loss",)
    FUNCTION = "compute_loss"
    KINDS: ClassVar[tuple[str, ...]] = ("mse", "mae")
    INPUTS = node.declare(
        {"prediction": _TENSOR, "target": _TENSOR, "loss_type": node.choice(KINDS, "mse")}
    )
    VALIDATE_INPUTS = only_links("prediction", "target")

    def compute_loss(self, prediction: Any, target: Any, loss_type: str = "mse") -> tuple[float]:
        """(loss,). Raises BadInput for two shapes."""
        kind = check_choice("loss_type", loss_type, self.KINDS)
        one, other = read_tensor("prediction", prediction), read_tensor("target", target)
        if one.tensor.shape != other.tensor.shape or not one.tensor.numel():
            raise BadInput(
                f"cannot compare the prediction {format_shape(one)} "
                f"with the target {format_shape(other)}",
                expected="two tensors of one shape that hold numbers",
                hint="make both the same size, for pictures with a node that scales them",
            )
        wide = [to_floating(t.tensor.detach()).to("float64") for t in (one, other)]
        function = {"mse": compute.functional.mse_loss, "mae": compute.functional.l1_loss}[kind]
        return (float(function(*wide).item()),)


class CustomPyTorchTensorOps(_TensorNode):
    """Two tensors become one."""

    RETURN_TYPES = (TENSOR,)
    RETURN_NAMES = ("tensor",)
    FUNCTION = "compute"
    KINDS: ClassVar[tuple[str, ...]] = ("add", "multiply", "matmul")
    INPUTS = node.declare(
        {"tensor_a": _TENSOR, "tensor_b": _TENSOR, "operation": node.choice(KINDS, "add")}
    )
    VALIDATE_INPUTS = only_links("tensor_a", "tensor_b")

    def compute(self, tensor_a: Any, tensor_b: Any, operation: str = "add") -> tuple[Any]:
        """(tensor,). Raises BadInput for shapes that do not meet."""
        kind = check_choice("operation", operation, self.KINDS)
        one, other = read_tensor("tensor_a", tensor_a), read_tensor("tensor_b", tensor_b)
        a, b = one.tensor, other.tensor
        check_pair(kind, a, b)
        if kind == "matmul" and a.dtype != b.dtype:
            common = (a.new_zeros([1]) + b.new_zeros([1])).dtype
            a, b = a.to(common), b.to(common)
        function = {"add": operator.add, "multiply": operator.mul, "matmul": operator.matmul}[kind]
        answering = one if one.rank >= other.rank else other
        return (answering.restore(function(a, b)),)


NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = node.class_mappings(
    CustomPyTorchLinear,
    CustomPyTorchConv2D,
    CustomPyTorchActivation,
    CustomPyTorchLoss,
    CustomPyTorchTensorOps,
)


# ---- the cache of layers


class _Layers:
    """The layers used last, by node and settings."""

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self.limit, self.limit_bytes = limit, limit_bytes
        self._lock = threading.Lock()
        self._found: OrderedDict[Any, Any] = OrderedDict()

    def find(self, key: Any, make: Callable[[], Any]) -> Any:
        """The layer of `key`, made if there is none."""
        with self._lock:
            if key not in self._found:
                self._found[key] = make()
            self._found.move_to_end(key)
            while len(self._found) > 1 and self._is_full():
                self._found.popitem(last=False)
            return self._found[key]

    def _is_full(self) -> bool:
        kept = sum(map(_weight_bytes, self._found.values()))
        return len(self._found) > self.limit or kept > self.limit_bytes

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._found.clear()

    def __len__(self) -> int:
        return len(self._found)


def _weight_bytes(layer: Any) -> int:
    return sum(one.numel() * one.dtype.itemsize for one in layer.parameters())


_layers = _Layers(KEPT_LAYERS, KEPT_BYTES)
_numbers = itertools.count()


def forget_layers() -> None:
    """Drop all layers: nodes without a seed draw new weights on their next run."""
    _layers.clear()


def _convolution(
    ins: int, outs: int, window: int, step: int, edge: int, bias: bool, device: Any
) -> Any:
    return compute.CustomConv2d(ins, outs, window, step, edge, bias=bias, device=device)


def _draw_layer(make: Callable[..., Any], device: Any, seed: int, settings: tuple[Any, ...]) -> Any:
    """Make a layer with weights from its own generator; the global generator is not used."""
    generator = compute.random.Generator()
    if seed is None or seed == -1:
        generator.seed()
    else:
        generator.manual_seed(check_integer("seed", seed, least=0))
    with compute.random.using(generator):
        layer = make(*settings, device=device)
    layer.requires_grad_(False)
    return layer


def _apply(layer: Any, tensor: Any) -> Any:
    """Run a layer in float32; the result has the dtype of the input, float32 for integers."""
    wide = to_floating(tensor)
    return layer(wide.to("float32")).to(wide.dtype)

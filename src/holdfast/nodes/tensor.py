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
from holdfast.nodes.node import Inputs, Node
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

_HIDDEN = {"unique_id": "UNIQUE_ID"}
_SEED = {
    "default": -1,
    "min": -1,
    "max": 2**53 - 1,
    "control_after_generate": False,
    "tooltip": "Where the random weights begin: the same seed gives the same weights everywhere. "
    "-1 draws them once for this node and keeps them until ComfyUI ends or a setting changes.",
}
_BIAS = {"default": True, "tooltip": "Add a learned number to each output."}


def _size(
    default: int, tooltip: str, least: int = 1, most: int = 1 << 16
) -> tuple[str, dict[str, Any]]:
    return "INT", {"default": default, "min": least, "max": most, "tooltip": tooltip}


class _TensorNode(Node):
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
    OUTPUT_TOOLTIPS = ("The tensor with out_features as its last size, of the kind that came in.",)
    FUNCTION = "forward"
    DESCRIPTION = (
        "A linear layer over the last dimension: x · Wᵀ + b. A picture has its channels there, so "
        "in_features is 3 for it. No driver is needed."
    )

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """The tensor and the sizes of the matrix."""
        tensor = {"tooltip": "A tensor whose last size is in_features: [..., in_features]."}
        return {
            "required": {
                "tensor": (TENSOR, tensor),
                "in_features": _size(10, "The last size of the tensor; 3 for a picture."),
                "out_features": _size(5, "The last size of the result."),
                "use_bias": ("BOOLEAN", _BIAS),
            },
            "optional": {"seed": ("INT", _SEED)},
            "hidden": _HIDDEN,
        }

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
        ins, outs = (
            check_integer("in_features", in_features),
            check_integer("out_features", out_features),
        )
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
        place = taken.tensor.device
        layer = self._find_layer(
            unique_id, compute.CustomLinear, place, seed, ins, outs, bool(use_bias)
        )
        return (taken.restore(_apply(layer, taken.tensor)),)


class CustomPyTorchConv2D(_Layer):
    """A window that slides over pictures."""

    RETURN_TYPES = ("IMAGE",)
    RETURN_NAMES = ("image",)
    OUTPUT_TOOLTIPS = (
        "The pictures with out_channels channels. With 3 every node for an IMAGE takes them.",
    )
    FUNCTION = "forward"
    DESCRIPTION = (
        "A convolution over pictures [batch, height, width, channels]. Width and height stay with "
        "a stride of 1 and a padding of kernel_size // 2. No driver is needed."
    )

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """Pictures, and the shape of the window."""
        image = {"tooltip": "Pictures: [batch, height, width, channels], or one without batch."}
        clamp = {"default": False, "tooltip": "Keep the result from 0 to 1, as pictures are."}
        return {
            "required": {
                "image": ("IMAGE", image),
                "in_channels": _size(3, "Channels of the pictures: 3, or 4 with transparency."),
                "out_channels": _size(3, "Channels of the result: 3 stays a picture."),
                "kernel_size": _size(3, "Width and height of the window, in pixels.", most=1024),
                "stride": _size(1, "Pixels from one place of the window to the next."),
                "padding": _size(1, "Pixels of zeros put around the pictures.", least=0),
                "use_bias": ("BOOLEAN", _BIAS),
            },
            "optional": {"clamp": ("BOOLEAN", clamp), "seed": ("INT", _SEED)},
            "hidden": _HIDDEN,
        }

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
        sizes = (
            check_integer("in_channels", in_channels),
            check_integer("out_channels", out_channels),
            check_integer("kernel_size", kernel_size),
            check_integer("stride", stride),
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
    OUTPUT_TOOLTIPS = ("The tensor of the same shape and kind.",)
    FUNCTION = "activate"
    DESCRIPTION = "relu (max(x, 0)), sigmoid (0 to 1) or tanh (-1 to 1) of every number."
    KINDS: ClassVar[tuple[str, ...]] = ("relu", "sigmoid", "tanh")

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """The tensor, and which function."""
        tensor = {"tooltip": "A tensor of any shape: pictures, masks, latents."}
        kind = {"default": "relu", "tooltip": "relu cuts off below 0; the others bend smoothly."}
        return {
            "required": {
                "tensor": (TENSOR, tensor),
                "activation_type": (list(cls.KINDS), kind),
            }
        }

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
    OUTPUT_TOOLTIPS = ("One number: 0 where both are equal.",)
    FUNCTION = "compute_loss"
    DESCRIPTION = (
        "Compares two tensors of one shape: mse is the mean of the squared differences, mae of "
        "the absolute ones."
    )
    KINDS: ClassVar[tuple[str, ...]] = ("mse", "mae")

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """Two tensors, and how they are compared."""
        prediction = {"tooltip": "What a network made: pictures, latents, any tensor."}
        target = {"tooltip": "What it should have made, in the same shape."}
        kind = {"default": "mse", "tooltip": "mse weighs large differences more than mae does."}
        return {
            "required": {
                "prediction": (TENSOR, prediction),
                "target": (TENSOR, target),
                "loss_type": (list(cls.KINDS), kind),
            }
        }

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
    OUTPUT_TOOLTIPS = ("The result, of the kind that tensor_a is.",)
    FUNCTION = "compute"
    DESCRIPTION = (
        "add and multiply go number by number, and repeat sizes of 1; matmul multiplies matrices."
    )
    KINDS: ClassVar[tuple[str, ...]] = ("add", "multiply", "matmul")

    @classmethod
    def INPUT_TYPES(cls) -> Inputs:
        """Two tensors, and what becomes of them."""
        first = {"tooltip": "The first tensor; the result is of its kind."}
        second = {"tooltip": "The second tensor. For matmul it has as many rows as the first has "
                  "columns."}  # fmt: skip
        kind = {"default": "add", "tooltip": "add, multiply: number by number; matmul: matrices."}
        return {
            "required": {
                "tensor_a": (TENSOR, first),
                "tensor_b": (TENSOR, second),
                "operation": (list(cls.KINDS), kind),
            }
        }

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


NODE_CLASS_MAPPINGS: dict[str, type[_TensorNode]] = {
    node.__name__: node
    for node in (
        CustomPyTorchLinear,
        CustomPyTorchConv2D,
        CustomPyTorchActivation,
        CustomPyTorchLoss,
        CustomPyTorchTensorOps,
    )
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "CustomPyTorchLinear": "Custom Linear Layer",
    "CustomPyTorchConv2D": "Custom Conv2D Layer",
    "CustomPyTorchActivation": "Custom Activation",
    "CustomPyTorchLoss": "Custom Loss Function",
    "CustomPyTorchTensorOps": "Custom Tensor Operations",
}


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

"""`Layer`: a module whose annotations are the arguments of its constructor."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform

from holdfast.base.errors import BadInput
from holdfast.compute.nn import init
from holdfast.compute.nn.module import Module
from holdfast.compute.nn.parameter import Parameter

_Class = TypeVar("_Class", bound=type[Any])


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def layer(cls: _Class) -> _Class:
    """Make a constructor from the annotations of a `Layer`, as `dataclass` does.

    The class keeps no defaults: a parameter or buffer may have the name of an argument.
    """
    dataclasses.dataclass(eq=False, repr=False)(cls)
    cls._arguments = frozenset(inspect.signature(cls).parameters)
    for name in cls._arguments:
        if name in vars(cls):
            delattr(cls, name)
    return cls


class Layer(Module):
    """A module that has its arguments as attributes; keywords of a subclass are attributes too."""

    shown: ClassVar[str] = ""  # the printed arguments, such as "dim={0.dim}"

    def __init_subclass__(cls, **attributes: Any) -> None:
        super().__init_subclass__()
        for name, value in attributes.items():
            setattr(cls, name, value)

    def __post_init__(self) -> None:
        device, dtype = self.take("device", "dtype")
        super().__init__()
        self.build({"device": device, "dtype": dtype})

    def build(self, kind: dict[str, Any]) -> None:
        """Check the arguments, and add parts; `kind` has the device and dtype of parameters."""

    def take(self, *names: str) -> list[Any]:
        """Arguments that are not kept as attributes; None where there is no such argument."""
        return [vars(self).pop(name, None) for name in names]

    def add_weight(self, name: str, shape: Sequence[int] | None, kind: dict[str, Any]) -> None:
        """Add an uninitialized parameter; None where there is no shape."""
        made = None if shape is None else Parameter(init.empty(*shape, **kind))
        self.register_parameter(name, made)

    def extra_repr(self) -> str:
        return self.shown.format(self)

    def refuse_channels(self, input: Any, channels: int) -> BadInput:
        """The error for an input that does not have this number of channels."""
        found = input.shape[1] if input.ndim > 1 else "no"
        return self.refuse(
            input, f"it has {found} channels", f"a tensor of [batch, {channels}, ...]"
        )


class WeightedLayer(Layer):
    """A layer with a weight and an optional bias, initialized as torch's Linear."""

    weight: Parameter
    bias: Any  # Parameter or None

    def reset_parameters(self) -> None:
        """Initialize the parameters again."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = init.inverse_root(init.fans(self.weight)[0])
            init.uniform_(self.bias, -bound, bound)

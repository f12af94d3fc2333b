"""`Parameter`: a leaf tensor that a module learns. It shares memory with its source tensor."""

from __future__ import annotations

from typing import Any

from holdfast.compute.tensors.custom_tensor import CustomTensor
from holdfast.compute.tensors.device import CustomDevice


class Parameter(CustomTensor):
    """A tensor that becomes a parameter of the module it is assigned to."""

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        if isinstance(data, CustomTensor):
            self._array, self.device = data._array, data.device
        else:
            super().__init__(data, dtype=getattr(data, "dtype", None))
        if requires_grad:
            self.requires_grad_()

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.data, str(self.device), self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copied = _rebuilt(*self.__reduce__()[1])
        memo[id(self)] = copied
        return copied


def _rebuilt(cls: type[Parameter], data: Any, device: str, requires_grad: bool) -> Parameter:
    return cls(CustomTensor(data, CustomDevice(device), data.dtype), requires_grad)

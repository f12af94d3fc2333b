"""Embedding: rows of a table by index."""

from __future__ import annotations

from typing import Any, Self

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute import functional as F
from holdfast.compute.autograd import tape
from holdfast.compute.nn import init
from holdfast.compute.nn.layer import Layer, layer
from holdfast.compute.nn.parameter import Parameter
from holdfast.compute.tensors.custom_tensor import CustomTensor

__all__ = ["Embedding"]


@layer
class Embedding(Layer):
    """Row i of the weight for every index i of the input.

    The row `padding_idx` gets no gradient. `max_norm` and sparse gradients are not supported.
    """

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None = None
    max_norm: float | None = None
    norm_type: float = 2.0
    scale_grad_by_freq: bool = False
    sparse: bool = False
    _weight: CustomTensor | None = None
    _freeze: bool = False
    device: Any = None
    dtype: Any = None

    def build(self, kind: dict[str, Any]) -> None:
        weight, freeze = self.take("_weight", "_freeze")
        if self.max_norm is not None or self.sparse:
            raise BadInput(
                f"Embedding was given max_norm={self.max_norm}, sparse={self.sparse}",
                expected="max_norm=None and sparse=False, which is all there is",
            )
        rows, index = self.num_embeddings, self.padding_idx
        if index is not None:
            if not -rows <= index < rows:
                raise BadInput(
                    f"Embedding has {rows} rows, none at padding_idx {index}",
                    expected=f"{-rows} to {rows - 1}",
                )
            self.padding_idx = index % rows
        given = init.empty(self.num_embeddings, self.embedding_dim, **kind)
        self.weight = Parameter(given if weight is None else weight, not freeze)
        if weight is None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters again."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with tape.no_grad():
                init.zeros_(F.select(self.weight, 0, self.padding_idx))

    @classmethod
    def from_pretrained(cls, embeddings: CustomTensor, freeze: bool = True, **options: Any) -> Self:
        """An Embedding with these rows."""
        rows, width = embeddings.shape
        return cls(rows, width, _weight=embeddings, _freeze=freeze, **options)

    def forward(self, input: CustomTensor) -> CustomTensor:
        self.check_tensor(input)
        if dtypes.category(input.dtype) != dtypes.INTEGER:
            raise self.refuse(input, "its elements are not integers", "int64", "tensor.to('int64')")
        numbers = input.data
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.num_embeddings:
            raise self.refuse(
                input,
                f"its elements range from {numbers.min()} to {numbers.max()}",
                f"0 to {self.num_embeddings - 1}",
            )
        skipped = -1 if self.padding_idx is None else self.padding_idx
        return F.embedding(self.weight, input, skipped, self.scale_grad_by_freq)

    def extra_repr(self) -> str:
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        if self.padding_idx is not None:
            text += f", padding_idx={self.padding_idx}"
        return text + (", scale_grad_by_freq=True" if self.scale_grad_by_freq else "")

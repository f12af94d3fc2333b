"""`Module`, the base of everything that has parameters.

Names, order and state_dict keys are those of the torch module of the same name. A state that
does not fit changes nothing, and the error lists everything that is wrong with it.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

from holdfast.base.errors import BadInput, Misuse
from holdfast.compute import dtype as dtypes
from holdfast.compute.nn.convert import (
    check_weight_dtype,
    clear_gradient,
    convert,
    fill,
    parse_target,
)
from holdfast.compute.nn.parameter import Parameter
from holdfast.compute.nn.state import Keys, compare_keys, match_tensors
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.custom_tensor import CustomTensor, Removable
from holdfast.compute.tensors.device import CustomDevice

_HELD = {
    "_parameters": ("parameter", "Parameter"),
    "_buffers": ("buffer", "tensor"),
    "_modules": ("module", "Module"),
}
_TABLES = tuple(_HELD)


class Module:
    """Holds parameters, buffers and submodules; subclasses define `forward`."""

    _arguments: ClassVar[frozenset[str]] = frozenset()  # what may be set before __init__
    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, CustomTensor | None]
    _modules: dict[str, Module | None]
    _passing: set[str]  # buffers that are not in the state_dict
    _before: list[Any]
    _after: list[Any]

    def __init__(self) -> None:
        vars(self).update({table: {} for table in _TABLES})
        vars(self).update(training=True, _passing=set(), _before=[], _after=[])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for hook in tuple(self._before):  # a hook may remove itself
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = self.forward(*args, **kwargs)
        for hook in tuple(self._after):
            changed = hook(self, args, result)
            result = result if changed is None else changed
        return result

    # ---- registration

    def __setattr__(self, name: str, value: Any) -> None:
        tables = self.__dict__
        if "_modules" not in tables:
            if isinstance(value, Parameter | Module) and name not in self._arguments:
                raise BadInput(
                    f"cannot set {name!r} on {type(self).__name__} yet",
                    expected="super().__init__() as the first line of __init__",
                )
            super().__setattr__(name, value)
        elif isinstance(value, Parameter):
            self._claim(name, "_parameters")
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._claim(name, "_modules")
            self._modules[name] = value
        else:
            self._set_other(name, value)

    def _set_other(self, name: str, value: Any) -> None:
        for table, (what, kind) in _HELD.items():
            if name in self.__dict__[table]:
                if value is not None and not (what == "buffer" and isinstance(value, CustomTensor)):
                    raise BadInput(
                        f"cannot set the {what} {name!r} of {type(self).__name__} to a "
                        f"{type(value).__name__}",
                        expected=f"a {kind}, or None",
                        hint="Parameter(tensor)" if what == "parameter" else None,
                    )
                self.__dict__[table][name] = value
                return
        super().__setattr__(name, value)

    def _claim(self, name: str, table: str) -> None:
        for other in _TABLES:
            if other != table:
                self.__dict__[other].pop(name, None)
        self.__dict__.pop(name, None)

    def __getattr__(self, name: str) -> Any:
        for table in _TABLES:
            found = self.__dict__.get(table)
            if found is not None and name in found:
                return found[name]
        if name in _TABLES or name in ("_before", "_after"):
            raise Misuse(
                f"{type(self).__name__} was used before it was made ready",
                expected="super().__init__() as the first line of __init__",
            )
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in _TABLES:
            if name in self.__dict__[table]:
                del self.__dict__[table][name]
                self._passing.discard(name)
                return
        super().__delattr__(name)

    def register_buffer(
        self, name: str, tensor: CustomTensor | None, persistent: bool = True
    ) -> None:
        """Add a tensor that is part of the module but not learned."""
        self._check_part(name, tensor, CustomTensor)
        self._buffers[name] = tensor
        if not persistent:
            self._passing.add(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, which may be None."""
        self._check_part(name, param, Parameter)
        self._parameters[name] = param

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule."""
        self._check_part(name, module, Module)
        self._modules[name] = module

    register_module = add_module

    def _check_part(self, name: str, value: Any, kind: type) -> None:
        taken = hasattr(self, name) and all(name not in self.__dict__[t] for t in _TABLES)
        if not name or "." in name or taken:
            raise BadInput(
                f"{name!r} is no name for a part of {type(self).__name__}",
                expected="a name without dots that is not taken by an attribute",
            )
        if value is not None and not isinstance(value, kind):
            raise BadInput(
                f"cannot make a {type(value).__name__} the part {name!r} of {type(self).__name__}",
                expected=f"a {kind.__name__}, or None",
            )

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> Removable:
        """Call `hook(module, args)` before forward; it may return other arguments."""
        self._before.append(hook)
        return Removable(self._before, hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> Removable:
        """Call `hook(module, args, result)` after forward; it may return another result."""
        self._after.append(hook)
        return Removable(self._after, hook)

    # ---- walking

    def children(self) -> Iterator[Module]:
        """The direct submodules."""
        return (module for _, module in self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct submodules with their names, each once."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self) -> Iterator[Module]:
        """This module and all submodules."""
        return (module for _, module in self.named_modules())

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all submodules, with dotted names."""
        memo = set() if memo is None else memo
        if remove_duplicate and id(self) in memo:
            return
        memo.add(id(self))
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                inner = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, inner, remove_duplicate)

    def _walk(self, table: str, prefix: str, recurse: bool, once: bool) -> Iterator[Any]:
        seen: set[int] = set()
        inside = self.named_modules(prefix=prefix, remove_duplicate=once)
        for path, module in inside if recurse else [(prefix, self)]:
            for name, value in getattr(module, table).items():
                if value is None or (once and id(value) in seen):
                    continue
                seen.add(id(value))
                yield (f"{path}.{name}" if path else name), value

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Every parameter once."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Every parameter with its dotted name."""
        return self._walk("_parameters", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[CustomTensor]:
        """Every buffer once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, CustomTensor]]:
        """Every buffer with its dotted name."""
        return self._walk("_buffers", prefix, recurse, remove_duplicate)

    def get_submodule(self, target: str) -> Module:
        """The submodule of a dotted name. Raises AttributeError."""
        found: Any = self
        for name in target.split(".") if target else ():
            found = getattr(found, name)
        return found

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of a dotted name. Raises AttributeError."""
        path, _, name = target.rpartition(".")
        return getattr(self.get_submodule(path), name)

    # ---- modes

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` on every submodule, then on this module."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        """Switch to training mode (dropout, batch statistics)."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Switch to evaluation mode."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Require gradients of all parameters, or of none."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them with zeros."""
        for parameter in self.parameters():
            clear_gradient(parameter, set_to_none)

    # ---- conversion

    def to(self, *args: Any, device: Any = None, dtype: Any = None) -> Self:
        """Move to a device, cast to a dtype, or both; integer tensors keep their dtype."""
        for given in args:
            if isinstance(given, CustomTensor):
                device, dtype = given.device, given.dtype
            elif isinstance(given, CustomDevice):
                device = given
            elif given is not None:
                device, dtype = parse_target(given, device, dtype)
        place = None if device is None else CustomDevice(str(device))
        name = type(self).__name__
        kind = None if dtype is None else check_weight_dtype(dtypes.dtype(dtype), name)
        for module in self.modules():
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                for one in (tensor, getattr(tensor, "grad", None)):
                    if one is not None:
                        convert(one, place, kind)
        return self

    float = functools.partialmethod(to, dtype="float32")
    double = functools.partialmethod(to, dtype="float64")
    half = functools.partialmethod(to, dtype="float16")
    bfloat16 = functools.partialmethod(to, dtype="bfloat16")

    # ---- state

    def state_dict(self, prefix: str = "") -> OrderedDict[str, CustomTensor]:
        """Parameters and buffers by dotted name; they share memory with the module's."""
        state: OrderedDict[str, CustomTensor] = OrderedDict()
        self._collect(state, prefix, lambda tensor: tensor.detach())
        return state

    def _collect(self, into: dict[str, Any], prefix: str, made: Callable[[Any], Any]) -> None:
        for name, value in (*self._parameters.items(), *self._buffers.items()):
            if value is not None and name not in self._passing:
                into[prefix + name] = made(value)
        for name, module in self._modules.items():
            if module is not None:
                module._collect(into, f"{prefix}{name}.", made)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Keys:
        """Copy a state of tensors, torch tensors or arrays into the module.

        Raises BadInput that lists what is missing, unexpected (if `strict`) or of another
        shape; nothing is changed then.
        """
        if not isinstance(state_dict, Mapping):
            raise BadInput(
                f"a {type(state_dict).__name__} is no state for {type(self).__name__}",
                expected="a mapping from names to tensors, as state_dict() gives it",
            )
        own: dict[str, CustomTensor] = {}
        self._collect(own, "", lambda tensor: tensor)
        keys = compare_keys(type(self).__name__, own, state_dict, strict)
        for tensor, value in match_tensors(own, state_dict):
            fill(tensor, value)
        return keys

    # ---- printing

    def extra_repr(self) -> str:
        """The arguments in the printed form."""
        return ""

    def __repr__(self) -> str:
        inner = [
            f"  ({name}): " + repr(module).replace("\n", "\n  ")
            for name, module in self._modules.items()
        ]
        extra = self.extra_repr()
        if not inner:
            return f"{type(self).__name__}({extra})"
        head = [f"  {line}" for line in extra.split("\n")] if extra else []
        return "\n".join([f"{type(self).__name__}(", *head, *inner, ")"])

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(n for t in _TABLES for n in self.__dict__[t])})

    def check_kind(self, given: Any, weight: CustomTensor) -> None:
        """Raise BadInput unless `given` is a tensor with the dtype of the weights."""
        self.check_tensor(given)
        if given.dtype != weight.dtype:
            raise self.refuse(
                given,
                f"the weights are {weight.dtype}",
                f"both in {weight.dtype}",
                f"tensor.to({str(weight.dtype)!r})",
            )

    def check_tensor(self, given: Any) -> None:
        """Raise BadInput unless `given` is a tensor."""
        if not isinstance(given, CustomTensor):
            kind = describe(given) if hasattr(given, "ndim") else type(given).__name__
            raise BadInput(
                f"{type(self).__name__}({self.extra_repr()}) cannot take {kind}: it is not a "
                "tensor",
                expected="a tensor",
                hint="CustomTensor(data)",
            )

    def refuse(self, given: Any, reason: str, expected: str, hint: str | None = None) -> BadInput:
        """The error for an input that this module does not accept."""
        name = f"{type(self).__name__}({self.extra_repr()})"
        return BadInput(
            f"{name} cannot take {describe(given)}: {reason}", expected=expected, hint=hint
        )

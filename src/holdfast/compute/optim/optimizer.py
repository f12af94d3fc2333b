"""`Optimizer`: parameters in groups, options for each group, state for each parameter.

state_dict() has torch's layout and names, so states can be exchanged with torch. A state that
does not fit changes nothing.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy

from holdfast.base.errors import BadInput
from holdfast.compute import dtype as dtypes
from holdfast.compute.autograd import tape
from holdfast.compute.nn.convert import clear_gradient, to_host
from holdfast.compute.ops.schema import describe
from holdfast.compute.tensors.custom_tensor import CustomTensor

Params = Iterable[Any]  # parameters, or groups of them
Options = dict[str, Any]


class Optimizer:
    """Updates parameters by their gradients; subclasses define `_update`."""

    # (low, high) of options, for the groups that come with options of their own
    _ranges: Mapping[str, tuple[float, float]] = {}

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        """Every group gets `defaults`; what is outside of `_ranges` raises BadInput."""
        check(type(self).__name__, defaults, **self._ranges)
        self.defaults = defaults
        self.state: defaultdict[CustomTensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        was_given = f"{type(self).__name__} was given"
        if isinstance(params, CustomTensor):
            hint = "module.parameters(), or [tensor]"
            what = f"{was_given} {describe(params)}"
            raise BadInput(what, expected="several parameters", hint=hint)
        if not isinstance(params, Iterable):
            what = f"{was_given} a {type(params).__name__}"
            expected = "parameters, or groups of them"
            raise BadInput(what, expected=expected, hint="module.parameters()")
        groups = list(params)
        if not groups:
            raise BadInput(f"{was_given} no parameters", expected="at least one")
        if not isinstance(groups[0], Mapping):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add parameters with their own options. Raises BadInput."""
        if not isinstance(param_group, Mapping) or "params" not in param_group:
            raise BadInput(
                f"{type(self).__name__} was given a {type(param_group).__name__} for a group",
                expected="""groups like {"params": module.parameters(), "lr": 0.1}""",
            )
        options = {**self.defaults, **param_group}
        check(type(self).__name__, options, **self._ranges)
        given = param_group["params"]
        listed = [given] if isinstance(given, CustomTensor) else list(given)
        known = {id(p) for group in self.param_groups for p in group["params"]}
        for place, parameter in enumerate(listed):
            if isinstance(parameter, tuple):  # (name, parameter)
                listed[place] = parameter = parameter[1]
            self._check_parameter(parameter, known)
            known.add(id(parameter))
        self.param_groups.append({**options, "params": listed})

    def _check_parameter(self, parameter: Any, known: set[int]) -> None:
        reason = None
        if not isinstance(parameter, CustomTensor):
            reason = f"a {type(parameter).__name__} is not a tensor"
        elif not parameter.is_leaf:
            reason = f"{describe(parameter)} is the result of a computation"
        elif dtypes.category(parameter.dtype) != dtypes.FLOATING:
            reason = f"{describe(parameter)} is not floating point"
        elif id(parameter) in known:
            reason = f"{describe(parameter)} is there twice"
        if reason:
            raise BadInput(
                f"{type(self).__name__} cannot change this parameter: {reason}",
                expected="parameters of a module, each once",
            )

    # ---- steps

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them with zeros."""
        for group in self.param_groups:
            for parameter in group["params"]:
                clear_gradient(parameter, set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what `closure` returned."""
        loss = None
        if closure is not None:
            with tape.enable_grad():
                loss = closure()
        ready = [
            (parameter, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        for parameter, _ in ready:
            self._check_gradient(parameter)
        for parameter, group in ready:
            self._update(parameter, group, self.state[parameter])
        return loss

    def _check_gradient(self, parameter: CustomTensor) -> None:
        gradient: Any = parameter.grad
        if not isinstance(gradient, CustomTensor):
            reason = f"its gradient is a {type(gradient).__name__}"
        elif gradient.shape != parameter.shape or not gradient.is_floating_point():
            reason = f"its gradient is {describe(gradient)}"
        elif not parameter.device.matches(gradient.device):
            reason = f"its gradient is on {gradient.device}, it is on {parameter.device}"
        elif not getattr(getattr(parameter._array, "flags", None), "writeable", True):
            reason = "its memory must not be changed"
        else:
            return
        raise BadInput(
            f"{type(self).__name__} cannot change the parameter {describe(parameter)}: {reason}",
            expected="a gradient of the parameter's shape, and memory of its own",
        )

    def _update(self, parameter: CustomTensor, group: Options, state: Options) -> None:
        raise NotImplementedError

    def _state_tensor(self, parameter: CustomTensor, state: Options, name: str) -> CustomTensor:
        """A tensor of the state, in the parameter's shape; initially zeros."""
        found = state.get(name)
        if found is None:
            meta = (tuple(parameter.shape), parameter.dtype, parameter.device)
            found = state[name] = CustomTensor._full(0, meta)
        return found

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Options and state, with parameters as indices."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for parameter in group["params"]:
                numbers.setdefault(id(parameter), len(numbers))
            kept = {key: value for key, value in group.items() if key != "params"}
            groups.append({**kept, "params": [numbers[id(p)] for p in group["params"]]})
        state = {numbers[id(p)]: dict(kept) for p, kept in self.state.items() if kept}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load options and state, of this library or of torch. Raises BadInput."""
        groups, states = _parts(state_dict)
        sizes = [len(group["params"]) for group in groups]
        own = [len(group["params"]) for group in self.param_groups]
        if sizes != own:
            raise BadInput(
                f"the state is for groups of {sizes} parameters, not {own}",
                expected="the state of an optimizer with the same groups",
            )
        parameters = {
            number: parameter
            for group, mine in zip(groups, self.param_groups, strict=True)
            for number, parameter in zip(group["params"], mine["params"], strict=True)
        }
        for number in (n for n in states if n not in parameters):
            raise BadInput(
                f"the state has a parameter {number!r} that no group has",
                expected="the state of an optimizer with the same groups",
            )
        loaded = {
            parameters[number]: {k: _load_value(v, parameters[number], k) for k, v in kept.items()}
            for number, kept in states.items()
        }
        self.state.clear()
        self.state.update(loaded)
        for group, mine in zip(groups, self.param_groups, strict=True):
            mine.update({k: copy.copy(v) for k, v in group.items() if k != "params"})

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for place, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {place}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])


def _parts(state: Any) -> tuple[Any, Any]:
    """Groups and states of a state_dict. Raises BadInput."""
    known = isinstance(state, Mapping) and "state" in state and "param_groups" in state
    if not known or any("params" not in group for group in state["param_groups"]):
        raise BadInput(
            f"this {type(state).__name__} is no state of an optimizer",
            expected='what state_dict() gives: "state" and "param_groups" with their "params"',
        )
    return state["param_groups"], state["state"]


def _load_value(value: Any, parameter: CustomTensor, name: str) -> Any:
    if name == "step" or not hasattr(value, "shape"):
        return int(to_host(value)) if name == "step" else value
    array = to_host(value)
    if array.shape != tuple(parameter.shape):
        raise BadInput(
            f"{name!r} of the state is {describe(array)}, its parameter {describe(parameter)}",
            expected="equal shapes",
        )
    return CustomTensor(array, parameter.device, parameter.dtype)


def check(of: str, options: dict[str, Any], **ranges: tuple[float, float]) -> None:
    """Raise BadInput for an option that is not a number in [low, high); tensors become numbers."""
    for name, (low, high) in ranges.items():
        if hasattr(options[name], "item"):
            options[name] = options[name].item()
        given = options[name]
        for value in given if isinstance(given, tuple | list) else (given,):
            if not isinstance(value, int | float) or not low <= value < high:
                top = f" and below {high}" if numpy.isfinite(high) else ""
                raise BadInput(
                    f"{of} cannot have {name}={given!r}", expected=f"at least {low}{top}"
                )


def count_step(state: dict[str, Any]) -> int:
    """Count one more step."""
    state["step"] = state.get("step", 0) + 1
    return state["step"]

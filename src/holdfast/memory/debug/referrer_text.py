"""One reference as text: how a parent object holds a child.

Types are tested without running code of the objects, and nothing is kept alive.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import inspect
import itertools
import sys
import types
from collections import deque
from typing import Any, TypeGuard

_SUSPENDED = {
    types.GeneratorType: ("generator", "gi_frame"),
    types.CoroutineType: ("coroutine", "cr_frame"),
    types.AsyncGeneratorType: ("generator", "ag_frame"),
}
# Types between a block and a memoryview, left out of chains.
_BETWEEN = ("managedbuffer", "Window")


def is_of(value: Any, module: str, name: str) -> bool:
    """Whether it is an instance of module.name; False if the module is not loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and is_a(value, kind)


def is_a(value: Any, kind: Any) -> TypeGuard[Any]:
    """isinstance() by the type alone: proxies run code when asked for their class."""
    return issubclass(type(value), kind)


def is_block(kind: type) -> bool:
    """Whether it is a block type, of either core."""
    return hasattr(kind, "detach") and hasattr(kind, "exports")


def is_array(one: Any) -> bool:
    """Whether it is an array or a tensor, which may be a view of a block."""
    return is_of(one, "numpy", "ndarray") or is_of(one, "torch", "Tensor")


def is_named(one: Any) -> bool:
    """Whether a chain may end here: a module, function, class, generator or cache."""
    if type(one) is dict:
        return _module_of(one) is not None
    return is_a(one, (type, types.FunctionType, *_SUSPENDED)) or _is_cache(one)


def _is_cache(one: Any) -> bool:
    return type(one).__name__ == "_lru_cache_wrapper"


def _module_of(names: dict[Any, Any]) -> str | None:
    name = names.get("__name__")
    if not is_a(name, str):
        return None
    module = sys.modules.get(name)
    if "__builtins__" in names or (module is not None and vars(module) is names):
        return name
    return None


def describe_path(objects: list[Any]) -> list[str]:
    """Text for each step upwards from objects[0]."""
    found, at = [], 0
    while at + 1 < len(objects):
        text, used = _describe_step(objects, at)
        found += [text] if text else []
        at += used
    return found


def _describe_step(objects: list[Any], at: int) -> tuple[str, int]:
    """Text for the step from objects[at] upwards, and how many objects it covers."""
    child, parent = objects[at], objects[at + 1]
    above = objects[at + 2] if at + 2 < len(objects) else None
    if type(parent) is dict:
        return _in_dict(child, parent, above)
    if type(parent) is types.CellType:
        function = next((o for o in objects[at + 2 : at + 4] if _closes_over(o, parent)), None)
        if function is not None:
            names = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
            name = next(n for n, cell in names.items() if cell is parent)
            return f"closure variable {name!r} of function {function.__qualname__}", len(objects)
        return "", 1
    if is_a(above, types.FunctionType) and above.__defaults__ is parent:
        names = above.__code__.co_varnames[: above.__code__.co_argcount][-len(parent) :]
        name = names[_index(child, parent)]
        return f"default argument {name!r} of function {above.__qualname__}", 2
    return _in_object(child, parent), 1


def _closes_over(one: Any, cell: Any) -> bool:
    return is_a(one, types.FunctionType) and any(c is cell for c in one.__closure__ or ())


def _in_dict(child: Any, parent: dict[Any, Any], above: Any) -> tuple[str, int]:
    key = next((k for k, value in list(parent.items()) if value is child), child)
    name = repr(key) if is_a(key, (str, int, float, bytes, tuple)) else type(key).__name__
    name = name if len(name) <= 60 else name[:57] + "..."
    module = _module_of(parent)
    if module is not None:
        kind = "Block" if is_block(type(child)) else type(child).__name__
        return f"global {name} ({kind}) of module {module}", 1
    if is_a(above, type) and vars(above).get(str(key)) is child:
        return f"attribute {name} of class {above.__qualname__}", 2
    if is_a(above, types.FunctionType):
        what = "default argument" if above.__kwdefaults__ is parent else "attribute"
        return f"{what} {name} of function {above.__qualname__}", 2
    if type(above).__name__ in _BETWEEN:
        return "", 2
    if above is not None and getattr(above, "__dict__", None) is parent:
        return f"attribute {name} of {_name_of(above)}", 2
    return f"key {name} of dict", 1


def _in_object(child: Any, parent: Any) -> str:
    kind = type(parent).__name__
    for suspended, (what, frame) in _SUSPENDED.items():
        if is_a(parent, suspended):
            name = _variable(getattr(parent, frame), child)
            return f"local {name} of suspended {what} {parent.__qualname__}"
    if is_a(parent, types.FrameType):
        name = _variable(parent, child)
        return f"local {name} of {parent.f_code.co_qualname}, which has ended"
    if is_a(parent, (list, tuple, deque)):
        return f"item {_index(child, parent)} of {kind}"
    if is_a(parent, functools.partial):
        return f"argument of partial({getattr(parent.func, '__qualname__', parent.func)})"
    if is_a(parent, types.MethodType):
        return f"bound method {parent.__qualname__}"
    if is_a(parent, BaseException):
        return f"{kind} at {id(parent):#x}"
    if _is_cache(parent):
        return f"cache of function {parent.__wrapped__.__qualname__}"
    if kind == "hamt_bitmap_node":
        return f"context variable {_context_variable(child, parent)!r}"
    if kind in _BETWEEN or kind.startswith("hamt"):
        return ""
    if is_a(parent, (set, frozenset)):
        return f"item of {kind}"
    if is_a(parent, (memoryview, types.TracebackType)) or is_array(parent):
        return f"an {kind}" if kind == "ndarray" else f"a {kind}"
    name = _attribute(parent, child)
    return f"attribute {name!r} of {_name_of(parent)}" if name else f"in {_name_of(parent)}"


def _name_of(thing: Any) -> str:
    name = getattr(thing, "__name__", None)
    if is_a(thing, types.ModuleType):
        return f"module {name}"
    return f"{type(thing).__qualname__} at {id(thing):#x}"


def _index(child: Any, parent: Any) -> int:
    return next((at for at, one in enumerate(parent) if one is child), 0)


def _variable(frame: types.FrameType | None, value: Any) -> str:
    """The name of a value in a frame that does not run; a cell stands for its content."""
    content = value.cell_contents if type(value) is types.CellType else value
    found = variables(frame) if frame is not None else []
    return next((repr(name) for name, one in found if one is content), "value")


def _context_variable(child: Any, node: Any) -> str:
    pairs = gc.get_referents(node)
    for key, value in itertools.pairwise(pairs):
        for one, other in ((key, value), (value, key)):
            if is_a(one, contextvars.ContextVar) and other is child:
                return one.name
    return "?"


def _attribute(thing: Any, value: Any) -> str | None:
    slots = [name for kind in type(thing).__mro__ for name in _slots(kind)]
    for name in slots:
        mangled = name if not name.startswith("__") else f"_{type(thing).__name__}{name}"
        member = inspect.getattr_static(type(thing), mangled, None)
        if is_a(member, types.MemberDescriptorType) and _of(member, thing) is value:
            return name
    own = getattr(thing, "__dict__", None)
    if is_a(own, dict):
        return next((str(name) for name, one in own.items() if one is value), None)
    return None


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if is_a(slots, str) else tuple(slots)


def _of(member: types.MemberDescriptorType, thing: Any) -> Any:
    try:
        return member.__get__(thing)
    except AttributeError:  # the slot is empty
        return None


def variables(frame: types.FrameType) -> list[tuple[str, Any]]:
    """The variables of a frame, without side effects.

    Before Python 3.13 a frame keeps the dictionary that `f_locals` makes, and that would keep the
    values alive. It is cleared, unless somebody else has it too (`locals()`, a debugger).
    """
    values = frame.f_locals
    found = list(values.items())
    made = frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13)
    if made and frame.f_trace is None and sys.getrefcount(values) <= 3:
        values.clear()
    return found

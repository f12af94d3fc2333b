"""Source of reduction kernels: defines that are put in front of kernels/reduce.cl.

The same arguments give the same text, so that each kernel is built once.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from holdfast.compute.engines.opencl.runtime.programs import source_of

_NAME = re.compile(r"\$(\w+)")
_BOUNDS = {  # the lowest and the highest value of a C type
    "uchar": ("0", "255"),
    "int": ("INT_MIN", "INT_MAX"),
    "long": ("LONG_MIN", "LONG_MAX"),
    "ulong": ("0", "ULONG_MAX"),
    "float": ("-INFINITY", "INFINITY"),
    "double": ("-INFINITY", "INFINITY"),
}

# How to join the value `v` (with index `i`) to the state `{s}` (with index `{k}`).
_JOINS = {
    "sum": "{s} += v;",
    "prod": "{s} *= v;",
    "max": "{s} = v > {s} || v != v ? v : {s};",
    "min": "{s} = v < {s} || v != v ? v : {s};",
    "and": "{s} &= v;",
    "or": "{s} |= v;",
    "xor": "{s} ^= v;",
}
_PLACED = (
    "const int ahead_ = i >= 0 && ({k} < 0 || v %s {s} || (v != v && {s} == {s}) || "
    "((v == {s} || (v != v && {s} != {s})) && i < {k})); "
    "{s} = ahead_ ? v : {s}; {k} = ahead_ ? i : {k};"
)
_STARTS = {"sum": "0", "prod": "1", "and": "1", "or": "0", "xor": "0"}


class FoldSpec(NamedTuple):
    """A `ReduceOutput` as its text needs it: dtype names instead of arrays."""

    fold: str
    value: str
    type: str
    wide: str
    finish: str
    index_from: str
    placed: bool
    out: str | None
    place: str | None

    def start(self, kind: str) -> str:
        """The initial state in a C type."""
        if self.fold in ("max", "min"):
            return _BOUNDS[kind][self.fold == "min"]
        return _STARTS[self.fold]

    def join(self, s: str, k: str, v: str, i: str) -> str:
        """C code that joins a value, and its index, to a state."""
        text = _PLACED % (">" if self.fold == "max" else "<") if self.placed else _JOINS[self.fold]
        place = f"const long i = {i}; " if self.placed else ""
        kind = self.wide if v.startswith("h") else self.type
        return f"{{ const {kind} v = {v}; {place}{text.format(s=s, k=k)} }}"


class _Shape(NamedTuple):
    way: str
    inputs: tuple[tuple[str, str, str], ...]
    outs: tuple[str, ...]
    inner: tuple[int, ...]
    kept: int
    reduced: int


@functools.lru_cache(4096)
def text_of(
    way: str, beside: bool, inputs: tuple[tuple[str, str, str], ...],
    numbers: tuple[tuple[str, str], ...], states: tuple[FoldSpec, ...], inner: tuple[int, ...],
    dims: tuple[int, int], index: str, group: int,
) -> str:  # fmt: skip
    """The source of a kernel. `inner` is the innermost step of each input: 0, 1 or another (2)."""
    outs = tuple(word for state in states for word in (state.out, state.place) if word is not None)
    shape = _Shape(way, inputs, outs, inner, *dims)
    defines = {
        way: "1",
        "INDEX": index,
        "GROUP": str(group),
        **_arguments(shape, numbers),
        **_offsets(shape),
        **_state_defines(states),
        "STEP(l)": _step(shape, states),
        "FINISH(w, o, c)": _finish(shape, states),
    }
    if beside:
        defines["BESIDE"] = "1"
    return "".join(f"#define {name} {text}\n" for name, text in defines.items()) + source_of(
        "reduce"
    )


def _arguments(shape: _Shape, numbers: tuple[tuple[str, str], ...]) -> dict[str, str]:
    reads = [f"a{n}" for n in range(len(shape.inputs))]
    writes = [f"x{n}" for n in range(len(shape.outs))]
    arguments = [f"__global uchar *{a}_, ulong {a}_at" for a in (*reads, *writes)]
    arguments += [f"{kind} n_{name}" for name, kind in numbers]
    sizes = [
        "per_chunk",
        *(f"k{d}" for d in range(shape.kept)),
        *(f"r{d}" for d in range(shape.reduced)),
    ]
    for a in reads:
        sizes += [
            *(f"{a}_k{d}" for d in range(shape.kept)),
            *(f"{a}_r{d}" for d in range(shape.reduced)),
        ]
    sizes += [f"{x}_k{d}" for x in writes for d in range(shape.kept)]
    pointers = [
        f"__global const TYPE_{word} *{a} = CAT(TYPE_{word}, {a});"
        for a, (_, word, _) in zip(reads, shape.inputs, strict=True)
    ]
    pointers += [
        f"__global TYPE_{word} *{x} = AT(TYPE_{word}, {x});"
        for x, word in zip(writes, shape.outs, strict=True)
    ]
    pointers += [f"const {kind} v_{name} = n_{name};" for name, kind in numbers]
    return {
        "ARGUMENTS": ", ".join(arguments),
        "SIZES": ", ".join(f"long {name}" for name in sizes),
        "POINTERS": " ".join(pointers),
    }


def _offsets(shape: _Shape) -> dict[str, str]:
    reads = [f"a{n}" for n in range(len(shape.inputs))]
    writes = [f"x{n}" for n in range(len(shape.outs))]
    kept = shape.kept - (shape.way == "COLUMNS")
    reduced = shape.reduced - (shape.way == "ROWS")
    return {
        "KEPT(o_)": _offsets_text("o_", "k", kept, {a: (f"{a}_o", "0") for a in (*reads, *writes)}),
        "REDUCED(r_)": _offsets_text("r_", "r", reduced, {a: (f"{a}_b", f"{a}_o") for a in reads}),
    }


def _offsets_text(index: str, letter: str, dims: int, arrays: dict[str, tuple[str, str]]) -> str:
    """Offsets of arrays (name, start) for a flat index that is split dimension by dimension."""
    lines = [f"INDEX {name} = {start};" for name, start in arrays.values()]
    if dims:
        lines.append(f"INDEX {letter}q_ = (INDEX)({index});")
    for d in range(dims - 1, -1, -1):
        at = f"{letter}q_"
        if d:
            at = f"{letter}i{d}_"
            size = f"(INDEX){letter}{d}"
            lines.append(f"const INDEX {at} = {letter}q_ % {size}; {letter}q_ /= {size};")
        lines += [f"{name} += {at} * (INDEX){a}_{letter}{d};" for a, (name, _) in arrays.items()]
    return " ".join(lines)


def _step(shape: _Shape, states: tuple[FoldSpec, ...]) -> str:
    lines = []
    for n, (name, word, kind) in enumerate(shape.inputs):
        lines.append(f"const {kind} v_{name} = ({kind})LOAD_{word}(a{n}, {_place(shape, n)});")
    own = "row * inner + j" if shape.way == "ROWS" else "r"
    if any("$index" in state.value for state in states):
        lines.append(f"const long v_index = {own};")
    for n, state in enumerate(states):
        value = _NAME.sub(r"v_\1", state.value)
        index = _NAME.sub(r"v_\1", state.index_from) or own
        lines.append(state.join(f"b{n}[l]", f"bk{n}[l]", f"({value})", index))
    return "{ " + " ".join(lines) + " }"


def _place(shape: _Shape, n: int) -> str:
    step = shape.inner[n]
    if shape.way == "GROUPS" or step == 0:
        return f"a{n}_b"
    if step == 1:
        return f"a{n}_b + j"
    last = f"r{shape.reduced - 1}" if shape.way == "ROWS" else f"k{shape.kept - 1}"
    return f"a{n}_b + j * a{n}_{last}"


def _state_defines(states: tuple[FoldSpec, ...]) -> dict[str, str]:
    """Declaring, initializing and joining states, in private and in local memory."""
    texts: dict[str, list[str]] = {}

    def add(name: str, text: str) -> None:
        texts.setdefault(name, []).append(text)

    for n, state in enumerate(states):
        for place, kind, narrow in _variables(state, n):
            add("PART(n)", f"{narrow} b{place}[n];")
            add("WHOLE(n)", f"{kind} w{place}[n];")
            add("LOCAL", f"__local {kind} h{place}[GROUP];")
            start = "-1" if place.startswith("k") else ""
            add("CLEAR(l)", f"b{place}[l] = {start or state.start(narrow)};")
            add("CLEAR_WHOLE(w)", f"w{place}[w] = {start or state.start(kind)};")
            add("HAND(at)", f"h{place}[at] = w{place}[0];")
            add("TAKE(at)", f"w{place}[0] = h{place}[at];")
        add("JOIN(l, m)", state.join(f"b{n}[l]", f"bk{n}[l]", f"b{n}[m]", f"bk{n}[m]"))
        add("FOLD(l, w)", state.join(f"w{n}[w]", f"wk{n}[w]", f"b{n}[l]", f"bk{n}[l]"))
        add(
            "MEET(at, other)",
            state.join(f"h{n}[at]", f"hk{n}[at]", f"h{n}[other]", f"hk{n}[other]"),
        )
    return {name: " ".join(lines) for name, lines in texts.items()}


def _variables(state: FoldSpec, n: int) -> list[tuple[str, str, str]]:
    """The variables of a state: name, wide type, narrow type."""
    found = [(str(n), state.wide, state.type)]
    return [*found, (f"k{n}", "long", "long")] if state.placed else found


def _finish(shape: _Shape, states: tuple[FoldSpec, ...]) -> str:
    lines, number = [], 0
    for n, state in enumerate(states):
        total = _NAME.sub(
            lambda m, n=n: f"w{n}[w]" if m[1] == "total" else f"v_{m[1]}", state.finish
        )
        for word, value in ((state.out, f"({total})"), (state.place, f"wk{n}[w]")):
            if word is not None:
                x = f"x{number}"
                column = f" + j * {x}_k{shape.kept - 1}" if shape.way == "COLUMNS" else ""
                lines.append(f"STORE_{word}({x}, {x}_o{column} + c * per_chunk, {value});")
                number += 1
    return "{ " + " ".join(lines) + " }"

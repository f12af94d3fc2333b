"""OpenCL C source of elementwise kernels, generated from a `Form`.

The same form gives the same text, so that each kernel is built once.

In an expression `$name` is a value that was read or computed before, `T` the type that is computed
in, and `j` the flat index if all arrays are flat. A wide form computes several elements at once:
T is a vector then, and a comparison gives a vector of type I with all bits set or clear.
Expressions are written to suit both: `c ? a : b` selects, `&` and `|` combine comparisons, K(0.5)
is a constant, and a boolean that was read is compared with 0 first.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from holdfast.compute.engines.opencl.runtime.programs import source_of

NAME = re.compile(r"\$(\w+)")
EACH = 4  # elements per work-item on GPUs
WIDTHS = {("cpu", "float"): 16, ("cpu", "double"): 8, ("gpu", "float"): 4}
TRUTH = "truth"  # instead of a C type: nonzero is true
# Dtypes that wide forms read and write.
WIDE_READS = frozenset(
    (
        *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float32", "float64", "float16", "bfloat16"),
    )
)
WIDE_WRITES = frozenset(("bool", "float32", "float64", "float16", "bfloat16"))
_HELPER = re.compile(r"\bf_\w+\(")
_BITS = {"char": 8, "uchar": 8, "short": 16, "ushort": 16, "int": 32, "uint": 32}


class Read(NamedTuple):
    """An array that is read: its name in expressions, its dtype name, the C type it is read as."""

    name: str
    word: str
    type: str


class Step(NamedTuple):
    """A computed value: its name, its expression, and whether it is boolean."""

    name: str
    expression: str
    truth: bool = False


class Form(NamedTuple):
    """All that the text of a kernel depends on.

    `writes` are the dtype names of the values `results`. `inner` is the innermost step of each
    array, results first: 0, 1, -1 or another (2). `width` elements are computed at once.
    """

    mapping: str
    type: str
    width: int
    reads: tuple[Read, ...]
    numbers: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    writes: tuple[str, ...]
    inner: tuple[int, ...]
    ndim: int
    large: bool
    helpers: str = ""


def arrays_of(form: Form) -> list[str]:
    """The names of the arrays in the text: results, then inputs."""
    return [f"o{i}" for i in range(len(form.writes))] + [f"a{i}" for i in range(len(form.reads))]


@functools.lru_cache(2048)
def text_of(form: Form) -> str:
    """The source of the kernel `elementwise`."""
    arguments = [f"__global uchar *{a}_, ulong {a}_at" for a in arrays_of(form)]
    arguments += [f"{_argument_type(kind)} n_{name}" for name, kind in form.numbers]
    if form.mapping == "cpu":
        arguments.append("long each_")
    arguments += [f"long z{d}" for d in range(form.ndim)]
    arguments += [f"long {a}_s{d}" for a in arrays_of(form) for d in range(form.ndim)]
    grid = _GRIDS[form.mapping, form.ndim == 1]
    lines = [*_pointers(form), *(_number(form, *number) for number in form.numbers)]
    return "\n".join(
        (
            *_defines(form),
            _functions(form),
            form.helpers,
            f"__kernel void elementwise({', '.join(arguments)}) {{",
            *lines,
            grid(form, "\n".join(_body(form))),
            "}\n",
        )
    )


def _argument_type(kind: str) -> str:
    """The C type of a scalar argument; integers are passed as long."""
    return kind if kind in ("float", "double") else "long"


def _number(form: Form, name: str, kind: str) -> str:
    wanted = "T" if kind == form.type else kind
    return f"const {wanted} v_{name} = ({wanted})n_{name};"


# ---- declarations before the kernel


def _defines(form: Form) -> list[str]:
    kind, width = form.type, form.width
    truth = "long" if kind == "double" and width > 1 else "int"
    size = "" if width == 1 else str(width)
    floating = kind in ("float", "double")
    lines = [f"#define T {kind}{size}", f"#define I {truth}{size}"]
    lines.append(f"#define K(x) ((T)(x{'##f' if kind == 'float' else ''}))")
    if width > 1:
        lines += [f"#define W {width}", f"#define WIDE_FLOAT {kind}", f"#define WIDE_TRUTH {truth}"]
    if width > 1 and form.mapping == "gpu":
        lines.append("#define ALIGNED")
    if floating:
        lines.append("#define FLOATING")
    else:
        lines += ["#define WHOLE", f"#define BITS {_BITS.get(kind, 64)}"]
        negative = "0" if kind.startswith("u") else "((b) == -1)"
        lines.append(f"#define IS_MINUS_ONE(b) {negative}")
    if kind == "double":
        lines.append("#define EXACT")
    return lines


def _functions(form: Form) -> str:
    needed = any(_HELPER.search(step.expression) for step in form.steps)
    wide = source_of("vectors") if form.width > 1 else ""
    return wide + (source_of("pointwise") if needed else "")


# ---- the loop body, for element j of a row


def _pointers(form: Form) -> list[str]:
    made = []
    words = [*form.writes, *(read.word for read in form.reads)]
    for place, (array, word) in enumerate(zip(arrays_of(form), words, strict=True)):
        read = place >= len(form.writes)
        const, letter = ("const ", "C") if read else ("", "")
        made.append(f"__global {const}TYPE_{word} *{array} = {letter}AT(TYPE_{word}, {array});")
    return made


def _body(form: Form) -> list[str]:
    count = len(form.writes)
    lines = [_load(form, f"a{i}", read, form.inner[count + i]) for i, read in enumerate(form.reads)]
    if form.width == 1 and len(form.steps) == 1:  # the store converts to its dtype
        value = NAME.sub(r"v_\1", form.steps[0].expression)
        return [
            *lines,
            f"STORE_{form.writes[0]}(o0, {_index_text('o0', form.inner[0])}, ({value}));",
        ]
    for step in form.steps:
        value = NAME.sub(r"v_\1", step.expression)
        lines.append(f"const {'I' if step.truth else 'T'} v_{step.name} = ({value});")
    for i, (name, word) in enumerate(zip(form.results, form.writes, strict=True)):
        lines.append(_store(form, f"o{i}", name, word, form.inner[i]))
    return lines


def _load(form: Form, array: str, read: Read, step: int) -> str:
    place, name, word = _index_text(array, step), f"v_{read.name}", read.word
    kind = "I" if read.type == TRUTH else "T" if read.type == form.type else read.type
    single = f"({kind})LOAD_{word}({array}, {place})"
    if form.width == 1 or step == 0:
        return f"const {kind} {name} = {single};"
    letter = "T" if read.type == TRUTH else "V"
    return f"const {kind} {name} = whole_ ? LOAD{letter}_{word}({array}, {place}) : {single};"


def _store(form: Form, array: str, name: str, word: str, step: int) -> str:
    place = _index_text(array, step)
    if form.width == 1:
        return f"STORE_{word}({array}, {place}, v_{name});"
    return (
        f"if (whole_) STOREV_{word}({array}, {place}, v_{name});"
        f" else STORE_{word}({array}, {place}, v_{name}.s0);"
    )


def _index_text(array: str, step: int) -> str:
    """The index of an element: `{array}_b` is where the row starts, j the index in the row."""
    if step == 0:
        return f"{array}_b"
    if abs(step) == 1:  # compilers vectorize these only
        return f"{array}_b {'+' if step == 1 else '-'} j"
    return f"{array}_b + j * {array}_t"


# ---- loops


def _row_loop(form: Form, start: str, end: str, body: str) -> str:
    """A loop over a row, `width` elements at a time while there are as many."""
    if form.width == 1:
        return f"for (long j = {start}; j < {end}; j++) {{ {body} }}"
    return f"""
    for (long j = {start}, step_; j < {end}; j += step_) {{
        const bool whole_ = {end} - j >= W;
        step_ = whole_ ? W : 1;
        {body}
    }}
    """


def _flat_bases(form: Form, index: str) -> str:
    return " ".join(f"const {index} {a}_b = 0, {a}_t = {a}_s0;" for a in arrays_of(form))


def _flat_cpu(form: Form, body: str) -> str:
    return f"""
    {_flat_bases(form, "long")}
    const long end_ = min((long)(get_global_id(0) + 1) * each_, z0);
    {_row_loop(form, "get_global_id(0) * each_", "end_", body)}
    """


def _rows_cpu(form: Form, body: str) -> str:
    rows = " * ".join(f"z{d}" for d in range(form.ndim - 1))
    return f"""
    const long end_ = min((long)(get_global_id(0) + 1) * each_, {rows});
    for (long row_ = get_global_id(0) * each_; row_ < end_; row_++) {{
        long rest_ = row_;
        {_bases("long", arrays_of(form), form.ndim - 1)}
        {_row_loop(form, "0", f"z{form.ndim - 1}", body)}
    }}
    """


def _bases(index: str, arrays: list[str], dims: int) -> str:
    """Where the row of each array starts: `rest_` is split into indices, dimension by dimension."""
    lines = [f"{index} {a}_b = 0; const {index} {a}_t = {a}_s{dims};" for a in arrays]
    for d in range(dims - 1, -1, -1):
        if d:
            lines.append(f"const {index} i{d}_ = rest_ % ({index})z{d}; rest_ /= ({index})z{d};")
        else:
            lines.append(f"const {index} i0_ = rest_;")
        lines += [f"{a}_b += i{d}_ * ({index}){a}_s{d};" for a in arrays]
    return "\n".join(lines)


def _flat_gpu(form: Form, body: str) -> str:
    """A few elements per work-item, or one vector, of which the last may have fewer elements."""
    index = "long" if form.large else "int"
    if form.width > 1:
        return f"""
    {_flat_bases(form, index)}
    const {index} begin_ = ({index})get_global_id(0) * W;
    const {index} end_ = min(begin_ + W, ({index})z0);
    const bool whole_ = end_ - begin_ == W;
    for ({index} j = begin_; j < end_; j += whole_ ? W : 1) {{ {body} }}
    """
    return f"""
    {_flat_bases(form, index)}
    const {index} first_ = get_group_id(0) * get_local_size(0) * {EACH} + get_local_id(0);
    #pragma unroll
    for (int k_ = 0; k_ < {EACH}; k_++) {{
        const {index} j = first_ + k_ * ({index})get_local_size(0);
        if (j < z0) {{ {body} }}
    }}
    """


def _rows_gpu(form: Form, body: str) -> str:
    index = "long" if form.large else "int"
    total = " * ".join(f"z{d}" for d in range(form.ndim))
    last = form.ndim - 1
    return f"""
    const {index} first_ = get_group_id(0) * get_local_size(0) * {EACH} + get_local_id(0);
    #pragma unroll
    for (int k_ = 0; k_ < {EACH}; k_++) {{
        const {index} number_ = first_ + k_ * ({index})get_local_size(0);
        if (number_ < {total}) {{
            {index} rest_ = number_ / ({index})z{last};
            const {index} j = number_ % ({index})z{last};
            {_bases(index, arrays_of(form), last)}
            {body}
        }}
    }}
    """


_GRIDS = {
    ("cpu", True): _flat_cpu,
    ("cpu", False): _rows_cpu,
    ("gpu", True): _flat_gpu,
    ("gpu", False): _rows_gpu,
}

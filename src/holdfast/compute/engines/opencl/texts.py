"""The source of kernels that go element by element.

Covers: a `Form` (what is read, computed and written, in which formats and layouts) as OpenCL C.
Leaves to others: finding the form of a call (`elementwise`), expressions (`expressions`, `fusing`).
Promise: the same form gives the same text, so a kernel is built once for each.

In an expression `$name` is a value that was read or computed before, `T` the type that is computed
in, and `j` the place of a number where all arrays are flat. A wide form computes several numbers at
once: T is a vector then, and comparisons give bits that are all set or not set, of the type I.
Expressions for both are written alike: `c ? a : b` chooses, `&` and `|` join comparisons, K(0.5) is
a constant, and a truth value that was read is compared with 0 first.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from holdfast.compute.engines.opencl.programs import source_of

NAME = re.compile(r"\$(\w+)")
EACH = 4  # numbers for each work-item on GPUs
WIDTHS = {("cpu", "float"): 16, ("cpu", "double"): 8, ("gpu", "float"): 4}
TRUTH = "truth"  # in place of a C type: nonzero is true
# Formats that wide forms read and write.
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
    """An array: its name in expressions, its format's word, the type it is read as."""

    name: str
    word: str
    type: str


class Step(NamedTuple):
    """A value: its name, its expression, and whether it is a truth value."""

    name: str
    expression: str
    truth: bool = False


class Form(NamedTuple):
    """All that the text of a kernel depends on.

    `writes` are the format words of results, which are the values `results`. `inner` tells for each
    array, results first, whether its last step is 0, 1, -1 or another (2). `width` is how many
    numbers are computed at once.
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
    """What arrays are called in the text: results, then what is read."""
    return [f"o{i}" for i in range(len(form.writes))] + [f"a{i}" for i in range(len(form.reads))]


@functools.lru_cache(2048)
def text_of(form: Form) -> str:
    """The source of the kernel `elementwise`."""
    arguments = [f"__global uchar *{a}_, ulong {a}_at" for a in arrays_of(form)]
    arguments += [f"{_passed(kind)} n_{name}" for name, kind in form.numbers]
    if form.mapping == "cpu":
        arguments.append("long each_")
    arguments += [f"long z{d}" for d in range(form.ndim)]
    arguments += [f"long {a}_s{d}" for a in arrays_of(form) for d in range(form.ndim)]
    grid = _GRIDS[form.mapping, form.ndim == 1]
    lines = [*_starts(form), *(_number(form, *number) for number in form.numbers)]
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


def _passed(kind: str) -> str:
    """The C type of a number as an argument; whole numbers come as long."""
    return kind if kind in ("float", "double") else "long"


def _number(form: Form, name: str, kind: str) -> str:
    wanted = "T" if kind == form.type else kind
    return f"const {wanted} v_{name} = ({wanted})n_{name};"


# ---- what comes before the kernel


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


# ---- the inside of the loop, for number j of a row


def _starts(form: Form) -> list[str]:
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
    if form.width == 1 and len(form.steps) == 1:  # the store knows the format it wants
        value = NAME.sub(r"v_\1", form.steps[0].expression)
        return [*lines, f"STORE_{form.writes[0]}(o0, {_place('o0', form.inner[0])}, ({value}));"]
    for step in form.steps:
        value = NAME.sub(r"v_\1", step.expression)
        lines.append(f"const {'I' if step.truth else 'T'} v_{step.name} = ({value});")
    for i, (name, word) in enumerate(zip(form.results, form.writes, strict=True)):
        lines.append(_store(form, f"o{i}", name, word, form.inner[i]))
    return lines


def _load(form: Form, array: str, read: Read, step: int) -> str:
    place, name, word = _place(array, step), f"v_{read.name}", read.word
    kind = "I" if read.type == TRUTH else "T" if read.type == form.type else read.type
    single = f"({kind})LOAD_{word}({array}, {place})"
    if form.width == 1 or step == 0:
        return f"const {kind} {name} = {single};"
    letter = "T" if read.type == TRUTH else "V"
    return f"const {kind} {name} = whole_ ? LOAD{letter}_{word}({array}, {place}) : {single};"


def _store(form: Form, array: str, name: str, word: str, step: int) -> str:
    place = _place(array, step)
    if form.width == 1:
        return f"STORE_{word}({array}, {place}, v_{name});"
    return (
        f"if (whole_) STOREV_{word}({array}, {place}, v_{name});"
        f" else STORE_{word}({array}, {place}, v_{name}.s0);"
    )


def _place(array: str, step: int) -> str:
    """Where a number of an array is, in words of `{array}_b` (its row) and j (in the row)."""
    if step == 0:
        return f"{array}_b"
    if abs(step) == 1:  # compilers make vectors of these alone
        return f"{array}_b {'+' if step == 1 else '-'} j"
    return f"{array}_b + j * {array}_t"


# ---- loops


def _along(form: Form, start: str, end: str, body: str) -> str:
    """Numbers of a row, `width` at a time while there are so many."""
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
    {_along(form, "get_global_id(0) * each_", "end_", body)}
    """


def _rows_cpu(form: Form, body: str) -> str:
    rows = " * ".join(f"z{d}" for d in range(form.ndim - 1))
    return f"""
    const long end_ = min((long)(get_global_id(0) + 1) * each_, {rows});
    for (long row_ = get_global_id(0) * each_; row_ < end_; row_++) {{
        long rest_ = row_;
        {_bases("long", arrays_of(form), form.ndim - 1)}
        {_along(form, "0", f"z{form.ndim - 1}", body)}
    }}
    """


def _bases(index: str, arrays: list[str], dims: int) -> str:
    """Where the row of each array begins, taken off `rest_` dimension by dimension."""
    lines = [f"{index} {a}_b = 0; const {index} {a}_t = {a}_s{dims};" for a in arrays]
    for d in range(dims - 1, -1, -1):
        if d:
            lines.append(f"const {index} i{d}_ = rest_ % ({index})z{d}; rest_ /= ({index})z{d};")
        else:
            lines.append(f"const {index} i0_ = rest_;")
        lines += [f"{a}_b += i{d}_ * ({index}){a}_s{d};" for a in arrays]
    return "\n".join(lines)


def _flat_gpu(form: Form, body: str) -> str:
    index = "long" if form.large else "int"
    return (
        _flat_wide_gpu(form, index, body) if form.width > 1 else _flat_narrow_gpu(form, index, body)
    )


def _flat_narrow_gpu(form: Form, index: str, body: str) -> str:
    return f"""
    {_flat_bases(form, index)}
    const {index} first_ = get_group_id(0) * get_local_size(0) * {EACH} + get_local_id(0);
    #pragma unroll
    for (int k_ = 0; k_ < {EACH}; k_++) {{
        const {index} j = first_ + k_ * ({index})get_local_size(0);
        if (j < z0) {{ {body} }}
    }}
    """


def _flat_wide_gpu(form: Form, index: str, body: str) -> str:
    """One vector for each work-item; the last one may have fewer numbers."""
    return f"""
    {_flat_bases(form, index)}
    const {index} begin_ = ({index})get_global_id(0) * W;
    const {index} end_ = min(begin_ + W, ({index})z0);
    const bool whole_ = end_ - begin_ == W;
    for ({index} j = begin_; j < end_; j += whole_ ? W : 1) {{ {body} }}
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

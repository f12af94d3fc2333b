"""Read result files into a report: those of `holdfast bench`, and all of benchmarks/results.

A file of another form raises BadInput with its name and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast.base.errors import BadInput, HoldfastError
from holdfast.base.files import read_json_object
from holdfast.dashboard.bench.document import KIND, Machine, Report, Row, Table, Version

# Prefixes of our names, and our systems with other names.
OURS = ("holdfast", "ours")
OUR_OTHERS = ("Will It Fit", "coarse", "host_pointer", "copy", "int8 dynamic", "int4 weights")
Document = dict[str, Any]


def read(path: Path | str) -> Report:
    """The report in a file.

    `path` is a JSON file that `holdfast bench` wrote, that a script of benchmarks/ wrote with
    --out, or one of benchmarks/results/. A file of one benchmark is a report with one table, whose
    name is that of `holdfast bench NAME`. Raises BadInput with the path where the file cannot be
    read or has another form.

        for table in read("benchmarks/results/compute-cpu.json").tables:
            for subject in table.subjects():
                print(subject.name, subject.ours, [subject.times_better(r) for r in subject.rows])
    """
    file = Path(path)
    document = read_json_object(file)
    try:
        return parse_document(document)
    except HoldfastError as exc:
        raise BadInput(
            f"cannot read {str(file)!r} as results: {exc.what}", expected=exc.expected
        ) from exc
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise BadInput(
            f"cannot read {str(file)!r} as results: {type(exc).__name__} ({exc})",
            expected="a JSON file of holdfast bench, or of a script in benchmarks/",
        ) from exc


def parse_document(document: Document) -> Report:
    """A report from parsed JSON."""
    if document.get("benchmark") == KIND:
        return Report.from_document(document)
    form = next((form for fits, form in _FORMS if fits(document)), None)
    if form is None:
        raise BadInput(
            "it has no rows",
            expected="a JSON file of holdfast bench, or of a script in benchmarks/",
        )
    rows = (*form(document), *_list_failed(document))
    name, _, details = str(document.get("benchmark", "replay-torch")).partition(",")
    table = Table(
        name=name.replace(" ", "-"),
        about=details.strip(),
        date=str(document["date"]),
        quick=document.get("quick", document.get("settings", {}).get("quick")),
        rows=rows,
        versions=_versions(document),
    )
    version = str(document.get("holdfast", "")) or "unknown"
    return Report(_machine(document), str(document["date"]), version, (table,))


def _list_failed(document: Document) -> Iterable[Row]:
    """Failed parts of a benchmark, with the reason."""
    failed = document.get("failed")
    for part, reason in failed.items() if isinstance(failed, dict) else ():
        yield Row(str(part), "holdfast", None, "", str(reason), ours=True)


def _machine(document: Document) -> Machine:
    found = document.get("machine")
    if found is None:  # only the GPU was recorded
        cards = dict.fromkeys(row["gpu"] for row in document.get("rows", ()) if "gpu" in row)
        return Machine(about=", ".join(cards) or "unknown", gpus=tuple(cards))
    return Machine(
        about=str(found["about"]),
        cpu=found.get("cpu"),
        cpus=found.get("cpus"),
        gpus=tuple(map(str, found.get("gpus", ()))),
    )


def _versions(document: Document) -> tuple[Version, ...]:
    measured = document.get("measured")
    where = measured if isinstance(measured, dict) else document
    named = dict(document.get("versions") or where.get("versions") or {})
    for name in ("torch", "diffusers", "python"):
        if isinstance(document.get(name), str):
            named.setdefault(name, document[name])
    return tuple(Version(name, str(one)) for name, one in named.items() if one is not None)


# ---- forms


def rows_of(document: Document) -> Iterable[Row]:
    """Rows as benchmarks/report.py writes them."""
    rows: list[Document] = document["rows"]
    several = [row["subject"] for row in rows]
    first: dict[str, str] = {}
    for row in rows:
        first.setdefault(row["subject"], row["system"])
    marked = {row["subject"] for row in rows if is_ours(row["system"])}
    for row in rows:
        subject, system = row["subject"], row["system"]
        # Without a name of ours, the first of several systems is ours.
        leads = subject not in marked and first[subject] == system and several.count(subject) > 1
        yield Row(
            subject=str(subject),
            system=str(system),
            value=_number(row["value"]),
            unit=str(row["unit"]),
            remark=str(row.get("remark", "")),
            low=_number(row.get("low")),
            high=_number(row.get("high")),
            ours=is_ours(system) or leads,
        )


def is_ours(system: str) -> bool:
    """Whether a name is one of ours."""
    return system.casefold().startswith(OURS) or system in OUR_OTHERS


def _number(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _opencl(document: Document) -> Iterable[Row]:
    """Rows, and whole networks beside them."""
    yield from rows_of(document)
    for one in document["forward"]:
        subject, off = f"forward, {one['model']}", f"differs by {one['difference']:.1e}"
        yield Row(subject, "holdfast, OpenCL", float(one["ours_ms"]), "ms", off, ours=True)
        yield Row(subject, f"torch, {one['torch_on']}", float(one["torch_ms"]), "ms")


# Terms of residency/cells.py as text.
SYSTEMS = {
    "ours": "holdfast",
    "ours-packed": "holdfast, packed",
    "resident": "all in memory",
    "compiled": "all in memory, torch.compile",
    "accelerate": "accelerate cpu_offload",
    "group-leaf": "diffusers, groups of leaves",
    "group-leaf-record": "diffusers, groups of leaves, record_stream",
    "group-leaf-lowcpu": "diffusers, groups of leaves, low_cpu_mem_usage",
    "group-block": "diffusers, groups of blocks",
    "group-block-record": "diffusers, groups of blocks, record_stream",
    "group-block-plain": "diffusers, groups of blocks, no stream",
    "comfyui": "ComfyUI",
}
WITHOUT_ROOM = ("resident", "compiled")


def _residency(document: Document) -> Iterable[Row]:
    """A step of each cell; systems without a budget are listed at the smallest."""
    cells: list[Document] = document["rows"]
    budgets = [cell["budget"] for cell in cells if cell["budget"] is not None]
    rows = [_cell(cell, min(budgets, default=None)) for cell in cells]
    order = {subject: place for place, subject in enumerate(dict.fromkeys(r.subject for r in rows))}
    return sorted(rows, key=lambda row: (order[row.subject], not row.ours))


def _cell(cell: Document, smallest: float | None) -> Row:
    words = [str(cell["remark"] or "")]
    if cell["system"] in WITHOUT_ROOM:
        room = "all fits"
    elif cell["keep"] is None and cell["budget"] is None and smallest is not None:
        room = f"budget {smallest:.0%}"
        words.append("has no budget of its own")
    else:
        room = str(cell["room"])
    if cell["error"]:
        words = [str(cell["error"]).splitlines()[0]]
    elif not cell["same_output"] and cell["system"] != "resident":
        words.append("OUTPUT DIFFERS")
    return Row(
        subject=f"{cell['model']}, {room}",
        system=SYSTEMS.get(cell["system"], cell["system"]),
        value=_number(cell["step_ms"]),
        unit="ms",
        remark=", ".join(word for word in words if word),
        low=_number(cell["fastest_step_ms"]),
        high=_number(cell["slowest_step_ms"]),
        ours=is_ours(cell["system"]),
    )


def _fit(document: Document) -> Iterable[Row]:
    """Predicted beside measured."""
    measured = {
        (row["keep"], row["system"] == "ours-packed"): row
        for row in document["measured"]["rows"]
        if row["keep"] is not None
    }
    for cell in document["cells"]:
        keep, packed = round(cell["keep_bytes"] / document["weight_bytes"], 2), cell["packed"]
        subject = f"step, {keep:.0%} kept{', packed' if packed else ''}"
        yield Row(subject, "holdfast fit, predicted", cell["step_ms"], "ms", ours=True)
        if (keep, packed) in measured:
            row = measured[keep, packed]
            low, high = _number(row["fastest_step_ms"]), _number(row["slowest_step_ms"])
            yield Row(subject, "measured", row["step_ms"], "ms", low=low, high=high)
    for key, words in (("cold_s", "the first question"), ("cached_s", "asked again")):
        yield Row(f"time to answer, {words}", "holdfast fit", document[key], "s", ours=True)


def _run_flux(document: Document) -> Iterable[Row]:
    """A whole picture under a budget."""
    name = f"{document['size']}, {document['precision']}, {document['why']}"
    budget, peak = (document[key] / 1e9 for key in ("budget_bytes", "peak_bytes"))
    yield Row("peak on the device", "holdfast", peak, "GB", f"by {document['peak_by']}", ours=True)
    yield Row("peak on the device", "the budget", budget, "GB")
    yield Row("step", "holdfast", document["took_ms"], "ms", name, ours=True)
    yield Row("step", "predicted", document["predicted_ms"], "ms")
    yield Row("load", "holdfast", document["load_s"], "s", ours=True)
    yield Row("first picture", "holdfast", document["first_draw_s"], "s", ours=True)


def _replay_torch(document: Document) -> Iterable[Row]:
    """Our simulator of torch's allocator beside the real one."""
    for row in document["rows"]:
        subject = f"{row['trace']}, {row['setting']}"
        same = "equal to the byte" if row["equal"] else "NOT EQUAL"
        yield Row(subject, "holdfast, simulated", row["simulated_ratio"], "x", same, ours=True)
        yield Row(subject, f"torch {row['torch']}", row["real_ratio"], "x", row["gpu"])


def _rows_with(*keys: str) -> Callable[[Document], bool]:
    """Whether a document has rows, and these keys are in the first of them."""

    def fits(document: Document) -> bool:
        rows = document.get("rows")
        if not isinstance(rows, list):
            return False
        return all(key in rows[0] for key in keys) if rows else "benchmark" in document

    return fits


# The first match wins.
_FORMS: tuple[tuple[Callable[[Document], bool], Callable[[Document], Iterable[Row]]], ...] = (
    (lambda d: "forward" in d and "rows" in d, _opencl),
    (_rows_with("subject", "system", "value", "unit"), rows_of),
    (_rows_with("model", "room", "step_ms"), _residency),
    (_rows_with("trace", "real_ratio"), _replay_torch),
    (lambda d: d.get("benchmark") == "residency-fit", _fit),
    (lambda d: d.get("benchmark") == "residency-run-flux", _run_flux),
)

"""What the pages say of the machine, memory, computing and devices.

Every sentence and row here is put together from the files of results and looked for in the page, so
that what a figure means is checked, and not only that it is somewhere in a file.
"""

from __future__ import annotations

import re

from tests.docs.pages import json_of, run_of, text_of


def test_the_h200_figures_come_from_their_run() -> None:
    run = run_of("topology-h200.json")
    rates = {
        (row["subject"]): f"{row['value']:.1f}"
        for row in run["rows"]
        if row["system"] == "holdfast"
    }
    text = " ".join(text_of("docs/topology.md").split())
    assert (
        f"pinned {rates['pinned, node:0 to gpu:0']} GB/s to the card and "
        f"{rates['pinned, gpu:0 to node:0']} back, "
        f"pageable {rates['pageable, node:0 to gpu:0']} and "
        f"{rates['pageable, gpu:0 to node:0']}."
    ) in text


def test_the_figures_of_memory_come_from_their_runs() -> None:
    text = " ".join(text_of("docs/memory.md").split())
    run = run_of("replay.json")
    values = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    names = ("flux", "sdxl", "sdxl_12_sizes", "flux_train", "sdxl_train", "kv_cat")
    for system in ("holdfast pool", "holdfast plan", "torch default", "torch expandable"):
        figures = " | ".join(f"{values[name, system]:.3f}" for name in names)
        assert f"| {system} | {figures} |" in text
    run = run_of("pool-cpu.json")
    gains = {subject: found["median"] for subject, found in run["paired"].items()}
    assert (
        f"decoding a picture {gains['vae decode, torch on stock']:.2f}×, a step of training "
        f"{gains['mlp training step, torch on stock']:.2f}×"
    ) in text
    assert f"a small UNet {gains['unet, torch on stock']:.2f}×" in text
    value = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    compiled, python = (
        [
            value[f"{kind}, 4 KB", f"holdfast, {core} core"]
            for kind in ("pair", "pair with its line")
        ]
        for core in ("compiled", "python")
    )
    assert (
        f"costs {compiled[0]:.2f} µs with the compiled core and {python[0]:.2f} µs in Python, "
        f"{compiled[1]:.2f} and {python[1]:.2f} with the source line recorded"
    ) in text
    assert all(run["equal"].values())
    run = run_of("pool-tcmalloc-cpu.json")
    (found,) = run["paired"].values()
    assert f"is {found['median']:.2f}× of tcmalloc by [{len(found['rounds'])} pairs" in text
    assert f"spread from {found['rounds'][0]:.2f} to {found['rounds'][-1]:.2f}" in text


def test_the_figures_of_shared_memory_come_from_their_runs() -> None:
    text = " ".join(text_of("docs/svm.md").split())
    run = run_of("svm-cpu.json")
    value = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    touched, pool = "allocate and free 64 MiB, every page touched", "64 MiB from a pool and back"
    trip, moved = "round trip of 16 MiB", "migrate 64 MiB, node 0 to 1"
    assert (
        f"64 MiB take {value[touched, 'holdfast numa'] / 1e3:.0f} ms with `numa`, "
        f"{value[touched, 'mmap, filled'] / 1e3:.0f} with a plain mmap that is filled, "
        f"{value[touched, 'numpy.empty, filled'] / 1e3:.0f} with `numpy.empty` that is filled. "
        "From a pool on top the same 64 MiB take "
        f"{value[pool, 'holdfast MemoryPool on numa']:.2f} µs, against "
        f"{value[pool, 'pyopencl SVMPool']:.2f} from pyopencl's `SVMPool`."
    ) in text
    assert (
        f"{value[trip, 'holdfast fine_buffer']:.1f} ms with fine-grained memory, "
        f"{value[trip, 'pyopencl buffer copies']:.1f} with buffer copies"
    ) in text
    ratio = value[moved, "holdfast migrate"] / value[moved, "move_pages, one call"]
    assert f"there it is {ratio:.2f} of the rate of one bare move_pages call" in text
    run = run_of("svm-h200.json")
    value = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    trip = "round trip, 256 MiB"
    assert (
        f"256 MiB took {value[trip, 'coarse']:.0f} ms, against "
        f"{value[trip, 'buffer copies, pinned']:.0f} with copies from pinned memory and "
        f"{value[trip, 'buffer copies, pageable']:.0f} from pageable memory"
    ) in text
    assert [check["wrong"] for check in run["checks"]] == [0] * 4


def test_the_figures_of_computing_come_from_their_runs() -> None:
    text = " ".join(text_of("docs/compute.md").split())
    run = run_of("compute-cpu.json")
    for family, label in (
        ("matmul", "products of matrices, 100 to 2000"),
        ("convolution", "seven convolutions"),
        ("attention", "four attentions"),
        ("fused chain", "20 pointwise ops on a million elements, fused"),
    ):
        one, two = (run["means"][f"{family}, {n}"]["median"] for n in ("1 thread", "2 threads"))
        assert f"| {label} | {one:.2f} | {two:.2f} |" in text
    value = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    ours, numpy, torch = (
        value["sum of 16 numbers", system] for system in ("holdfast", "numpy", "torch")
    )
    assert (
        f"A sum of 16 elements takes {ours:.2f} µs, {ours - numpy:.2f} over NumPy's; torch's takes "
        f"{torch:.2f}."
    ) in text
    ratio = {name: found["median"] for name, found in run["ratios"].items()}
    for name in (
        "convolution 1x1 256->64, 56x56, batch 8, 1 thread",
        "gelu 64x128x768, 1 thread",
        "same chain, not fused, 2 threads",
    ):
        assert f"({ratio[name]:.2f}" in text
    assert all(found["equal"] for found in run["ratios"].values())
    run = run_of("quant-cpu.json")
    value = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    product = "product 512x1024 by 1024x1024"
    assert (
        f"takes {value[product, 'holdfast int8']:.1f} ms where float32 takes "
        f"{value[product, 'NumPy float32']:.1f} and torch's int8 "
        f"{value[product, 'torch _int_mm']:.1f}"
    ) in text
    passes = json_of("tests/contract/passes.json")
    assert (
        f"Of 677 OpInfos {len(passes['table'])} pass the first way and {len(passes['tape'])} the "
        "second"
    ) in text


def test_the_figures_of_the_torch_device_come_from_their_run() -> None:
    text = text_of("docs/torch-device.md")
    name = "torch-device-cpu.json"
    assert f"(../benchmarks/results/{name})" in text
    rows = run_of(name)["rows"]
    value: Figures = {(row["subject"], row["system"]): row["value"] for row in rows}
    lines = [*_small_ops(value), *_models(value), *_compiled(value)]
    assert len(lines) > 25
    assert [line for line in lines if line not in text] == []


Figures = dict[tuple[str, str], float]


def _small_ops(value: Figures) -> list[str]:
    """| op | Python | shim | torch CPU | tinygrad, where it was measured |, in µs."""
    systems = ["holdfast, Python", "holdfast, shim", "torch CPU", "tinygrad's torch backend"]
    ops = [s for s, system in value if system == systems[0] and s.endswith(", 16 numbers")]
    measured = [name for name in systems if any((op, name) in value for op in ops)]
    found = []
    for op in ops:
        cells = [f"{value[op, s]:.1f}" if (op, s) in value else "" for s in measured]
        found.append(f"| {op.removesuffix(', 16 numbers')} | {' | '.join(cells)} |")
    return found


def _models(value: Figures) -> list[str]:
    """| model | forward | forward + backward |: time over that of torch's CPU."""
    end = ", forward"
    ours = "holdfast, Python"
    names = [s.removesuffix(end) for s, system in value if system == ours and s.endswith(end)]
    found = []
    for name in names:
        subjects = (f"{name}{end}", f"{name}{end} + backward")
        ratios = (value[s, ours] / value[s, "torch CPU"] for s in subjects)
        found.append(f"| {name} | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |")
    return found


def _compiled(value: Figures) -> list[str]:
    """| program | compiled | not compiled | torch CPU |, in µs."""
    systems = ("holdfast, compiled", "holdfast, not compiled", "torch CPU")
    return [
        f"| {subject} | " + " | ".join(f"{value[subject, s]:.0f}" for s in systems) + " |"
        for subject, system in value
        if system == systems[0]
    ]


def test_the_figures_of_opencl_come_from_their_runs() -> None:
    run = run_of("opencl-h200.json")
    values = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    text = " ".join(text_of("docs/opencl.md").split())
    table = text.partition("of torch's speed |")[2].partition("Small arrays")[0]
    subjects = {subject for subject, _ in values}
    rows = re.findall(r"\| (\S[^|]*) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) % \|", table)
    assert len(rows) == 11
    systems = ("holdfast, OpenCL", "torch, cuda", "tinygrad, CL")
    known = {
        tuple(f"{values[subject, s]:.{3 if values[subject, s] < 1 else 2}f}" for s in systems)
        for subject in subjects
    }
    assert [row for row in rows if row[1:4] not in known] == []
    for _, ours, theirs, _, share in rows:
        assert abs(float(theirs) / float(ours) * 100 - float(share)) < 2
    share = {s: values[s, systems[1]] / values[s, systems[0]] * 100 for s in subjects}
    assert (
        f"products of matrices {share['matmul 4096x4096x4096']:.0f} %, additions "
        f"{share['add 268435456']:.0f} %, LayerNorm {share['layer_norm 16384x4096']:.0f} %, "
        f"attention {share['attention 1x24x4096x128']:.0f} %"
    ) in " ".join(text_of("README.md").split())
    furthest = max(row["difference"] for row in run["forward"])
    assert f"are within {furthest:.1e} of torch's results" in text
    assert f"{run['op_db']['passed']} of {run['op_db']['of']} samples" in text
    assert not any(row["on_host"] for row in run["forward"])
    run = run_of("opencl-cpu.json")
    values = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}

    def over(subject: str, system: str) -> float:
        return values[subject, system] / values[subject, systems[0]]

    products = [1 / over(f"matmul {n}x{n}x{n}", "numpy") for n in (512, 1024, 2048)]
    first, second, third = (f"{ratio:.2f}" for ratio in products)
    assert f"take {first}, {second} and {third} of NumPy's time" in text
    named = ("softmax 1024x1024", "layer_norm+gelu 1024x1024", "attention 1x8x1024x64")
    rows_, both, heads = (f"{over(subject, 'numpy'):.1f}" for subject in named)
    assert f"is {rows_} times as fast as NumPy, LayerNorm with GELU {both} times" in text
    assert f"1024 positions {heads} times" in text
    one, two, three = (f"{over(subject, 'torch, cpu') * 100:.0f} %" for subject in named)
    assert f"Of torch's speed these are {one}, {two} and {three}." in text


def test_what_being_looked_at_costs_comes_from_its_run() -> None:
    run = run_of("dashboard-h200.json")
    value = {row["subject"]: row["value"] for row in run["rows"]}

    def still(rate: int, work: str) -> float:
        return value[f"{rate} looks a second: {work}, stood still"]

    works = ("a loop in Python", "matrix products of torch", "a model under a budget")
    loop, products, model = (still(2, work) for work in works)
    often = [still(10, work) for work in works]
    assert (
        f"stood still for {loop:.2f} % of the time in a loop in Python, {products:.2f} % in "
        f"torch's products and {model:.2f} % with a model under a budget; asked ten times a "
        f"second, {often[0]:.1f}, {often[1]:.1f} and {often[2]:.1f} %"
    ) in " ".join(text_of("docs/top.md").split())

"""The documents are true: examples run, links lead somewhere, figures come from their files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RESIDENCY_PAGES = ("README.md", "docs/residency.md")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
EXAMPLES = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_python_example_runs(example: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_in_the_repository_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    from holdfast.cli.main import COMMANDS

    shown = set(re.findall(r"(?:^|`)holdfast (\w+)", page.read_text(), re.MULTILINE))
    assert shown <= set(COMMANDS)


def test_every_make_target_that_a_page_shows_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {
        t for page in PAGES for t in re.findall(r"(?:^|`)make ([\w-]+)", page.read_text(), re.M)
    }
    assert shown <= targets


def test_the_readme_lists_every_extra() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    rows = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert set(project["optional-dependencies"]) <= rows


def test_the_h200_figures_come_from_their_run() -> None:
    import json

    run = json.loads((ROOT / "benchmarks/results/topology-h200.json").read_text())
    rates = {
        (row["subject"]): f"{row['value']:.1f}"
        for row in run["rows"]
        if row["system"] == "holdfast"
    }
    text = " ".join((ROOT / "docs/topology.md").read_text().split())
    assert (
        f"pinned {rates['pinned, node:0 to gpu:0']} GB/s to the card and "
        f"{rates['pinned, gpu:0 to node:0']} back, "
        f"pageable {rates['pageable, node:0 to gpu:0']} and "
        f"{rates['pageable, gpu:0 to node:0']}."
    ) in text


def test_the_figures_of_drawing_come_from_their_run() -> None:
    import json

    run = json.loads((ROOT / "benchmarks/results/pipeline-h200.json").read_text())
    values = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    text = (ROOT / "docs/pipeline.md").read_text()
    for name, what, form in (
        ("load from disk to card", "load", "{:.1f} s"),
        ("a step", "step", "{:.0f} ms"),
        ("a picture", "total", "{:.0f} ms"),
        ("peak on the card", "peak", "{:.1f} GB"),
    ):
        subject = f"FLUX.1 shape, random weights, {what}"
        ours, theirs = (form.format(values[subject, s]) for s in ("holdfast", "diffusers"))
        assert f"| {name} | {ours} | {theirs} |" in text


def test_the_figures_of_memory_come_from_their_runs() -> None:
    import json

    text = " ".join((ROOT / "docs/memory.md").read_text().split())
    run = json.loads((ROOT / "benchmarks/results/replay.json").read_text())
    values = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    names = ("flux", "sdxl", "sdxl_12_sizes", "flux_train", "sdxl_train", "kv_cat")
    for system in ("holdfast pool", "holdfast plan", "torch default", "torch expandable"):
        figures = " | ".join(f"{values[name, system]:.3f}" for name in names)
        assert f"| {system} | {figures} |" in text
    run = json.loads((ROOT / "benchmarks/results/pool-cpu.json").read_text())
    gains = {subject: found["median"] for subject, found in run["paired"].items()}
    assert (
        f"decoding a picture {gains['vae decode, torch on stock']:.2f}×, a step of training "
        f"{gains['mlp training step, torch on stock']:.2f}×"
    ) in text
    assert all(run["equal"].values())
    run = json.loads((ROOT / "benchmarks/results/pool-tcmalloc-cpu.json").read_text())
    (found,) = run["paired"].values()
    assert f"is {found['median']:.2f}× of tcmalloc by [{len(found['rounds'])} pairs" in text
    assert f"spread from {found['rounds'][0]:.2f} to {found['rounds'][-1]:.2f}" in text


def test_the_figures_of_shared_memory_come_from_their_runs() -> None:
    import json

    text = " ".join((ROOT / "docs/svm.md").read_text().split())
    run = json.loads((ROOT / "benchmarks/results/svm-cpu.json").read_text())
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
    run = json.loads((ROOT / "benchmarks/results/svm-h200.json").read_text())
    value = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    trip = "round trip, 256 MiB"
    assert (
        f"256 MiB took {value[trip, 'coarse']:.0f} ms, against "
        f"{value[trip, 'buffer copies, pinned']:.0f} with copies from pinned memory and "
        f"{value[trip, 'buffer copies, pageable']:.0f} from pageable memory"
    ) in text
    assert [check["wrong"] for check in run["checks"]] == [0] * 4


def test_the_figures_of_computing_come_from_their_runs() -> None:
    import json

    text = " ".join((ROOT / "docs/compute.md").read_text().split())
    run = json.loads((ROOT / "benchmarks/results/compute-cpu.json").read_text())
    for family, label in (
        ("matmul", "products of matrices, 100 to 2000"),
        ("convolution", "seven convolutions"),
        ("attention", "four attentions"),
        ("fused chain", "20 pointwise ops on a million numbers, fused"),
    ):
        one, two = (run["means"][f"{family}, {n}"]["median"] for n in ("1 thread", "2 threads"))
        assert f"| {label} | {one:.2f} | {two:.2f} |" in text
    value = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    ours, numpy, torch = (
        value["sum of 16 numbers", system] for system in ("holdfast", "numpy", "torch")
    )
    assert (
        f"A sum of 16 numbers takes {ours:.2f} µs, {ours - numpy:.2f} over NumPy's; torch's takes "
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
    run = json.loads((ROOT / "benchmarks/results/quant-cpu.json").read_text())
    value = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    product = "product 512x1024 by 1024x1024"
    assert (
        f"takes {value[product, 'holdfast int8']:.1f} ms where float32 takes "
        f"{value[product, 'NumPy float32']:.1f} and torch's int8 "
        f"{value[product, 'torch _int_mm']:.1f}"
    ) in text
    passes = json.loads((ROOT / "tests/contract/passes.json").read_text())
    assert (
        f"Of 677 OpInfos {len(passes['table'])} pass the first way and {len(passes['tape'])} the "
        "second"
    ) in text


def test_the_figures_of_xla_come_from_their_runs() -> None:
    import json

    text = " ".join((ROOT / "docs/xla.md").read_text().split())
    figures = json.loads((ROOT / "benchmarks/results/xla-h200.json").read_text())
    flux = figures["figures"]["flux"]
    compiled = flux["compile"][0]["median_ms"]
    for name, label in (
        ("eager", "torch eager"),
        ("compile", "torch.compile"),
        ("unrolled", "Holdfast on XLA"),
        ("scan", "the same with scanned blocks"),
        ("xla", "the same with XLA's own attention"),
    ):
        took = flux[name][0]["median_ms"]
        assert f"| {label} | {took:.1f} | {took / compiled:.3f} |" in text
    cold = [flux[name][0]["trace_s"] + flux[name][0]["compile_s"] for name in ("unrolled", "scan")]
    assert f"a cold start takes {cold[0]:.0f} s instead of {cold[1]:.0f}." in text
    wan = json.loads((ROOT / "benchmarks/results/xla-cpu.json").read_text())["figures"]["compile"]
    first = {
        name: wan[f"{name}, first process"]["first_s"] for name in ("scan", "unrolled", "torchax")
    }
    assert (
        f"{first['scan']:.1f} s scanned and {first['unrolled']:.1f} s unrolled, plain torchax "
        f"{first['torchax']:.1f} s"
    ) in text
    second = [wan[f"{name}, second process"]["first_s"] for name in first]
    assert f"process {second[0]:.2f}, {second[1]:.1f} and {second[2]:.1f} s." in text


def test_attention_on_xla_reaches_what_its_page_says_of_torchs_speed() -> None:
    import json

    text = " ".join((ROOT / "docs/xla.md").read_text().split())
    run = json.loads((ROOT / "benchmarks/results/xla-h200.json").read_text())
    found = run["figures"]["attention"]
    for label, kind, peer in (
        ("kernels, by the device's clock", "device_ms", "torch"),
        ("57 in one program, as in a step of FLUX.1", "chained_ms", "torch"),
        ("the same, torch's in a CUDA graph", "chained_ms", "graph"),
        ("57 calls, then a wait", "row_ms", "torch"),
        ("ten calls, then a wait", "median_ms", "torch"),
    ):
        ours, theirs = (found["4608"][name][kind] for name in ("ours", peer))
        assert theirs / ours >= 0.95 or kind == "median_ms"  # which scatters
        assert f"| {label} | {ours:.3f} | {theirs:.3f} | {theirs / ours:.3f} |" in text
    speed = {
        (name, kind): one["torch"][kind] / one["ours"][kind]
        for name, one in found.items()
        for kind in ("median_ms", "chained_ms")
    }
    tens = [speed[name, "median_ms"] for name in ("4592", "4608", "5000")]
    assert f"Ten calls and a wait reach {min(tens):.2f} to {max(tens):.2f}, by the length" in text
    turned, chained = (
        speed["4608, heads first in memory", kind] for kind in ("median_ms", "chained_ms")
    )
    assert f"such calls reach {turned:.2f}, as arrays" in text
    assert f"and {chained:.2f} in one program" in text
    masked = [found["4608, 400 keys masked"][name]["median_ms"] for name in ("ours", "torch")]
    assert f"ten calls take {masked[0]:.3f} ms each and torch's {masked[1]:.3f}." in text


def test_the_figures_of_residency_come_from_their_run() -> None:
    import json

    run = json.loads((ROOT / "benchmarks/results/residency-h200.json").read_text())
    row = {(found["system"], found["room"]): found for found in run["rows"]}
    rooms = [f"budget {share}%" for share in (10, 25, 50, 75)]
    resident = run["models"]["flux"]["resident_step_ms"]
    pages = {name: " ".join((ROOT / name).read_text().split()) for name in RESIDENCY_PAGES}
    for text in pages.values():
        for system, label in (
            ("ours-packed", "Holdfast, packed"),
            ("ours", "Holdfast, not packed"),
            ("comfyui", "ComfyUI 0.3.75, lowvram"),
            ("mmgp", "mmgp 3.8.2"),
        ):
            figures = " | ".join(f"{row[system, room]['step_ms']:.0f}" for room in rooms)
            assert f"| {label} | {figures} |" in text
        best = row["group-leaf-record", "no budget"]["step_ms"]
        assert f"| diffusers group offload, its best | {best:.0f} |" in text
        slowest = row["accelerate", "no budget"]["step_ms"]
        assert f"| accelerate `cpu_offload` | {slowest:.0f} |" in text
    assert f"all in memory a step takes {resident:.0f} ms" in pages["README.md"]
    text = pages["docs/residency.md"]
    for share in (0, 25, 50):
        found = row["ours", f"keep {share}%"]
        assert (
            f"| {share}% | {found['limit_ms']:.0f} | {found['step_ms']:.0f} | "
            f"{found['of_limit']:.3f} | {found['figures']['predicted_ms']:.0f} |"
        ) in text
    packed = row["ours-packed", "keep 0%"]["of_limit"]
    assert f"a step takes {packed:.2f} of that limit" in text
    half = [row[system, "keep 50%"]["step_ms"] for system in ("ours-packed", "ours")]
    assert f"({half[0]:.0f} against {half[1]:.0f} ms)" in text
    ours = [found for found in run["rows"] if found["system"].startswith("ours")]
    assert [f["system"] for f in run["rows"] if not f["same_output"]] == ["compiled"]  # as it says
    assert len(ours) == 14
    assert run["lost"] == []


def test_the_figures_of_comfyui_come_from_their_run() -> None:
    import json

    found = json.loads((ROOT / "benchmarks/results/comfyui-h200.json").read_text())
    quarter, half = found["measured"]
    assert (quarter["share"], half["share"]) == (0.25, 0.5)

    def ms(row: dict[str, Any], way: str) -> float:
        return row["ways"][way]["next"]["step_s"] * 1000

    whole = ms(found["complete"], "comfyui")
    table = [
        f"| ComfyUI's lowvram | {ms(quarter, 'comfyui'):.0f} | {ms(half, 'comfyui'):.0f} | "
        f"{whole:.0f} |",
        f"| Stream Model | {ms(quarter, 'holdfast, packed'):.0f} | "
        f"{ms(half, 'holdfast, packed'):.0f} | |",
        f"| Stream Model, not packed | {ms(quarter, 'holdfast'):.0f} | "
        f"{ms(half, 'holdfast'):.0f} | |",
    ]
    page = (ROOT / "docs/comfyui.md").read_text()
    for line in table:
        assert line in (ROOT / "README.md").read_text()
        assert line in page
    for row in (quarter, half):
        for way, figures in row["ways"].items():
            assert figures["same_image"]
            assert way == "comfyui" or ms(row, way) < ms(row, "comfyui")
    text = " ".join(page.split())
    first = [
        row["ways"][way]["first"]["whole_s"]
        for row in (quarter, half)
        for way in ("comfyui", "holdfast, packed", "holdfast")
    ]
    assert (
        f"The first picture of 20 steps takes {first[0]:.1f} and {first[3]:.1f} s in ComfyUI's own "
        f"way, {first[1]:.1f} and {first[4]:.1f} s packed, {first[2]:.1f} and {first[5]:.1f} s "
        "not packed"
    ) in text
    less = [
        1 - row["predicted"]["step_s"] * 1000 / ms(row, "holdfast, packed")
        for row in (quarter, half)
    ]
    assert (
        f"said {less[0] * 100:.0f} % and {less[1] * 100:.0f} % less than was then measured" in text
    )


def test_what_fit_says_is_within_a_tenth_of_what_was_measured() -> None:
    import json

    text = " ".join((ROOT / "docs/residency.md").read_text().split())
    run = json.loads((ROOT / "benchmarks/results/residency-fit-h200.json").read_text())
    step = {(row["system"], row["keep"]): row["step_ms"] for row in run["measured"]["rows"]}
    processes = [run, *run["again"], run["from_disk"]]
    off: dict[tuple[str, float], list[float]] = {}
    said: dict[tuple[str, float], float] = {}  # by the first process
    for cell in (cell for process in processes for cell in process["cells"]):
        keep = round(cell["keep_bytes"] / run["weight_bytes"], 2)
        key = ("ours-packed" if cell["packed"] else "ours", keep)
        said.setdefault(key, cell["step_ms"])
        off.setdefault(key, []).append(100 * (cell["step_ms"] / step[key] - 1))
    assert len(off) == 8
    assert all(row["same_output"] for row in run["measured"]["rows"])
    worst = max(abs(one) for found in off.values() for one in found)
    assert worst < 10
    assert f"no answer was more than {worst:.1f} % off" in text
    for keep in (0, 0.25, 0.5, 0.75):
        figures = [
            f"{step[system, keep]:.0f} | {said[system, keep]:.0f} | {off[system, keep][0]:+.1f} %"
            for system in ("ours", "ours-packed")
        ]
        assert f"| {keep:.0%} | {' | '.join(figures)} |" in text
    assert f"The first answer took {run['cold_s']:.1f} seconds on a machine" in text
    assert [f"and {one['cold_s']:.1f} in a later process" in text for one in run["again"]] == [True]
    took = [run["from_disk"]["cold_s"]]
    took += [cell["took_s"] for process in processes for cell in process["cells"]]
    took += [process["cached_s"] for process in processes]
    assert max(took) < 1
    assert f"The {len(took)} other answers, the first one of a process that finds" in text
    assert f"took {min(took):.1f} to {max(took):.1f} seconds." in text


TORCH_DEVICE = ROOT / "docs/torch-device.md"


def test_the_torch_devices_page_says_which_versions_work_and_what_passes() -> None:
    import json

    from holdfast.compute.torch_device import needs

    text = " ".join(TORCH_DEVICE.read_text().split())
    assert f"It needs {needs.WORKS}; the tests run with {needs.RECOMMENDED}." in text
    passes = json.loads((ROOT / "tests/contract/passes_device.json").read_text())
    assert (
        f"Of 677 OpInfos {len(passes['device'])} pass, and {len(passes['native'])} where falling "
        f"back is refused; of 114 ModuleInfos {len(passes['native modules'])} pass without falling "
        "back."
    ) in text


def test_as_many_overloads_are_native_as_the_torch_devices_page_says() -> None:
    from holdfast.compute.torch_device.coverage import coverage

    rows = coverage()
    text = " ".join(TORCH_DEVICE.read_text().split())
    assert f"about {round(len(rows), -2)} *overloads*" in text
    assert "More than nine of ten overloads are native." in text
    assert sum(row.way == "native" for row in rows) > 0.9 * len(rows)


def test_architecture_names_every_module_of_the_torch_device() -> None:
    folder = ROOT / "src/holdfast/compute/torch_device"
    text = (ROOT / "docs/architecture.md").read_text()
    _, _, text = text.partition("### compute.torch_device")
    text, _, _ = text.partition("#### One op")
    there = {f"`{path.stem}`" for path in folder.rglob("[!_]*.py")}
    there |= {f"`{path.name}`" for path in (folder / "native").iterdir()}
    assert sorted(name for name in there if name not in text) == []


@pytest.mark.slow
def test_the_source_that_a_page_shows_is_what_its_example_prints(tmp_path: Path) -> None:
    ((example, shown),) = re.findall(
        r"```python\n([^`]*?\"show\": True[^`]*?)```\n\n```\n(.*?)```",
        TORCH_DEVICE.read_text(),
        re.DOTALL,
    )
    file = tmp_path / "example.py"  # a file, so that the source can quote its lines
    file.write_text(example)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shown.strip()


def test_the_figures_of_the_torch_device_come_from_their_run() -> None:
    import json

    text = TORCH_DEVICE.read_text()
    name = "torch-device-cpu.json"
    assert f"(../benchmarks/results/{name})" in text
    rows = json.loads((ROOT / "benchmarks/results" / name).read_text())["rows"]
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
    import json

    run = json.loads((ROOT / "benchmarks/results/opencl-h200.json").read_text())
    values = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    text = " ".join((ROOT / "docs/opencl.md").read_text().split())
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
    ) in " ".join((ROOT / "README.md").read_text().split())
    furthest = max(row["difference"] for row in run["forward"])
    assert f"are within {furthest:.1e} of torch's numbers" in text
    assert f"{run['op_db']['passed']} of {run['op_db']['of']} samples" in text
    assert not any(row["on_host"] for row in run["forward"])
    run = json.loads((ROOT / "benchmarks/results/opencl-cpu.json").read_text())
    values = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}

    def over(subject: str, system: str) -> float:
        return values[subject, system] / values[subject, systems[0]]

    products = [1 / over(f"matmul {n}x{n}x{n}", "numpy") for n in (512, 1024, 2048)]
    first, second, third = (f"{ratio:.2f}" for ratio in products)
    assert f"take {first}, {second} and {third} of NumPy's time" in text
    named = ("softmax 1024x1024", "layer_norm+gelu 1024x1024", "attention 1x8x1024x64")
    rows_, both, heads = (f"{over(subject, 'numpy'):.1f}" for subject in named)
    assert f"is {rows_} times as fast as NumPy, LayerNorm with GELU {both} times" in text
    assert f"1024 places {heads} times" in text
    one, two, three = (f"{over(subject, 'torch, cpu') * 100:.0f} %" for subject in named)
    assert f"Of torch's speed these are {one}, {two} and {three}." in text

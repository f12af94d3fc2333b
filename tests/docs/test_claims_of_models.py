"""What the pages say of drawing, streaming, ComfyUI and XLA.

Every sentence and row here is put together from the files of results and looked for in the page, so
that what a figure means is checked, and not only that it is somewhere in a file.
"""

from __future__ import annotations

import math
from typing import Any

from tests.docs.pages import run_of, text_of

RESIDENCY_PAGES = ("README.md", "docs/residency.md")


def test_the_figures_of_drawing_come_from_their_run() -> None:
    run = run_of("pipeline-h200.json")
    values = {(row["subject"], row["system"]): row["value"] for row in run["rows"]}
    text = text_of("docs/pipeline.md")
    for name, what, form in (
        ("load from disk to card", "load", "{:.1f} s"),
        ("a step", "step", "{:.0f} ms"),
        ("a picture", "total", "{:.0f} ms"),
        ("peak on the card", "peak", "{:.1f} GB"),
    ):
        subject = f"FLUX.1 shape, random weights, {what}"
        ours, theirs = (form.format(values[subject, s]) for s in ("holdfast", "diffusers"))
        assert f"| {name} | {ours} | {theirs} |" in text


def test_the_figures_of_xla_come_from_their_runs() -> None:
    text = " ".join(text_of("docs/xla.md").split())
    figures = run_of("xla-h200.json")
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
    wan = run_of("xla-cpu.json")["figures"]["compile"]
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
    text = " ".join(text_of("docs/xla.md").split())
    run = run_of("xla-h200.json")
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
    run = run_of("residency-h200.json")
    row = {(found["system"], found["room"]): found for found in run["rows"]}
    rooms = [f"budget {share}%" for share in (10, 25, 50, 75)]
    resident = run["models"]["flux"]["resident_step_ms"]
    pages = {name: " ".join(text_of(name).split()) for name in RESIDENCY_PAGES}
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
    found = run_of("comfyui-h200.json")
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
    page = text_of("docs/comfyui.md")
    for line in table:
        assert line in text_of("README.md")
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
        f"predicted {less[0] * 100:.0f} % and {less[1] * 100:.0f} % less than was measured" in text
    )


def test_what_fit_says_is_within_a_tenth_of_what_was_measured() -> None:
    text = " ".join(text_of("docs/residency.md").split())
    run = run_of("residency-fit-h200.json")
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


def test_the_figures_beside_the_tables_of_residency_come_from_their_runs() -> None:
    text = " ".join(text_of("docs/residency.md").split())
    run = run_of("residency-h200.json")
    row = {(found["system"], found["room"]): found for found in run["rows"]}
    assert (
        f"and {row['ours-packed', 'keep 25%']['of_limit']:.2f} of it where a quarter stays" in text
    )
    ours = [found for (system, _), found in row.items() if system.startswith("ours")]
    off = max(abs(found["figures"]["predicted_ms"] / found["step_ms"] - 1) for found in ours)
    assert f"predicts every step of the table within {math.ceil(100 * off)} %." in text
    smallest = [row[system, "budget 10%"] for system in ("comfyui", "aimdo", "mmgp")]
    assert all(found["driver_peak_bytes"] > 1.05 * found["budget_bytes"] for found in smallest)
    budget = f"{smallest[0]['budget_bytes'] / 1e9:.1f} GB"
    assert f"With {budget} ComfyUI, aimdo and mmgp took more than 5 % over the budget." in text
    resident, compiled = (row[name, "no budget"]["step_ms"] for name in ("resident", "compiled"))
    assert f"({resident:.0f} ms a step), except that of the one compiled" in text
    assert f"by torch.compile ({compiled:.0f} ms)." in text


def test_the_figures_of_other_models_come_from_their_runs() -> None:
    text = " ".join(text_of("docs/residency.md").split())
    assert _whole_flux() in text
    wan = run_of("residency-wan14b-h200.json")["models"]["wan14b"]
    assert f"computes for {wan['resident_step_ms']:.0f} ms, nearly as long" in text
    assert f"[{wan['weights_bytes'] / 1e9:.1f} GB, 7800 tokens]" in text
    run = run_of("residency-sdxl-h200.json")
    row = {(found["system"], found["room"]): found for found in run["rows"]}
    sdxl = run["models"]["sdxl"]
    assert f"[{sdxl['weights_bytes'] / 1e9:.1f} GB, a batch of 2]" in text
    refused = row["ours", "budget 10%"]
    assert refused["error"].endswith("beside the weights")
    assert f"{refused['budget_bytes'] / 1e9:.1f} GB is less than a step takes" in text
    assert f"All in memory it takes {sdxl['resident_step_ms']:.0f} ms." in text
    equal = row["ours-packed", "budget 25%"]
    assert equal["same_output"]
    assert f"up to the packed cell of {equal['budget_bytes'] / 1e9:.1f} GB." in text
    off = max(found["largest_difference"] or 0 for found in run["rows"])
    assert f"were off by up to {off:.3f}," in text


def _whole_flux() -> str:
    run = run_of("residency-run-flux-h200.json")
    return (
        f"{run['peak_bytes'] / 1e9:.2f} GB taken at most by the driver's count, "
        f"{run['took_ms']:.0f} ms a step where {run['predicted_ms']:.0f} were predicted."
    )

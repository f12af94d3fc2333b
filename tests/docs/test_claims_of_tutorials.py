"""What the tutorials say of speed and size, put together from the files of results."""

from __future__ import annotations

from typing import Any

from tests.docs.pages import run_of, text_of


def read(name: str) -> str:
    return " ".join(text_of(f"docs/tutorials/{name}.md").split())


def test_flux_in_6_gb_tells_what_the_run_under_6_gb_took() -> None:
    text = read("flux-in-6-gb")
    run = run_of("residency-run-flux-h200.json")
    assert (
        f"the driver counted {run['peak_bytes'] / 1e9:.2f} GB at most, and a step took "
        f"{run['took_ms']:.0f} ms where {run['predicted_ms']:.0f} were predicted."
    ) in text
    (found,) = (one for one in run["cost"]["residences"] if one["network"] == "transformer")
    kept, whole, streamed = (
        found[key] / 1e9 for key in ("kept_bytes", "weight_bytes", "streamed_bytes")
    )
    assert f"{kept:.1f} GB of the transformer's {whole:.1f} GB stayed on the card" in text
    assert f"and {streamed:.1f} GB were streamed in every step" in text
    timeline = run["timeline"]
    crossed, busy = timeline["bytes_over_the_link_each"][-1], timeline["link_busy_share_each"][-1]
    assert (
        f"these are {crossed / 1e9:.1f} GB. The link carried {timeline['link_gb_s']:.1f} GB/s"
        in text
    )
    assert f"link was busy for {100 * busy:.0f} % of the time of a step" in text


def test_flux_in_6_gb_compares_what_the_run_compared() -> None:
    text = read("flux-in-6-gb")
    run = run_of("residency-h200.json")
    row = {(found["system"], found["room"]): found for found in run["rows"]}
    quarter = [
        row[system, "budget 25%"] for system in ("ours-packed", "ours", "comfyui", "aimdo", "mmgp")
    ]
    assert f"with the same {quarter[0]['budget_bytes'] / 1e9:.1f} GB, in ms a step" in text
    steps = " | ".join(f"{found['step_ms']:.0f}" for found in quarter)
    assert f"| {steps} |" in text
    resident = run["models"]["flux"]["resident_step_ms"]
    assert f"{resident:.0f} ms with all of it in memory" in text


def test_in_comfyui_tells_what_a_step_took_there() -> None:
    ways: dict[str, Any] = run_of("comfyui-h200.json")["measured"][0]["ways"]
    ours, theirs = (ways[name]["next"]["step_s"] * 1000 for name in ("holdfast, packed", "comfyui"))
    assert (
        f"a step takes {ours:.0f} ms with Stream Model, and {theirs:.0f} ms in ComfyUI's own way"
    ) in read("in-comfyui")


def test_no_cuda_tells_how_fast_opencl_was_beside_cuda() -> None:
    rows = run_of("opencl-h200.json")["rows"]
    values = {(row["subject"], row["system"]): row["value"] for row in rows}
    product, attention = (
        100 * values[subject, "torch, cuda"] / values[subject, "holdfast, OpenCL"]
        for subject in ("matmul 4096x4096x4096", "attention 1x24x4096x128")
    )
    assert (
        f"products of matrices reach {product:.0f} % and attention {attention:.0f} % of the speed "
        "of torch's CUDA kernels"
    ) in read("no-cuda-the-opencl-device")

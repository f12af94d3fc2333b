from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("jax")

from holdfast.cli import port
from holdfast.cli.main import main
from holdfast.xla.check import check
from holdfast.xla.check.check import PortCheck
from holdfast.xla.scaffold.rendering import FILES

GOOD = PortCheck(
    "diffusers:FluxTransformer2DModel",
    8,
    error_f32=9.1e-7,
    error_bf16=0.048,
    torch_bf16_error=0.046,
    error_sharded=1.6e-7,
    bytes_per_device=142824,
    ideal_bytes=139590,
    full_bytes_per_device=3_090_000_000,
    full_ideal_bytes=2_980_000_000,
    collectives={"all-reduce": 9, "all-gather": 20},
    seconds=12.3,
)


def run_port(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["port", *arguments]) == status
    captured = capsys.readouterr()
    return captured.err if status == 2 else captured.out


def test_without_an_action_it_tells_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_port(capsys)
    assert "  new         write a port and its nodes for ComfyUI\n" in out
    assert "  holdfast port check diffusers:FluxTransformer2DModel\n" in out


@pytest.mark.parametrize("action", ["new", "check", "list"])
def test_every_action_has_help_with_an_example(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["port", action, "--help"])
    assert caught.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"examples: holdfast port {action}" in words


def test_help_loads_neither_torch_nor_jax() -> None:
    program = (
        "import sys; from holdfast.cli.main import main; main(['port']);"
        "print([m for m in ('torch', 'jax', 'torchax', 'diffusers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().splitlines()[-1] == "[]"


# ---- new


def test_a_new_port_is_shown_as_a_tree_with_the_next_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ComfyUI-Wan21-TPU"
    assert run_port(capsys, "new", "Wan21", "--out", str(tmp_path)) == (
        f"{folder}\n"
        "├── __init__.py\n"
        "├── nodes.py\n"
        "├── port.py\n"
        "├── utils.py\n"
        "├── splash_attention.py\n"
        "├── test_comfyui_api.py\n"
        "├── README.md\n"
        "└── pyproject.toml\n"
        "\n"
        "class diffusers:WanTransformer3DModel: its name fits best (--class names another)\n"
        "nodes Wan21TextEncoder, Wan21Sampler, Wan21VAEDecoder, Wan21Pipeline\n"
        "\n"
        "next:\n"
        "  holdfast port check diffusers:WanTransformer3DModel\n"
        f"  ln -s {folder} COMFYUI/custom_nodes/\n"
        f"  python {folder}/test_comfyui_api.py --url http://127.0.0.1:8188\n"
    )


def test_in_comfyuis_folder_the_next_command_starts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my comfy" / "custom_nodes"
    out.mkdir(parents=True)
    found = json.loads(run_port(capsys, "new", "X", "--out", str(out), "--json"))
    folder = out / "ComfyUI-X-TPU"
    assert found == {
        "folder": str(folder),
        "files": list(FILES),
        "cls": "diffusers:FluxTransformer2DModel",
        "chosen": "none fits",
        "nodes": ["XTextEncoder", "XSampler", "XVAEDecoder", "XPipeline"],
        "next": [
            "holdfast port check diffusers:FluxTransformer2DModel",
            f"cd '{tmp_path / 'my comfy'}' && python main.py",
            f"python '{folder}'/test_comfyui_api.py --url http://127.0.0.1:8188",
        ],
    }


def test_the_default_folder_is_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = run_port(capsys, "new", "X", "--class", "FluxTransformer2DModel")
    assert "class diffusers:FluxTransformer2DModel\n" in out
    assert [file.name for file in tmp_path.iterdir()] == ["ComfyUI-X-TPU"]


def test_what_cannot_be_written_is_an_error_and_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", str(tmp_path))
    assert run_port(capsys, "new", "Wan2.1", *out, status=2) == (
        "holdfast: error: cannot name a port 'Wan2.1'\n"
        "  expected: a letter, then letters, digits, - and _; at most 64 of them\n"
        "  try: Wan2-1\n"
    )
    assert run_port(capsys, "new", "X", "--class", "WanTransformer3D", *out, status=2).startswith(
        "holdfast: error: diffusers and transformers have no class WanTransformer3D\n"
        "  expected: the name of a class, as its library spells it\n"
        "  try: diffusers:WanTransformer3DModel"
    )
    assert list(tmp_path.iterdir()) == []
    run_port(capsys, "new", "X", *out)
    assert "there is such a folder" in run_port(capsys, "new", "X", *out, status=2)
    run_port(capsys, "new", "X", "--force", *out)


# ---- check


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Checks that take no time; the real one is in tests/xla/test_check.py."""
    calls: list[Any] = []

    def checked(*arguments: Any) -> PortCheck:
        calls.append(arguments)
        return GOOD

    monkeypatch.setattr(check, "check", checked)
    return calls


def test_a_check_is_a_table(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_port(capsys, "check", "FluxTransformer2DModel") == (
        "diffusers:FluxTransformer2DModel\n"
        "  f32, XLA to torch               9.1e-07\n"
        "  f32, 8 devices to one           1.6e-07\n"
        "  bf16, XLA to torch in f32       4.8e-02\n"
        "  bf16, torch to torch in f32     4.6e-02\n"
        "  tiny weights on each device     143 KB, ideal 140 KB (1.023 x)\n"
        "  full size in bf16, each device  3.1 GB, ideal 3.0 GB (1.037 x)\n"
        "  between devices                 9 all-reduce, 20 all-gather\n"
        "  time                            12 s\n"
        "ok\n"
    )
    assert calls == [("diffusers:FluxTransformer2DModel", 8, ("f32", "bf16"))]


def test_options_reach_the_check(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    run_port(
        capsys, "check", "diffusers:FluxTransformer2DModel", "--devices", "2", "--dtype", "f32"
    )
    assert calls == [("diffusers:FluxTransformer2DModel", 2, ("f32",))]


def test_a_problem_is_printed_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = PortCheck("a:B", 1, error_f32=float("inf"), seconds=1.0)
    monkeypatch.setattr(check, "check", lambda *_: bad)
    assert run_port(capsys, "check", "T5EncoderModel", status=1) == (
        "a:B\n"
        "  f32, XLA to torch               inf\n"
        "  time                            1.0 s\n"
        "PROBLEM: f32 differs from torch by inf, more than 0.0001\n"
    )
    found = json.loads(run_port(capsys, "check", "T5EncoderModel", "--json", status=1))
    assert found["error_f32"] is None  # JSON has no infinity
    assert found["ok"] is False
    assert found["problems"] == ["f32 differs from torch by inf, more than 0.0001"]


@pytest.mark.usefixtures("calls")
def test_json_has_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run_port(capsys, "check", "FluxTransformer2DModel", "--json"))
    assert set(found) == {*PortCheck.__slots__, "ok", "problems"}
    assert found["collectives"] == {"all-reduce": 9, "all-gather": 20}
    assert found["ok"] is True


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("X", "--devices", "0"), "cannot check on 0 devices\n  expected: from 1 to 512\n"),
        (("X", "--dtype", "fp8"), "cannot check 'fp8'\n  expected: --dtype f32 or --dtype bf16\n"),
    ],
)
def test_options_that_cannot_be_are_refused(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_port(capsys, "check", *arguments, status=2) == f"holdfast: error: {text}"


def test_a_class_without_a_tiny_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_port(capsys, "check", "DDIMScheduler", "--devices", "1", status=2)
    assert out.startswith(
        "holdfast: error: there is no tiny model of diffusers:DDIMScheduler\n  expected: one of "
    )


def test_virtual_devices_are_requested_unless_xla_flags_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    port.request_devices(4)
    mine = "--xla_dump_to=x --xla_force_host_platform_device_count=4"
    assert os.environ["XLA_FLAGS"] == mine
    port.request_devices(8)
    assert os.environ["XLA_FLAGS"] == mine


@pytest.mark.slow
def test_the_whole_command_checks_a_class_on_eight_devices() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    command = [sys.executable, "-m", "holdfast", "port", "check", "T5EncoderModel", "--json"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"JAX_PLATFORMS": "cpu"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["ok"]
    assert found["devices"] == 8
    assert found["collectives"]
    assert found["full_ideal_bytes"] < found["full_bytes_per_device"]


# ---- list


def test_ports_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    first, *_, last = run_port(capsys, "list").splitlines()
    assert first == "flux   diffusers:FluxTransformer2DModel  FLUX.1"
    assert last == "more: holdfast port new NAME (holdfast port list --classes: what can be tried)"
    found = json.loads(run_port(capsys, "list", "--json"))
    flux = {"name": "flux", "class": "diffusers:FluxTransformer2DModel", "about": "FLUX.1"}
    assert flux in found
    assert {one["name"] for one in found} >= {"flux", "sdxl", "wan21", "wan22"}


def test_classes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_port(capsys, "list", "--classes").splitlines()
    assert "diffusers:FluxTransformer2DModel" in lines
    assert len(lines) > 57
    assert json.loads(run_port(capsys, "list", "--classes", "--json"))[0] == {"name": lines[0]}

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli import doctor
from holdfast.cli.main import main
from holdfast.topology import Gpu, Node, OpenclDevice, ProbeReport, Topology, TorchDevice

MACHINE = Topology(
    hostname="box",
    system="Linux",
    memory_bytes=64 * 10**9,
    nodes=(Node(id=0, total_bytes=64 * 10**9, cpus=(0,)),),
    torch=(TorchDevice(id="cpu", backend="cpu"),),
    probes=(ProbeReport(name="linux", status="ok"), ProbeReport(name="torch", status="ok")),
)


def _states(machine: Topology) -> dict[str, str]:
    return {check.name: check.state for check in doctor.examine(machine)}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Pretend that only these modules are installed."""

    def pretend(*modules: str) -> None:
        monkeypatch.setattr(
            doctor.importlib.util, "find_spec", lambda name: object() if name in modules else None
        )

    return pretend


@pytest.mark.slow
def test_this_machine_is_healthy(capsys) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("All is well.\n")
    assert "torch 2." in out


@pytest.mark.slow
def test_json_has_the_same_checks(capsys) -> None:
    assert main(["doctor", "--json", "--require", "machine,torch"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] is True
    assert {"holdfast", "machine", "torch", "opencl", "nvml"} <= {
        check["name"] for check in document["checks"]
    }


def test_missing_extras_say_what_they_add_and_how_to_get_them(installed) -> None:
    installed("torch")
    checks = {check.name: check for check in doctor.examine(MACHINE)}
    assert checks["opencl"] == doctor.Check(
        name="opencl",
        state="missing",
        found="not installed; would add `--device opencl`: GPUs of any vendor, without CUDA",
        advice="pip install 'holdfast[opencl]'",
    )
    assert checks["torch"].state == "ok"
    assert checks["gpu"].state == "idle"


def test_a_requirement_that_is_not_met_is_a_status(capsys, monkeypatch, installed) -> None:
    installed("torch")
    monkeypatch.setattr(doctor, "discover", lambda config: MACHINE)
    assert main(["doctor", "--require", "torch,nvml"]) == 1
    assert "required, and not usable here: nvml\n" in capsys.readouterr().out


def test_an_unknown_requirement_is_refused(capsys, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "discover", lambda config: MACHINE)
    assert main(["doctor", "--require", "cuda"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("holdfast: error: cannot require 'cuda': there is no such check\n")


def test_something_installed_that_does_not_work_is_broken(installed) -> None:
    installed("torch", "pyopencl")
    failed = ProbeReport(name="opencl", status="failed", reason="ended by signal 11")
    machine = MACHINE.replace(probes=(*MACHINE.probes, failed))
    states = _states(machine)
    assert states["opencl"] == "broken"


def test_a_card_without_a_driver_comes_with_advice(installed) -> None:
    installed()
    card = Gpu(id=0, vendor="AMD", name="Radeon", kind="discrete")
    checks = {check.name: check for check in doctor.examine(MACHINE.replace(gpus=(card,)))}
    assert checks["gpu 0"].state == "missing"
    assert checks["gpu 0"].advice == ("install a driver, then holdfast[torch] or holdfast[opencl]")


def test_a_card_that_opencl_can_drive_is_ok(installed) -> None:
    installed("pyopencl")
    card = Gpu(id=0, vendor="AMD", name="Radeon", kind="discrete", opencl="opencl:0:0")
    device = OpenclDevice(id="opencl:0:0", platform="AMD", name="gfx1100", kind="gpu")
    ok = ProbeReport(name="opencl", status="ok")
    machine = MACHINE.replace(gpus=(card,), opencl=(device,), probes=(*MACHINE.probes, ok))
    assert _states(machine)["gpu 0"] == "ok"
    assert _states(machine)["opencl"] == "ok"


@pytest.mark.slow
def test_a_misspelt_variable_is_found(capsys, monkeypatch) -> None:
    monkeypatch.setenv("HOLDFAST_PROBE", "linux")
    assert main(["doctor", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert checks[-1] == {
        "name": "settings",
        "state": "broken",
        "found": "the variable HOLDFAST_PROBE is read by nothing",
        "advice": "did you mean HOLDFAST_PROBES?",
    }


def test_a_machine_without_memory_is_broken() -> None:
    lost = Topology(probes=(ProbeReport(name="linux", status="absent", reason="there is no /sys"),))
    [check] = [c for c in doctor.examine(lost) if c.name == "machine"]
    assert (check.state, check.found) == ("broken", "no memory was found: there is no /sys")


@pytest.mark.parametrize(
    ("variable", "value", "check"),
    [
        (
            "HOLDFAST_SVM_PROVIDER",
            "simulated",
            doctor.Check(name="shared memory", state="ok", found="provider simulated"),
        ),
        (
            "HOLDFAST_SVM_PROVIDER",
            "numma",
            doctor.Check(
                name="shared memory",
                state="broken",
                found="unknown provider 'numma'",
                advice="numa",
            ),
        ),
        (
            "HOLDFAST_RETRYIX_LIBRARY",
            "/nowhere.so",
            doctor.Check(
                name="shared memory",
                state="broken",
                found="there is no file /nowhere.so",
                advice="HOLDFAST_RETRYIX_LIBRARY, or --library, names it",
            ),
        ),
    ],
)
def test_the_provider_that_is_wished_for_is_tried(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, check: doctor.Check
) -> None:
    monkeypatch.setenv(variable, value)
    assert check in doctor.examine(MACHINE)


def test_an_extra_of_several_packages_needs_them_all(installed) -> None:
    installed("torch", "textual")
    checks = {check.name: check for check in doctor.examine(MACHINE)}
    assert checks["dashboard"] == doctor.Check(
        name="dashboard",
        state="missing",
        found="aiohttp is not installed; would add `holdfast top` in a terminal, `holdfast serve` "
        "in a browser",
        advice="pip install 'holdfast[dashboard]'",
    )
    assert checks["comfyui"].found == "not installed; would add the nodes in ComfyUI"


def test_an_unusable_socket_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_others = tmp_path / "holdfast"
    open_to_others.mkdir(mode=0o777)
    open_to_others.chmod(0o777)
    file = tmp_path / "file"
    file.touch()
    monkeypatch.delenv("HOLDFAST_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(file))
    monkeypatch.setattr(doctor.server, "is_offered", lambda: False)
    monkeypatch.setenv("HOLDFAST_OFFER", "1")
    [check] = [one for one in doctor.examine(MACHINE) if one.name == "processes"]
    own = doctor.socket_dir.folders()[1]
    assert check == doctor.Check(
        name="processes",
        state="broken",
        found="holdfast top and serve would see none: cannot use the socket folder "
        f"{str(open_to_others)!r}: it is open to others; {own}: Not a directory",
        advice="HOLDFAST_RUNTIME_DIR names a folder that is yours alone",
    )


def test_hidden_processes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_OFFER", "0")
    [check] = [one for one in doctor.examine(MACHINE) if one.name == "processes"]
    assert check.state == "idle"


def test_a_usable_socket_folder_needs_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_OFFER", "1")
    monkeypatch.setenv("HOLDFAST_RUNTIME_DIR", str(tmp_path / "folder"))
    monkeypatch.setattr(doctor.server, "is_offered", lambda: False)
    assert "processes" not in _states(MACHINE)
    assert list((tmp_path / "folder").iterdir()) == []

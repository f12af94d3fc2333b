from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.nodes import checking, installing
from holdfast.nodes.checking import PackCheck, PackPart
from holdfast.nodes.installing import Installed

URL = "http://127.0.0.1:8188"
GOOD = PackCheck(
    url=URL,
    comfyui="ComfyUI 0.3.75, Python 3.11.2, torch 2.13.0+cpu, cpu",
    parts=(PackPart(name="nodes", state="ok", found="all 24"),),
)


@pytest.fixture
def comfyui(tmp_path: Path) -> Path:
    folder = tmp_path / "my ComfyUI"
    (folder / "custom_nodes").mkdir(parents=True)
    (folder / "main.py").write_text("")
    return folder


def run_comfy(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["comfy", *arguments]) == status
    captured = capsys.readouterr()
    return captured.err if status == 2 else captured.out


def test_without_an_action_it_tells_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_comfy(capsys)
    assert "  install     put the nodes into a ComfyUI\n" in out
    assert "  holdfast comfy check http://127.0.0.1:8199  " in out


@pytest.mark.parametrize("action", ["install", "remove", "check"])
def test_every_action_has_help_with_an_example(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["comfy", action, "--help"])
    assert caught.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"examples: holdfast comfy {action}" in words


def test_neither_help_nor_installing_loads_torch(comfyui: Path) -> None:
    program = (
        "import sys; from holdfast.cli.main import main; main(['comfy']);"
        f"main(['comfy', 'install', {str(comfyui)!r}]);"
        "print([m for m in ('torch', 'jax', 'numpy', 'diffusers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.decode().splitlines()[-1] == "[]"


# ---- install and remove


def test_installing_says_where_how_and_what_is_next(
    comfyui: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = comfyui / "custom_nodes" / "holdfast"
    after = (
        "\n"
        "next:\n"
        f"  cd '{comfyui}' && {shlex.quote(sys.executable)} main.py\n"
        "  holdfast comfy check http://127.0.0.1:8188\n"
    )
    version = holdfast.__version__
    assert run_comfy(capsys, "install", str(comfyui)) == (
        f"{folder}\nlink, new: Holdfast {version}\n{after}"
    )
    assert run_comfy(capsys, "install", str(comfyui)) == (
        f"{folder}\nlink, up to date: Holdfast {version}\n{after}"
    )
    assert run_comfy(capsys, "remove", str(comfyui)) == f"removed: link {folder}\n"


def test_another_python_and_a_note_are_printed(
    comfyui: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = comfyui.parent / "base" / "custom_nodes" / "holdfast"
    done = Installed(folder, "copy", "new", "1.0", "a copy, as ...", Path("/c/venv/bin/python"))
    monkeypatch.setattr(installing, "install", lambda *_, **__: done)
    assert run_comfy(capsys, "install", str(comfyui)) == (
        f"{folder}\n"
        "copy, new: Holdfast 1.0\n"
        "note: a copy, as ...\n"
        "\n"
        "next:\n"
        "  /c/venv/bin/python -m pip install 'holdfast[comfyui]'\n"
        "  start ComfyUI again\n"
        "  holdfast comfy check http://127.0.0.1:8188\n"
    )


def test_installing_as_json(comfyui: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run_comfy(capsys, "install", str(comfyui), "--copy", "--json"))
    assert found == {
        "folder": str(comfyui / "custom_nodes" / "holdfast"),
        "how": "copy",
        "state": "new",
        "version": holdfast.__version__,
        "note": None,
        "python": None,
        "next": [
            f"cd '{comfyui}' && {shlex.quote(sys.executable)} main.py",
            f"holdfast comfy check {URL}",
        ],
    }
    (comfyui / "custom_nodes" / "holdfast" / "mine.txt").write_text("")
    found = json.loads(run_comfy(capsys, "remove", str(comfyui), "--json"))
    assert (found["how"], found["kept"]) == ("copy", ["mine.txt"])


def test_files_that_stay_are_printed(comfyui: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_comfy(capsys, "install", str(comfyui), "--copy")
    folder = comfyui / "custom_nodes" / "holdfast"
    (folder / "mine.txt").write_text("")
    assert run_comfy(capsys, "remove", str(comfyui)) == (
        f"removed: copy {folder}\nleft, as they are not as Holdfast wrote them: mine.txt\n"
    )


def test_what_cannot_be_is_an_error_and_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_comfy(capsys, "install", str(tmp_path), status=2) == (
        f"holdfast: error: cannot use {str(tmp_path)!r}: it is no ComfyUI\n"
        "  expected: the folder of ComfyUI, with main.py and custom_nodes in it, or its base "
        "directory\n"
    )


# ---- check


def test_a_check_is_a_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(checking, "check", lambda *what: calls.append(what) or GOOD)
    assert run_comfy(capsys, "check") == (
        f"{URL}: ComfyUI 0.3.75, Python 3.11.2, torch 2.13.0+cpu, cpu\n"
        "✓ nodes  all 24\n"
        "All is well.\n"
    )
    run_comfy(capsys, "check", "http://there", "--timeout", "2.5")
    assert calls == [(URL, 30.0), ("http://there", 2.5)]


def test_a_problem_is_printed_with_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    web = PackPart(
        name="web",
        state="missing",
        found="1 of 2",
        problems=("panel.js: not there",),
        advice="start ComfyUI again",
    )
    bad = PackCheck(url=URL, comfyui="ComfyUI 0.3.75", parts=(*GOOD.parts, web))
    monkeypatch.setattr(checking, "check", lambda *_: bad)
    assert run_comfy(capsys, "check", status=1) == (
        f"{URL}: ComfyUI 0.3.75\n"
        "✓ nodes  all 24\n"
        "✗ web    1 of 2\n"
        "         panel.js: not there\n"
        "         → start ComfyUI again\n"
        "Something needs attention.\n"
    )
    found = json.loads(run_comfy(capsys, "check", "--json", status=1))
    assert found["ok"] is False
    assert found["parts"][1] == {
        "name": "web",
        "state": "missing",
        "found": "1 of 2",
        "problems": ["panel.js: not there"],
        "advice": "start ComfyUI again",
    }


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf"])
def test_a_time_that_cannot_be_is_refused(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_comfy(capsys, "check", f"--timeout={timeout}", status=2) == (
        f"holdfast: error: cannot wait {timeout} s\n"
        "  expected: --timeout with a number above 0, up to 86400\n"
    )


def test_no_comfyui_is_an_error_and_a_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_comfy(capsys, "check", "http://127.0.0.1:1", status=2).startswith(
        "holdfast: error: no ComfyUI answers at http://127.0.0.1:1: Connection refused\n"
    )

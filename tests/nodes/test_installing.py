"""The pack goes into ComfyUI's folder, and out of it, and nothing of others is lost."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.base.errors import BadInput, Unsupported
from holdfast.nodes import EXAMPLE_WORKFLOWS, LOCALES, NODE_CLASS_MAPPINGS, WEB, installing
from holdfast.nodes.installing import RECORD, install, remove
from tests.comfyui import server
from tests.needs import needs

ROOT = Path(__file__).parents[2]
SHIM = ROOT / "comfyui"
EXPECTED = (
    "  expected: the folder of ComfyUI, with main.py and custom_nodes in it, or its base directory"
)


@pytest.fixture
def comfyui(tmp_path: Path) -> Path:
    """A folder that looks like ComfyUI's."""
    folder = tmp_path / "ComfyUI"
    (folder / "custom_nodes").mkdir(parents=True)
    (folder / "comfy").mkdir()
    (folder / "main.py").write_text("")
    return folder


def pack(comfyui: Path) -> Path:
    return comfyui / "custom_nodes" / "holdfast"


def tree(folder: Path) -> dict[str, bytes]:
    return {
        f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()
    }


def whole() -> dict[str, bytes]:
    """Every file that a copy has to have."""
    files = {name: (SHIM / name).read_bytes() for name in installing.FILES}
    for folder in (EXAMPLE_WORKFLOWS, LOCALES):
        files |= {f"{folder.name}/{name}": data for name, data in tree(folder).items()}
    return files


def told(error: pytest.ExceptionInfo[Any]) -> str:
    return str(error.value)


# ---- the folder itself


def loaded(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location("shim_under_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shim_loads_without_comfyui_and_registers_every_node() -> None:
    shim = loaded(SHIM / "__init__.py")
    assert shim.NODE_CLASS_MAPPINGS == NODE_CLASS_MAPPINGS
    assert set(shim.NODE_DISPLAY_NAME_MAPPINGS) == set(NODE_CLASS_MAPPINGS)
    assert Path(shim.WEB_DIRECTORY) == WEB


def test_loading_the_shim_starts_nothing_and_loads_nothing_heavy() -> None:
    program = (
        "import importlib.util, sys, threading\n"
        f"spec = importlib.util.spec_from_file_location('x', {str(SHIM / '__init__.py')!r})\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
        "heavy = [m for m in ('torch', 'jax', 'diffusers', 'server') if m in sys.modules]\n"
        "print(heavy, threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[] 1\n"


def test_the_shim_says_what_to_install_where_there_is_no_holdfast() -> None:
    program = (
        "import runpy\n"
        "try:\n"
        f"    runpy.run_path({str(SHIM / '__init__.py')!r})\n"
        "except ImportError as exc:\n"
        "    print(exc)"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    python = done.stdout.splitlines()[1].partition(" for ")[2]
    needed = str(SHIM / "requirements.txt")
    assert done.stdout == (
        "Holdfast's nodes are in a package that this Python does not have\n"
        f"  expected: the package holdfast for {python}\n"
        f"  try: {shlex.quote(python)} -m pip install -r {shlex.quote(needed)}\n"
    )


def test_what_the_registry_reads_is_there_and_of_this_version() -> None:
    document = tomllib.loads((SHIM / "pyproject.toml").read_text())
    project, comfy = document["project"], document["tool"]["comfy"]
    assert project["version"] == holdfast.__version__
    assert (project["name"], comfy["DisplayName"]) == ("holdfast", "Holdfast")
    assert {"PublisherId", "DisplayName", "Icon", "requires-comfyui"} <= set(comfy)
    assert "web" not in comfy  # WEB_DIRECTORY says it; with both, files are loaded twice
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ours["requires-python"]
    assert project["dependencies"] == ["holdfast[comfyui]"]
    assert "holdfast[comfyui]" in (SHIM / "requirements.txt").read_text().splitlines()
    assert "comfyui" in ours["optional-dependencies"]


def test_the_folder_is_whole_when_it_is_linked() -> None:
    assert (SHIM / "locales").resolve() == LOCALES.resolve()
    assert (SHIM / "example_workflows").resolve() == EXAMPLE_WORKFLOWS.resolve()
    assert not (SHIM / "locales").readlink().is_absolute()
    assert not (SHIM / "example_workflows").readlink().is_absolute()


# ---- a link


def test_a_link_is_made_and_the_second_time_nothing(comfyui: Path) -> None:
    first = install(comfyui)
    assert (first.folder, first.how, first.state) == (pack(comfyui), "link", "new")
    assert first.version == holdfast.__version__
    assert pack(comfyui).resolve() == SHIM
    assert (pack(comfyui) / "locales" / "en").is_dir()
    again = install(comfyui)
    assert (again.how, again.state) == ("link", "up to date")
    assert [p.name for p in (comfyui / "custom_nodes").iterdir()] == ["holdfast"]


def test_a_link_to_another_holdfast_is_replaced(comfyui: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    shutil.copy(SHIM / "pyproject.toml", old)
    pack(comfyui).symlink_to(old)
    assert install(comfyui).state == "updated"
    assert pack(comfyui).resolve() == SHIM
    assert (old / "pyproject.toml").exists()


def test_a_link_that_leads_elsewhere_is_left_unless_forced(comfyui: Path, tmp_path: Path) -> None:
    pack(comfyui).symlink_to(tmp_path / "gone")
    with pytest.raises(BadInput) as caught:
        install(comfyui)
    assert told(caught) == (
        f"cannot replace {str(pack(comfyui))!r}: it is a link to {str(tmp_path / 'gone')!r}\n"
        "  expected: a link to a folder of Holdfast, or none\n"
        "  try: --force (replaces the link)"
    )
    with pytest.raises(BadInput, match="remove the link by hand"):
        remove(comfyui)
    assert install(comfyui, force=True).state == "updated"
    assert pack(comfyui).resolve() == SHIM


def test_a_copy_is_made_where_no_link_can_be(
    comfyui: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refused)
    done = install(comfyui)
    assert (done.how, done.state) == ("copy", "new")
    assert done.note == "a copy, as no link can be made here: Operation not permitted"
    assert tree(pack(comfyui)).keys() == {*whole(), RECORD}


def test_links_that_were_checked_out_as_files_are_no_trouble(
    comfyui: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As git does on Windows."""
    shim = tmp_path / "shim"
    shim.mkdir()
    for name in installing.FILES:
        shutil.copy(SHIM / name, shim)
    (shim / "locales").write_text("../src/holdfast/nodes/locales")
    monkeypatch.setattr(installing, "source", lambda: shim)
    assert install(comfyui).note == (
        "a copy, as no link can be made here: the links of this checkout are files"
    )
    found = tree(pack(comfyui))
    del found[RECORD]
    assert found == whole()


# ---- a copy


def test_a_copy_is_whole_and_has_no_links(comfyui: Path) -> None:
    done = install(comfyui, copy=True)
    assert (done.how, done.state) == ("copy", "new")
    found = tree(pack(comfyui))
    assert json.loads(found.pop(RECORD))["version"] == holdfast.__version__
    assert found == whole()
    assert not any(p.is_symlink() for p in pack(comfyui).rglob("*"))
    assert loaded(pack(comfyui) / "__init__.py").NODE_CLASS_MAPPINGS == NODE_CLASS_MAPPINGS


def test_a_copy_again_is_up_to_date_and_stays_a_copy(comfyui: Path) -> None:
    install(comfyui, copy=True)
    assert install(comfyui, copy=True).state == "up to date"
    done = install(comfyui)
    assert (done.how, done.state) == ("copy", "up to date")


def test_an_old_copy_is_updated_and_files_of_others_stay(comfyui: Path) -> None:
    install(comfyui, copy=True)
    record = json.loads((pack(comfyui) / RECORD).read_text())
    old = b"an old text"
    (pack(comfyui) / "requirements.txt").write_bytes(old)  # as an older version wrote it
    (pack(comfyui) / "locales" / "xx").mkdir()
    (pack(comfyui) / "locales" / "xx" / "main.json").write_bytes(old)
    for name in ("requirements.txt", "locales/xx/main.json"):
        record["files"][name] = installing._hash(pack(comfyui) / "requirements.txt")
    (pack(comfyui) / RECORD).write_text(json.dumps(record))
    (pack(comfyui) / "mine.txt").write_text("mine")
    (pack(comfyui) / "example_workflows" / "mine.json").write_text("{}")
    assert install(comfyui).state == "updated"
    found = tree(pack(comfyui))
    assert found.pop("mine.txt") == b"mine"
    assert found.pop("example_workflows/mine.json") == b"{}"
    del found[RECORD]
    assert found == whole()
    assert not (pack(comfyui) / "locales" / "xx").exists()


def test_files_that_somebody_changed_are_left_unless_forced(comfyui: Path) -> None:
    install(comfyui, copy=True)
    (pack(comfyui) / "__init__.py").write_text("# mine")
    with pytest.raises(BadInput) as caught:
        install(comfyui)
    assert told(caught) == (
        f"cannot replace __init__.py in {str(pack(comfyui))!r}: changed by somebody\n"
        "  expected: the files as Holdfast has written them\n"
        "  try: --force (replaces these files), after you have kept what you need of them"
    )
    assert (pack(comfyui) / "__init__.py").read_text() == "# mine"
    assert install(comfyui, force=True).state == "updated"
    assert (pack(comfyui) / "__init__.py").read_bytes() == whole()["__init__.py"]


def test_an_update_that_was_stopped_goes_on(comfyui: Path) -> None:
    """Some files are new already, the record is the old one."""
    install(comfyui, copy=True)
    record = json.loads((pack(comfyui) / RECORD).read_text())
    record["files"]["__init__.py"] = "0" * 64
    (pack(comfyui) / "pyproject.toml").unlink()
    (pack(comfyui) / RECORD).write_text(json.dumps(record))
    assert install(comfyui).state == "updated"
    assert install(comfyui).state == "up to date"


def test_a_link_becomes_a_copy_when_asked(comfyui: Path) -> None:
    install(comfyui)
    done = install(comfyui, copy=True)
    assert (done.how, done.state) == ("copy", "updated")
    assert not pack(comfyui).is_symlink()
    assert (SHIM / "__init__.py").exists()


@pytest.mark.parametrize("force", [False, True])
def test_something_else_of_that_name_is_never_touched(comfyui: Path, force: bool) -> None:
    pack(comfyui).mkdir()
    (pack(comfyui) / "work.py").write_text("precious")
    for action in (lambda: install(comfyui, force=force), lambda: install(comfyui, copy=True)):
        with pytest.raises(BadInput) as caught:
            action()
        assert told(caught) == (
            f"cannot replace {str(pack(comfyui))!r}: something else has this name\n"
            "  expected: the folder that `holdfast comfy install` has made, or none\n"
            "  try: move it away, then again"
        )
    with pytest.raises(BadInput, match=r"^cannot remove .* something else has this name"):
        remove(comfyui)
    assert tree(pack(comfyui)) == {"work.py": b"precious"}


def test_a_forged_record_reaches_no_file_outside(comfyui: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    pack(comfyui).mkdir()
    for name in ("../../../victim.txt", str(victim)):
        files = {name: installing._hash(victim)}
        (pack(comfyui) / RECORD).write_text(json.dumps({"files": files}))
        with pytest.raises(BadInput, match="something else has this name"):
            remove(comfyui)
    assert victim.read_text() == "precious"


def test_a_file_of_that_name_is_not_touched(comfyui: Path) -> None:
    pack(comfyui).write_text("precious")
    with pytest.raises(BadInput, match="something else has this name"):
        install(comfyui)
    assert pack(comfyui).read_text() == "precious"


# ---- removing


def test_a_link_is_removed_and_what_it_led_to_stays(comfyui: Path) -> None:
    install(comfyui)
    assert remove(comfyui).how == "link"
    assert not pack(comfyui).exists()
    assert (SHIM / "__init__.py").exists()
    with pytest.raises(BadInput) as caught:
        remove(comfyui)
    assert told(caught) == (
        f"cannot remove {str(pack(comfyui))!r}: there is no such folder\n"
        "  expected: a ComfyUI that Holdfast is in"
    )


def test_a_copy_is_removed_whole(comfyui: Path) -> None:
    install(comfyui, copy=True)
    (pack(comfyui) / "__pycache__").mkdir()
    (pack(comfyui) / "__pycache__" / "__init__.cpython-311.pyc").write_bytes(b"")
    assert remove(comfyui).kept == ()
    assert list((comfyui / "custom_nodes").iterdir()) == []


def test_what_is_not_ours_in_a_copy_stays(comfyui: Path) -> None:
    install(comfyui, copy=True)
    (pack(comfyui) / "pyproject.toml").write_text("# mine")
    (pack(comfyui) / "locales" / "mine.json").write_text("{}")
    assert remove(comfyui).kept == ("locales/mine.json", "pyproject.toml")
    assert tree(pack(comfyui)) == {"locales/mine.json": b"{}", "pyproject.toml": b"# mine"}


# ---- which folder


def test_a_base_directory_and_custom_nodes_itself_will_do(tmp_path: Path) -> None:
    (tmp_path / "custom_nodes").mkdir()
    assert install(tmp_path).state == "new"
    assert install(tmp_path / "custom_nodes").state == "up to date"


def test_custom_nodes_is_made_where_comfyui_has_none_yet(comfyui: Path) -> None:
    (comfyui / "custom_nodes").rmdir()
    assert install(comfyui).state == "new"


def test_a_folder_that_is_no_comfyui_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        install(tmp_path / "none")
    assert told(caught) == (
        f"cannot use {str(tmp_path / 'none')!r}: there is no such folder\n{EXPECTED}"
    )
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput) as caught:
        install(tmp_path / "file")
    assert told(caught) == f"cannot use {str(tmp_path / 'file')!r}: it is no folder\n{EXPECTED}"
    with pytest.raises(BadInput) as caught:
        remove(tmp_path)
    assert told(caught) == f"cannot use {str(tmp_path)!r}: it is no ComfyUI\n{EXPECTED}"


def test_the_folder_around_comfyui_is_answered_with_comfyuis(comfyui: Path) -> None:
    with pytest.raises(BadInput) as caught:
        install(comfyui.parent)
    assert told(caught).endswith(f"it is no ComfyUI\n{EXPECTED}\n  try: {comfyui}")


@pytest.mark.parametrize("copy", [False, True])
def test_a_folder_that_cannot_be_written_is_told_and_left_as_it_is(
    comfyui: Path, copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the system's answer is made up."""

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "symlink", refused)
    monkeypatch.setattr(shutil, "copyfile", refused)
    with pytest.raises(BadInput) as caught:
        install(comfyui, copy=copy)
    assert told(caught) == (
        f"cannot write into {str(comfyui / 'custom_nodes')!r}: Permission denied\n"
        "  expected: a folder to write into"
    )
    assert list((comfyui / "custom_nodes").iterdir()) == []


def test_a_package_without_the_folder_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "__file__", "/nowhere/src/holdfast/nodes/installing.py")
    with pytest.raises(Unsupported) as caught:
        installing.source()
    assert told(caught) == (
        "this Holdfast has no folder for ComfyUI\n"
        "  expected: /nowhere/src/holdfast/nodes/shim with __init__.py, pyproject.toml, "
        "requirements.txt\n"
        f"  try: {shlex.quote(sys.executable)} -m pip install --force-reinstall holdfast"
    )


def test_the_python_of_comfyui_is_found(comfyui: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install(comfyui).python is None
    python = comfyui / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("")
    assert install(comfyui).python == python
    monkeypatch.setattr(sys, "prefix", str(comfyui / "venv"))
    assert install(comfyui).python is None  # it is this one


# ---- a wheel


@pytest.mark.slow
@needs(server.missing())  # its set-up brings the builder
def test_the_pack_of_a_wheel_is_whole(tmp_path: Path, comfyui: Path) -> None:
    """Built, installed into a folder, and the pack installed from there."""
    program = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    paths = {"PYTHONPATH": str(server.SITE)}
    _python("-c", program, str(tmp_path), cwd=ROOT, env=paths)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-compile")
    _python("-m", "pip", "install", *quiet, "--no-deps", "--target", str(site), str(wheel))
    said = _python(
        *("-m", "holdfast", "comfy", "install", str(comfyui), "--json"),
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
    )
    found = json.loads(said)
    assert (found["how"], found["state"]) == ("link", "new")
    assert pack(comfyui).resolve() == site / "holdfast" / "nodes" / "shim"
    assert tree(pack(comfyui).resolve()) == whole()
    assert tree(site / "holdfast" / "nodes" / "web") == tree(WEB)


def _python(*arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

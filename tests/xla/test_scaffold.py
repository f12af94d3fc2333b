"""`holdfast port new`: the pack that it writes, and that it writes it whole or not at all."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

from holdfast.base.errors import BadInput, MissingDependency, NotFound
from holdfast.xla.port import PORTS
from holdfast.xla.scaffold import classes, new, writing
from holdfast.xla.scaffold.names import name_parts
from holdfast.xla.scaffold.rendering import FILES, port_of, render
from tests.interrupting import CtrlC, lines_of

WAN = "diffusers:WanTransformer3DModel"
FLUX = "diffusers:FluxTransformer2DModel"
QWEN = "diffusers:QwenImageTransformer2DModel"
MADE_UP = "diffusers:CogVideoXTransformer3DModel"  # a video model that Holdfast has no port of


def texts(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


# ---- names


@pytest.mark.parametrize(
    ("name", "folder", "sampler", "port"),
    [
        ("Flux", "ComfyUI-Flux-TPU", "FluxSampler", "flux-tpu"),
        ("wan-2_1", "ComfyUI-wan-2_1-TPU", "Wan21Sampler", "wan-2_1-tpu"),
        ("ComfyUI-Wan21-TPU", "ComfyUI-Wan21-TPU", "Wan21Sampler", "wan21-tpu"),
    ],
)
def test_all_names_come_from_one(name: str, folder: str, sampler: str, port: str) -> None:
    names = name_parts(name)
    assert (names.folder, names.nodes[1], names.port) == (folder, sampler, port)
    assert names.port not in PORTS


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Wan2.1", "Wan2-1"),
        ("2wan", "Model-2wan"),
        ("", "Wan2-1"),
        ("../../etc", "etc"),
        ("-x", "x"),
        ("模型", "Wan2-1"),
        ("a b", "a-b"),
        ("x\n", "x"),
    ],
)
def test_a_name_that_will_not_do_is_refused_with_one_that_will(name: str, hint: str) -> None:
    with pytest.raises(BadInput) as caught:
        name_parts(name)
    assert str(caught.value) == (
        f"cannot name a port {name!r}\n"
        "  expected: a letter, then letters, digits, - and _; at most 64 of them\n"
        f"  try: {hint}"
    )
    assert name_parts(hint).model == hint


def test_a_name_that_is_too_long_is_refused_and_cut() -> None:
    with pytest.raises(BadInput, match=r"cannot name a port 'a{64}…'"):
        name_parts("a" * 65)
    assert name_parts("a" * 64).model == "a" * 64


# ---- classes


def test_a_class_is_found_with_and_without_its_library() -> None:
    assert classes.resolve("WanTransformer3DModel") == WAN
    assert classes.resolve(WAN) == WAN
    assert classes.resolve("T5EncoderModel") == "transformers:T5EncoderModel"


def test_a_class_that_is_not_there_gets_the_close_ones() -> None:
    with pytest.raises(NotFound) as caught:
        classes.resolve("diffusers:wantransformer3dmodell")
    first, second, third = str(caught.value).splitlines()
    assert first == "diffusers has no class wantransformer3dmodell"
    assert second == "  expected: the name of a class, as its library spells it"
    assert third.startswith("  try: diffusers:WanTransformer3DModel, diffusers:")
    with pytest.raises(NotFound) as caught:
        classes.resolve("qqqqqqqqqqqq")
    assert str(caught.value) == (
        "diffusers and transformers have no class qqqqqqqqqqqq\n"
        "  expected: the name of a class, as its library spells it\n"
        "  try: diffusers:FluxTransformer2DModel"
    )


def test_what_is_no_class_is_refused() -> None:
    with pytest.raises(NotFound, match="diffusers has no class __version__"):
        classes.resolve("diffusers:__version__")
    with pytest.raises(BadInput) as caught:
        classes.resolve("diffusers:Wan; import os")
    assert str(caught.value) == (
        "cannot read the class 'diffusers:Wan; import os'\n"
        "  expected: ClassName or library:ClassName\n"
        "  try: diffusers:FluxTransformer2DModel"
    )
    with pytest.raises(MissingDependency) as missing:
        classes.resolve("nosuchlibrary:Model")
    assert str(missing.value) == (
        "cannot look into 'nosuchlibrary': No module named 'nosuchlibrary'\n"
        "  expected: a library that can be imported\n"
        "  try: pip install 'nosuchlibrary'"
    )


@pytest.mark.parametrize(
    ("model", "cls"),
    [
        ("Flux", FLUX),
        ("flux-1-dev", FLUX),
        ("Flux2", "diffusers:Flux2Transformer2DModel"),
        ("Wan22", WAN),
        ("SDXL-turbo", "diffusers:UNet2DConditionModel"),
        ("HunyuanVideo15", "diffusers:HunyuanVideo15Transformer3DModel"),
        ("MyModel", None),
    ],
)
def test_the_name_of_a_port_tells_its_class(model: str, cls: str | None) -> None:
    assert classes.guess(model) == cls


def test_the_port_a_pack_starts_from_is_that_of_its_class() -> None:
    assert [port_of(WAN, name) for name in ("Wan", "Wan-2_2", "wan22-fast")] == [
        *("wan21", "wan22", "wan22"),
    ]
    assert port_of(QWEN, "QwenImage") is None


# ---- the files


@pytest.mark.parametrize("cls", [FLUX, WAN, QWEN, MADE_UP])
def test_every_file_is_whole_and_short(cls: str) -> None:
    files = render(name_parts("My-Model"), cls)
    assert tuple(files) == FILES
    for name, text in files.items():
        assert "$$" not in text
        assert not any(line.endswith(("#video", "#picture", "#new")) for line in text.split("\n"))
        assert max(map(len, text.splitlines())) <= 100 or name == "README.md"
        if name.endswith(".py"):
            ast.parse(text)
            assert ast.get_docstring(ast.parse(text)) is not None
    assert len(files["port.py"].splitlines()) <= 25
    assert len(files["nodes.py"].splitlines()) < 170
    project = tomllib.loads(files["pyproject.toml"])
    assert project["project"]["name"] == "comfyui-my-model-tpu"
    assert set(project["tool"]["comfy"]) == {
        *("PublisherId", "DisplayName", "Icon", "requires-comfyui"),
    }


def test_only_a_video_model_has_frames_and_their_rate() -> None:
    names = name_parts("X")
    assert "num_frames" not in str(render(names, FLUX))
    assert "fps" not in str(render(names, QWEN))
    nodes = render(names, WAN)["nodes.py"]
    assert '"num_frames": ("INT", {"default": 81' in nodes
    assert 'RETURN_TYPES = ("IMAGE", "FLOAT")' in nodes


def test_the_test_of_a_pack_needs_the_standard_library_alone() -> None:
    tree = ast.parse(render(name_parts("X"), WAN)["test_comfyui_api.py"])
    imported = {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported < sys.stdlib_module_names
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


# ---- writing


def test_a_pack_is_written_where_it_should_be(tmp_path: Path) -> None:
    pack = new("Wan21", out=tmp_path)
    assert pack.folder == tmp_path / "ComfyUI-Wan21-TPU"
    assert (pack.cls, pack.chosen) == (WAN, "guessed")
    assert not pack.in_comfyui
    assert pack.nodes == ("Wan21TextEncoder", "Wan21Sampler", "Wan21VAEDecoder", "Wan21Pipeline")
    assert texts(pack.folder) == render(name_parts("Wan21"), WAN)
    assert [one.name for one in tmp_path.iterdir()] == ["ComfyUI-Wan21-TPU"]


def test_a_class_that_is_named_wins_and_one_that_nobody_knows_is_flux(tmp_path: Path) -> None:
    given = new("Flux", "QwenImageTransformer2DModel", tmp_path)
    assert (given.cls, given.chosen) == (QWEN, "given")
    none = new("MyModel", out=tmp_path)
    assert (none.cls, none.chosen) == (FLUX, "none fits")


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "ComfyUI-Flux-TPU"
    folder.mkdir()
    (folder / "nodes.py").write_text("mine")
    with pytest.raises(BadInput) as caught:
        new("Flux", out=tmp_path)
    assert str(caught.value) == (
        f"cannot write {str(folder)!r}: there is such a folder\n"
        "  expected: a name that is free\n"
        "  try: --force (replaces the files of the scaffold, leaves all others), or another name"
    )
    assert texts(folder) == {"nodes.py": "mine"}


def test_force_replaces_the_files_of_the_scaffold_and_no_others(tmp_path: Path) -> None:
    folder = tmp_path / "ComfyUI-Flux-TPU"
    folder.mkdir()
    (folder / "nodes.py").write_text("old")
    (folder / "mine.txt").write_text("mine")
    new("Flux", out=tmp_path, force=True)
    assert texts(folder) == render(name_parts("Flux"), FLUX) | {"mine.txt": "mine"}


def test_what_is_no_folder_is_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "ComfyUI-Flux-TPU"
    target.write_text("a file")
    with pytest.raises(BadInput) as caught:
        new("Flux", out=tmp_path, force=True)
    assert str(caught.value) == (
        f"cannot write {str(target)!r}: there is something of that name that is no folder\n"
        "  expected: a name that is free"
    )
    with pytest.raises(BadInput) as caught:
        new("Flux", out=tmp_path / "none")
    assert str(caught.value) == (
        f"cannot write into {str(tmp_path / 'none')!r}: there is no such folder\n"
        "  expected: a folder that exists, such as ComfyUI/custom_nodes"
    )


def test_a_folder_that_cannot_be_written_to_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BadInput) as caught:
        new("Flux", FLUX, tmp_path)
    assert str(caught.value) == (
        f"cannot write {str(tmp_path / 'ComfyUI-Flux-TPU')!r}: No space left on device\n"
        "  expected: a folder to write into"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
def test_ctrl_c_at_any_line_leaves_a_whole_pack_or_none(there: bool, tmp_path: Path) -> None:
    files = {str(writing.__file__)}
    wanted = render(name_parts("Flux"), FLUX)
    old = dict.fromkeys(wanted, "old") if there else None
    source = Path(str(writing.__file__)).read_text().splitlines()
    run = tmp_path / "count"
    lines = lines_of(lambda: new("Flux", FLUX, _prepared(run, old), force=True), files)
    for at, (_, line) in enumerate(lines):
        run = tmp_path / str(at)
        out = _prepared(run, old)
        with pytest.raises(KeyboardInterrupt), CtrlC(files, at):
            new("Flux", FLUX, out, force=True)
        folder = out / "ComfyUI-Flux-TPU"
        assert (texts(folder) if folder.exists() else None) in (old, wanted), line
        if "rmtree" not in source[line - 1]:  # broken off while tidying up
            assert [one.name for one in out.iterdir()] in ([], [folder.name]), line


def _prepared(out: Path, old: dict[str, str] | None) -> Path:
    folder = out / "ComfyUI-Flux-TPU"
    out.mkdir()
    if old is not None:
        folder.mkdir()
        for name, text in old.items():
            (folder / name).write_text(text)
    return out


# ---- the pack in Python, loaded as ComfyUI does

LOADER = """
import importlib.util, json, sys
folder = sys.argv[1]
name = folder.replace(".", "_x_")
spec = importlib.util.spec_from_file_location(name, folder + "/__init__.py")
pack = importlib.util.module_from_spec(spec)
sys.modules[name] = pack
spec.loader.exec_module(pack)
"""

LOOKED_AT = """
import jax
from holdfast.xla import PORTS
nodes = {
    key: [cls.CATEGORY, cls.FUNCTION, callable(getattr(cls, cls.FUNCTION)), cls.RETURN_TYPES,
          cls.INPUT_TYPES()]
    for key, cls in pack.NODE_CLASS_MAPPINGS.items()
}
own = pack.port.PORT
print(json.dumps({
    "nodes": nodes, "shown": pack.NODE_DISPLAY_NAME_MAPPINGS, "port": own.name,
    "network": PORTS[own.name].network,
    "started": bool(jax._src.xla_bridge._backends),
    "attention": hasattr(__import__(name + ".splash_attention", fromlist=["x"]), "attention"),
}))
"""


def in_python(folder: Path, program: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", LOADER + program, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("model", "cls"), [("Wan21", WAN), ("Qwen.Image", QWEN)])
@pytest.mark.slow
def test_a_pack_is_imported_as_comfyui_does_it(model: str, cls: str, tmp_path: Path) -> None:
    out = tmp_path / "custom.nodes"  # ComfyUI writes _x_ for the dots of a path
    out.mkdir()
    model = model.replace(".", "-")
    pack = new(model, cls, out)
    found = in_python(pack.folder, LOOKED_AT)
    assert tuple(found["nodes"]) == tuple(found["shown"]) == pack.nodes
    assert (found["port"], found["network"]) == (f"{model.lower()}-tpu", cls)
    assert found["attention"]
    assert not found["started"]  # JAX takes no device when ComfyUI starts
    for category, function, is_there, returned, inputs in found["nodes"].values():
        assert category == f"TPU/{model}"
        assert function
        assert is_there
        assert set(inputs) <= {"required", "optional"}
        assert all(isinstance(one, list) for group in inputs.values() for one in group.values())
        assert returned[0] in (f"{pack.nodes[0][:-11]}_EMBEDS", "LATENT", "IMAGE")
    sampler = found["nodes"][pack.nodes[1]][4]["required"]
    frames = ["num_frames"] if cls == WAN else []
    assert list(sampler) == ["embeds", "height", "width", *frames, "steps", "guidance", "seed"]


RULES = """
from holdfast.pipeline.devices.xla_device import find_port
parts = (pack.port.PORT, pack.port.PORT.parts["vae"])
rules = (pack.utils.TRANSFORMER_SHARDINGS, pack.utils.VAE_DECODER_SHARDINGS)
found = [find_port(part.build()).rules is one for part, one in zip(parts, rules, strict=True)]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_rules_of_a_pack_are_those_that_a_model_is_split_by(tmp_path: Path) -> None:
    assert in_python(new("Wan21", WAN, tmp_path).folder, RULES) == [True, True]


DRAWN = """
import torch
pack.utils = sys.modules[name + ".utils"]
pack.utils.DEVICE = sys.argv[2]
encoder, sampler, decoder, whole = (cls() for cls in pack.NODE_CLASS_MAPPINGS.values())
sampling = dict(height=0, width=0, steps=2, guidance=-1.0, seed=3)
with torch.inference_mode():  # as ComfyUI runs nodes
    embeds, = encoder.encode("a handwritten seven", model_id=sys.argv[3])
    samples, = sampler.sample(embeds, **sampling)
    images = decoder.decode(samples)[0]
    again = whole.generate("a handwritten seven", model_id=sys.argv[3], **sampling)[0]
base = type(encoder).__mro__[1]
print(json.dumps({
    "shape": list(images.shape), "dtype": str(images.dtype), "device": str(images.device),
    "low": images.min().item(), "high": images.max().item(), "same": torch.equal(images, again),
    "one": base._cached_model is not None and all(
        one._get_or_create_model(sys.argv[3]) is base._cached_model for one in (encoder, whole)),
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "model", "device", "frames"),
    [(FLUX, "tiny-flux", "xla", 1), (WAN, "tiny-wan", "cpu", 5)],
)
def test_the_nodes_of_a_pack_draw(
    cls: str, model: str, device: str, frames: int, tmp_path: Path
) -> None:
    pack = new("My", cls, tmp_path)
    program = DRAWN.replace("sys.argv[2]", repr(device)).replace("sys.argv[3]", repr(model))
    if frames > 1:
        program = program.replace("seed=3", f"seed=3, num_frames={frames}")
    found = in_python(pack.folder, program)
    assert (found["shape"][0], found["shape"][3]) == (frames, 3)
    assert (found["dtype"], found["device"]) == ("torch.float32", "cpu")
    assert 0 <= found["low"] < found["high"] <= 1
    assert found["same"]
    assert found["one"]

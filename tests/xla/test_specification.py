"""The code of specification 001 as it stands there, with its imports changed.

Its files make a pack as ComfyUI would load it, twice: with Holdfast's helpers in the place of its
own, and with its own on Holdfast's torchax. Where the document leaves something to the reader
(`load_model`, `model(...)`, rules for the model, a line "JAX implementation"), that is filled in.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest
import torch
from torch import nn

from holdfast.xla import TorchaxEnvManager, tiny
from holdfast.xla.env import is_enabled
from tests.xla.specification_001 import INIT, MANAGER, NODE, OPERATORS, UTILS

pytestmark = pytest.mark.xla

OURS = """
from holdfast.xla import (
    TorchaxContext, TorchaxEnvManager, move_module_to_xla, shard_weight_dict, torchax
)
from jax.sharding import PartitionSpec as P
from . import mesh
from .model import load_model
"""
THEIRS = """
import functools
import torch
from holdfast.xla import ops_registry, torchax
from . import mesh
from .model import load_model
from .utils import P, move_module_to_xla, shard_weight_dict
"""
RULES = r"""
SHARDINGS = {r".*to_[qkv]\.weight": P("tp", None), r".*\.0\.weight": P("tp", None)}
"""
UNFLATTEN = (
    "shape, dim = list(jinput.shape), dim % jinput.ndim; "
    "result = jinput.reshape(*shape[:dim], *sizes, *shape[dim + 1 :])"
)
RUN = "result = model(**ctx.env.to_xla(load_model.inputs()))"


class Small(nn.Module):
    """A model that needs an operator of the document's list."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).unflatten(1, (2, 8)).chunk(2, dim=1)[0]


class Noise(nn.Module):
    """A transformer whose answer is a tensor."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, **inputs: Any) -> torch.Tensor:
        return self.transformer(**inputs, return_dict=False)[0]


class Loading:
    """`load_model`, which says what it found enabled."""

    def __init__(self, make: Callable[[], nn.Module], inputs: dict[str, torch.Tensor]) -> None:
        self.make = make
        self._inputs = inputs
        self.was_enabled: list[bool] = []

    def __call__(self, model_id: str) -> nn.Module:
        self.was_enabled.append(is_enabled(TorchaxEnvManager.get_env()))
        return self.make()

    def inputs(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self._inputs.items()}


def small() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    return Small().eval(), {"x": torch.randn(3, 16)}


def flux() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    made = tiny.make("diffusers:FluxTransformer2DModel")
    inputs = {name: one for name, one in made.inputs().items() if isinstance(one, torch.Tensor)}
    return Noise(made.module), inputs


def filled(block: str) -> str:
    return block.replace("result = model(...)", RUN).replace("# ... JAX 实现 ...", UNFLATTEN)


def load(folder: Path, nodes: str, load_model: Loading) -> ModuleType:
    """The pack, as ComfyUI loads one."""
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "utils.py").write_text(UTILS)
    (folder / "nodes.py").write_text(nodes)
    name = "pack_of_the_specification"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    pack = sys.modules[name] = importlib.util.module_from_spec(spec)
    model = sys.modules[f"{name}.model"] = ModuleType(f"{name}.model")
    vars(model)["load_model"] = load_model
    spec.loader.exec_module(pack)
    return pack


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The document makes folders, sets variables, and overrides operators for good."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    table: dict[Any, Any] = vars(TorchaxEnvManager.get_env())["_ops"]
    before = dict(table)
    yield
    table.clear()
    table |= before
    for name in [one for one in sys.modules if one.startswith("pack_of_the_specification")]:
        del sys.modules[name]


def in_worker(function: Callable[[], Any]) -> Any:
    """In a thread under inference mode, as ComfyUI runs nodes."""
    found: list[Any] = []

    def work() -> None:
        try:
            with torch.inference_mode():
                found.append(function())
        except BaseException as exc:  # noqa: BLE001  (raised again below)
            found.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def error(found: torch.Tensor, right: torch.Tensor) -> float:
    return ((found - right).abs().max() / right.abs().max()).item()


PACKS = {
    "with Holdfast's helpers": f"{OURS}{RULES}{NODE}",
    "with its own helpers": f"{THEIRS}{RULES}{OPERATORS}{MANAGER}{NODE}",
}


@pytest.mark.parametrize("model", [small, pytest.param(flux, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pack", PACKS)
def test_pack_gives_what_torch_gives(
    tmp_path: Path, pack: str, model: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    module, inputs = model()
    with torch.no_grad():
        right = module(**{name: one.clone() for name, one in inputs.items()})
    load_model = Loading(lambda: module, inputs)
    nodes = load(tmp_path / "pack", filled(PACKS[pack]), load_model).NODE_CLASS_MAPPINGS

    def run() -> list[torch.Tensor]:
        node = nodes["MyTPUNode"]()
        (first,) = node.generate("a prompt", 64, 64, 2, 0)
        (second,) = node.generate("a prompt", 64, 64, 2, 0)
        return [first.cpu(), second.cpu()]

    for found in in_worker(run):
        assert error(found, right) < 1e-5
    assert load_model.was_enabled == [False]
    assert not is_enabled(TorchaxEnvManager.get_env())
    printed = capsys.readouterr().out
    assert f"Created Mesh: tp={len(jax.devices())}" in printed
    assert "0 split" not in printed


def test_model_is_loaded_with_torchax_paused_when_it_was_on(tmp_path: Path) -> None:
    module, inputs = small()
    load_model = Loading(lambda: module, inputs)
    pack = load(tmp_path / "pack", filled(PACKS["with its own helpers"]), load_model)
    nodes = sys.modules[f"{pack.__name__}.nodes"]

    def run() -> bool:
        nodes.TorchaxEnvManager.get_env(nodes.mesh)  # its own enables for good
        nodes.MyTPUNode().generate("a prompt", 64, 64, 2, 0)
        return is_enabled(TorchaxEnvManager.get_env())

    assert in_worker(run)
    assert load_model.was_enabled == [False]


def test_pause_ends_when_loading_raises(tmp_path: Path) -> None:
    def broken() -> nn.Module:
        raise FileNotFoundError("no such model")

    pack = load(tmp_path / "pack", filled(PACKS["with Holdfast's helpers"]), Loading(broken, {}))
    nodes = sys.modules[f"{pack.__name__}.nodes"]

    def run() -> bool:
        with nodes.TorchaxContext():
            with pytest.raises(FileNotFoundError):
                nodes.MyTPUNode().generate("a prompt", 64, 64, 2, 0)
            return is_enabled(TorchaxEnvManager.get_env())

    assert in_worker(run)


def test_override_of_the_document_is_used(tmp_path: Path) -> None:
    source = filled(
        f"import functools\nimport torch\nfrom holdfast.xla import ops_registry\n{OPERATORS}"
    )
    names: dict[str, Any] = {}
    exec(source.replace("return env", "seen.append(1); return env"), names)
    names["seen"] = []
    env = TorchaxEnvManager.get_env()
    names["_register_operators_on_env"](env, None)
    with torch.inference_mode(), env:
        found = env.to_xla(torch.arange(6.0)).unflatten(0, (2, 3))
    assert found.cpu().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert names["seen"] == [1]

"""Find the files of a model by its name: built-in, diffusers folder, single file or hub id.

Only file headers are read; needs no torch.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.base.errors import BadInput, NotFound, Unsupported
from holdfast.base.files import read_json_object
from holdfast.base.registry import Entry, Registry
from holdfast.pipeline.run.families import BY_PIPELINE_CLASS
from holdfast.residency.files.checkpoint import read_header

BUILT_IN = Path(__file__).parents[1] / "models"
LIBRARIES = ("diffusers", "transformers")

# Imported only for models of that kind.
_WAYS: Registry[ModuleType] = Registry(
    "way to a model",
    {
        "single file": Entry("holdfast.pipeline.model.single_file", extra="run"),
        "hub": Entry("holdfast.pipeline.model.hub", extra="run"),
    },
)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_STEMS = ("diffusion_pytorch_model", "model")
_CONFIGS = ("config.json", "scheduler_config.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a model: a network with weights, a tokenizer or a scheduler."""

    name: str
    library: str
    class_name: str
    folder: Path
    weights: tuple[Path, ...] = ()
    variant: str | None = None

    @property
    def is_network(self) -> bool:
        """Whether it has a configuration of layers, and so weights."""
        return (self.folder / "config.json").is_file()


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a model.

    `single` is a file with the components named in `in_single`; the others come from the model
    `completed_from`.
    """

    model: str
    family: str
    folder: Path
    components: dict[str, Component]
    options: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    single: Path | None = None
    in_single: tuple[str, ...] = ()
    completed_from: str | None = None

    def elements(self) -> dict[str, int]:
        """Elements of each network; all of a single file count for its first component.

        Raises BadInput for a truncated file.
        """
        files = {
            name: component.weights
            for name, component in self.components.items()
            if component.is_network and name not in self.in_single
        }
        if self.single is not None:
            files[self.in_single[0]] = (self.single,)
        return {
            name: sum(tensor.elements for file in paths for tensor in read_header(file).values())
            for name, paths in files.items()
        }

    def configs(self) -> dict[str, dict[str, Any]]:
        """The configurations of all networks."""
        return {
            name: read_json_object(component.folder / "config.json")
            for name, component in self.components.items()
            if component.is_network
        }


def built_in() -> dict[str, str]:
    """The models that come with Holdfast: name to one-line summary."""
    names = sorted(folder.parent.name for folder in BUILT_IN.glob("*/model_index.json"))
    return {name: about(BUILT_IN / name).get("summary", "") for name in names}


def about(folder: Path) -> dict[str, Any]:
    """The optional holdfast.json of a model folder: `summary`, `defaults`."""
    file = folder / "holdfast.json"
    return read_json_object(file) if file.is_file() else {}


def locate(model: str, config: str | None = None) -> Source:
    """Find the files of `model`; `config` names the folder that completes a single file.

    Raises NotFound for an unknown name, BadInput for files that cannot be used,
    Unsupported for a kind of model that Holdfast does not draw.
    """
    if model in built_in():
        return _refuse_config(read_folder(BUILT_IN / model, model), config)
    try:
        path = Path(model).expanduser()
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, RuntimeError, ValueError):  # far too long, an unknown ~user, a zero byte
        raise _not_found(model) from None
    if is_file:
        return _WAYS["single file"].locate(path, config)
    if is_folder:
        return _refuse_config(read_folder(path, model), config)
    if _HUB_ID.fullmatch(model) and path.suffix != ".safetensors":
        return _refuse_config(read_folder(_WAYS["hub"].fetch(model), model), config)
    raise _not_found(model)


def _refuse_config(source: Source, config: str | None) -> Source:
    if config is not None:
        raise BadInput(
            f"cannot use config={config!r} with {source.model!r}: it is complete by itself",
            expected="a config only with a single safetensors file",
        )
    return source


def read_folder(folder: Path, model: str) -> Source:
    """Read and check a folder in diffusers layout."""
    index = _index(folder)
    name = index.get("_class_name")
    if not isinstance(name, str) or name not in BY_PIPELINE_CLASS:
        raise Unsupported(
            f"cannot draw with {model!r}: its pipeline is {name!r}",
            expected=f"one of {', '.join(BY_PIPELINE_CLASS)}",
        )
    public = {k: v for k, v in index.items() if not k.startswith("_")}
    options = {k: v for k, v in public.items() if not isinstance(v, list | dict)}
    parts = {k: v for k, v in public.items() if isinstance(v, list) and any(v)}
    components = {part: _component(folder, part, where) for part, where in parts.items()}
    defaults = about(folder).get("defaults", {})
    if not isinstance(defaults, dict):
        raise BadInput(
            f"cannot use the holdfast.json of {str(folder)!r}: its defaults are {defaults!r}",
            expected='an object such as {"steps": 20}',
        )
    return Source(model, BY_PIPELINE_CLASS[name], folder, components, options, defaults)


def _index(folder: Path) -> dict[str, Any]:
    file = folder / "model_index.json"
    if file.is_file():
        return read_json_object(file)
    files = sorted(folder.glob("*.safetensors"))
    raise BadInput(
        f"cannot load {str(folder)!r}: there is no model_index.json in it",
        expected="a folder in diffusers layout",
        hint=f"the file itself: {files[0]}" if files else None,
    )


def _component(folder: Path, name: str, where: list[Any]) -> Component:
    if len(where) != 2 or not all(isinstance(word, str) for word in where):
        raise BadInput(
            f"cannot load {str(folder)!r}: its model_index.json says {where!r} for {name!r}",
            expected="the names of a library and a class",
        )
    library, class_name = where
    if library not in LIBRARIES:
        raise Unsupported(
            f"cannot load {name!r} of {str(folder)!r}: it wants code from {library!r}",
            expected=f"components from {' and '.join(LIBRARIES)} alone",
        )
    place = folder / name
    if not any((place / config).is_file() for config in _CONFIGS):
        raise BadInput(
            f"cannot load {str(folder)!r}: its {name!r} has no configuration",
            expected=f"one of {', '.join(_CONFIGS)} in {str(place)!r}",
            hint="copy or download the whole model again",
        )
    if not (place / "config.json").is_file():
        return Component(name, library, class_name, place)
    plain = _weights(place, None)
    variant = None if plain else "fp16"
    weights = plain or _weights(place, variant)
    return Component(name, library, class_name, place, weights, variant if weights else None)


def _weights(place: Path, variant: str | None) -> tuple[Path, ...]:
    """The safetensors files of a network; empty for a folder with only configurations."""
    ending = "safetensors" if variant is None else f"{variant}.safetensors"
    indices = [f"safetensors.index{'' if variant is None else f'.{variant}'}.json"]
    indices.append(f"{ending}.index.json")
    for stem in _STEMS:
        for name in indices:
            if (place / f"{stem}.{name}").is_file():
                parts = read_json_object(place / f"{stem}.{name}").get("weight_map", {})
                return tuple(place / part for part in sorted(set(parts.values())))
        if (place / f"{stem}.{ending}").is_file():
            return (place / f"{stem}.{ending}",)
    return ()


def require_weights(source: Source) -> None:
    """Raise BadInput if a network has no weight files, or one of them is truncated."""
    for component in source.components.values():
        if component.is_network and component.name not in source.in_single:
            if not component.weights:
                raise BadInput(
                    f"cannot load {source.model!r}: its {component.name!r} has no weights",
                    expected=f"a .safetensors file in {str(component.folder)!r}",
                    hint=_other_weights(component.folder),
                )
            for file in component.weights:
                read_header(file)


def list_weights(source: Source) -> list[Path]:
    """All weight files, in the order they are loaded: that of the stages, as the index has them."""
    files = [file for component in source.components.values() for file in component.weights]
    return files if source.single is None else [source.single, *files]


def _other_weights(place: Path) -> str | None:
    others = sorted(file.name for kind in ("*.bin", "*.ckpt", "*.pt") for file in place.glob(kind))
    if not others:
        return "copy or download the whole model again"
    return f"convert {others[0]} to safetensors; pickled weights can run code and are not loaded"


def _not_found(model: str) -> NotFound:
    names = list(built_in())
    close = difflib.get_close_matches(model, names, n=1)
    short = model if len(model) <= 200 else f"{model[:197]}..."
    if Path(model).suffix == ".safetensors" or "/" in model or "\\" in model:
        what = f"cannot find model {short!r}: there is no such file or folder"
    else:
        what = f"cannot find model {short!r}"
    return NotFound(
        what,
        expected=f"one of {', '.join(names)}, a diffusers folder, a .safetensors file or a hub id",
        hint=close[0] if close else None,
    )

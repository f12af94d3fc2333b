"""Find the class that a port is of, by `ClassName`, `library:ClassName` or the name of the port.

Suggests close names for one that does not exist. No model is made.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from dataclasses import dataclass
from types import ModuleType

from holdfast.base.errors import BadInput, HoldfastError, MissingDependency, NotFound
from holdfast.base.interrupts import run_uninterrupted

LIBRARIES = ("diffusers", "transformers")
DEFAULT_CLASS = "diffusers:FluxTransformer2DModel"
_GIVEN = re.compile(r"(?:([A-Za-z_]\w*(?:\.\w+)*):)?([A-Za-z_]\w*)")
_ALIASES = {"sdxl": "diffusers:UNet2DConditionModel", "sd3": "diffusers:SD3Transformer2DModel"}


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """Default generation settings of a model class."""

    model_id: str
    height: int = 1024
    width: int = 1024
    steps: int = 50
    guidance: float = 4.0
    num_frames: int = 1
    fps: int = 16


_KNOWN = {
    "FluxTransformer2DModel": ModelDefaults("black-forest-labs/FLUX.1-dev", steps=28, guidance=3.5),
    "UNet2DConditionModel": ModelDefaults("stabilityai/stable-diffusion-xl-base-1.0", guidance=5.0),
    "WanTransformer3DModel": ModelDefaults(
        "Wan-AI/Wan2.1-T2V-14B-Diffusers", 480, 832, guidance=5.0, num_frames=81
    ),
}


def resolve(name: str) -> str:
    """`library:ClassName` for a class that is there; without a library, where it is first found.

    Raises BadInput, NotFound with the close names, MissingDependency.
    """
    given = _GIVEN.fullmatch(name)
    if given is None:
        raise BadInput(
            f"cannot read the class {name!r}",
            expected="ClassName or library:ClassName",
            hint=DEFAULT_CLASS,
        )
    library, cls = given.groups()
    libraries = LIBRARIES if library is None else (library,)
    for one in libraries:
        if inspect.isclass(getattr(_module(one), cls, None)):
            return f"{one}:{cls}"
    raise NotFound(
        f"{' and '.join(libraries)} {'have' if len(libraries) > 1 else 'has'} no class {cls}",
        expected="the name of a class, as its library spells it",
        hint=", ".join(_close(cls, libraries)) or DEFAULT_CLASS,
    )


def guess(model: str) -> str | None:
    """The class that a port of this name is likely of: Wan22 is a WanTransformer3DModel.

    None where no class of diffusers begins like it.
    """
    word = re.sub("[-_]", "", model).lower()
    for alias, name in _ALIASES.items():
        if word.startswith(alias):
            return name
    stems = {stem: cls for cls in dir(_module("diffusers")) if (stem := _stem(cls))}
    fits = [stem for stem in stems if word.startswith(stem)]
    return f"diffusers:{stems[max(fits, key=len)]}" if fits else None


def draws_videos(name: str) -> bool:
    """Whether a class is for videos, as far as its name tells."""
    return "3D" in name and "Image" not in name


def defaults_for(name: str, model: str) -> ModelDefaults:
    """The default settings for a class."""
    known = _KNOWN.get(name.partition(":")[2])
    if known is not None:
        return known
    if draws_videos(name):
        return ModelDefaults(f"path/to/{model}", 480, 832, num_frames=81)
    return ModelDefaults(f"path/to/{model}")


def _stem(cls: str) -> str:
    """ "flux" of FluxTransformer2DModel; nothing for what is no transformer."""
    found = re.fullmatch(r"(\w+?)Transformer\d?D?Model", cls)
    return found[1].lower() if found else ""


def _close(cls: str, libraries: tuple[str, ...]) -> list[str]:
    """Names like this one, at most five, however they are spelled in upper and lower case."""
    known = {
        name.lower(): f"{library}:{name}"
        for library in reversed(libraries)
        for name in dir(_module(library))
        if name[:1].isupper()
    }
    return [known[one] for one in difflib.get_close_matches(cls.lower(), known, n=5, cutoff=0.6)]


def _module(library: str) -> ModuleType:
    try:
        return run_uninterrupted(lambda: importlib.import_module(library))
    except HoldfastError:
        raise
    except ImportError as exc:
        extra = "holdfast[xla,run]" if library in LIBRARIES else library
        raise MissingDependency(
            f"cannot look into {library!r}: {exc}",
            expected="a library that can be imported",
            hint=f"pip install '{extra}'",
        ) from exc

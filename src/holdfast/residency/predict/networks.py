"""Finds the networks of a folder or file, and builds them without their weights.

Reads configurations, headers and a sample of half a megabyte of weights.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.base.errors import BadInput, Unsupported
from holdfast.base.files import read_json_object
from holdfast.base.interrupts import is_interrupt, run_uninterrupted
from holdfast.residency.files.checkpoint import BITS, TensorInfo, read_header
from holdfast.residency.files.loading import kept_in_fp32
from holdfast.residency.files.tensors import DTYPES
from holdfast.residency.predict.recognise import guess
from holdfast.residency.predict.shadow import build_on_meta

_LIBRARIES = ("diffusers", "transformers")
_DTYPES = {name: DTYPES[name] for name in ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")}
_SAMPLES = 8
_SAMPLE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Network:
    """A network on disk. `class_name` and `config` are None if only its weights are known.

    `guessed` means that the configuration was derived from the shapes of its tensors.
    """

    name: str
    class_name: str | None
    library: str
    config: dict[str, Any] | None
    files: tuple[Path, ...]
    guessed: bool = False

    def tensors(self) -> dict[str, TensorInfo]:
        """Its tensors, from the headers of its files."""
        return {name: info for file in self.files for name, info in read_header(file).items()}

    def stored(self) -> torch.dtype | None:
        """The dtype of most of its bytes; None without files."""
        sizes: Counter[str] = Counter()
        for info in self.tensors().values():
            sizes[info.dtype] += info.elements * BITS.get(info.dtype, 0)
        common = [dtype for dtype, _ in sizes.most_common() if dtype in _DTYPES]
        return _DTYPES[common[0]] if common else None

    def sample(self) -> torch.Tensor | None:
        """Some bytes of its largest tensors in the stored dtype; None without files."""
        name = next((n for n, dtype in _DTYPES.items() if dtype == self.stored()), None)
        parts = list(_read_samples(self.files, name)) if name is not None else []
        return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if parts else None

    def build(self) -> nn.Module:
        """Build the module on meta. Raises BadInput with the library's reason."""
        assert self.class_name is not None
        assert self.config is not None
        config = self.config
        package = run_uninterrupted(lambda: importlib.import_module(self.library))
        cls: Any = getattr(package, self.class_name, None)
        if cls is None:
            raise Unsupported(
                f"cannot build {self.name!r}: {self.library} has no {self.class_name!r}",
                expected=f"a model for the {self.library} that is installed",
                hint=f"pip install --upgrade {self.library}",
            )
        try:
            if self.library == "transformers":
                return build_on_meta(lambda: cls(cls.config_class.from_dict(config)))
            return build_on_meta(lambda: cls.from_config(config))
        except Exception as exc:  # a broken configuration may raise anything
            if is_interrupt(exc):
                raise
            reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
            raise BadInput(
                f"cannot build {self.name!r} from its configuration: {reason}",
                expected=f"the configuration of a {self.class_name}",
            ) from exc


def find_networks(path: Path, config: Path | None = None) -> list[Network]:
    """Find the networks of a folder, denoisers first, or of a file with that `config` folder."""
    if path.is_file():
        return [_read_single_file(path, config)]
    if (path / "model_index.json").is_file():
        found = list(_read_components(path))
        if not found:
            raise BadInput(
                f"cannot look at {str(path)!r}: none of its networks has a configuration",
                expected="a folder in diffusers layout with its networks",
            )
        return sorted(found, key=lambda network: not is_denoiser(network.name))
    if (path / "config.json").is_file():
        return [_read_network(path, path.resolve().name)]
    files = tuple(sorted(path.glob("*.safetensors"))) if path.is_dir() else ()
    if not files:
        what = "there is no model in it" if path.is_dir() else "there is no such file or folder"
        raise BadInput(
            f"cannot look at {str(path)!r}: {what}",
            expected="a diffusers folder, the folder of a network, or a .safetensors file",
        )
    return [_guess_network(path.resolve().name, files)]


def is_denoiser(name: str) -> bool:
    """Whether a component runs in every step."""
    return name.startswith(("transformer", "unet"))


def dtype_of(
    module: nn.Module, dtype: torch.dtype | None
) -> Callable[[str, torch.Tensor], torch.dtype] | None:
    """A function for the dtype of each tensor if the library loads the module as `dtype`."""
    if dtype is None:
        return None
    kept = kept_in_fp32(module, dtype)

    def of(path: str, tensor: torch.Tensor) -> torch.dtype:
        if not isinstance(tensor, nn.Parameter) or not tensor.is_floating_point():
            return tensor.dtype
        return kept(path) or dtype

    return of


def _read_components(folder: Path) -> Iterator[Network]:
    for name, where in read_json_object(folder / "model_index.json").items():
        if name.startswith("_") or not isinstance(where, list) or len(where) != 2:
            continue
        if where[0] in _LIBRARIES and (folder / name / "config.json").is_file():
            yield _read_network(folder / name, name)


def _read_network(folder: Path, name: str) -> Network:
    config = read_json_object(folder / "config.json")
    class_name, library = config.get("_class_name"), "diffusers"
    if not isinstance(class_name, str):
        named, library = config.get("architectures"), "transformers"
        class_name = str(named[0]) if isinstance(named, list) and named else None
    return Network(name, class_name, library, config, find_weight_files(folder))


def find_weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder; of several variants, the plain one."""
    files = sorted(folder.glob("*.safetensors"))
    variants = [file for file in files if file.name.endswith(".fp16.safetensors")]
    plain = [file for file in files if file not in variants]
    return tuple(plain or variants)


def _read_single_file(file: Path, config: Path | None) -> Network:
    if file.suffix != ".safetensors":
        raise BadInput(
            f"cannot look at {str(file)!r}: it is not a .safetensors file",
            expected="a diffusers folder, the folder of a network, or a .safetensors file",
        )
    around = file.absolute().parent
    if config is not None:
        known = find_networks(config)[0]  # the denoiser, if there is one
    elif (around / "config.json").is_file():
        known = _read_network(around, file.stem)
    else:
        return _guess_network(file.stem, (file,))
    return replace(known, name=file.stem, files=(file,), guessed=False)


def _guess_network(name: str, files: tuple[Path, ...]) -> Network:
    bare = Network(name, None, "diffusers", None, files)
    found = guess(bare.tensors())
    if found is None:
        return bare
    return Network(name, found[0], "diffusers", found[1], files, guessed=True)


def _read_samples(files: tuple[Path, ...], dtype: str) -> Iterator[bytes]:
    infos = [(info, file) for file in files for info in read_header(file).values()]
    plain = [(info, file) for info, file in infos if not info.is_packed]
    sizes = [(info.size_bytes, info.start, file) for info, file in plain if info.dtype == dtype]
    largest = sorted(sizes, reverse=True)
    for size, start, file in largest[:: max(1, len(largest) // _SAMPLES)][:_SAMPLES]:
        with file.open("rb", buffering=0) as opened:
            opened.seek(start)
            yield opened.read(min(size, _SAMPLE_BYTES))

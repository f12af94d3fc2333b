"""Models from a hub: only the files that are needed, and nothing when they are here already.

The one file that imports huggingface_hub, which comes with diffusers.
Promise: a model fetched before is found without a network; the hub is asked once, so that one
that does not answer costs seconds; a download that broke off goes on where it stopped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from holdfast.base.errors import HoldfastError, NotFound, Unsupported

# Copies of the same weights in other forms, which would only cost time and disk.
_SKIPPED = ["*.fp16.*", "*.non_ema.*", "*.bin", "*.msgpack", "*.onnx*", "*.h5"]
_INDEX = "model_index.json"
_ASK_S = 10

# What goes wrong on the way: OSError, and HTTPError of the library that huggingface_hub talks
# HTTP with, which is another one in each of its major versions.
_TROUBLE = tuple(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))


def fetch(model: str, *, weights: bool = True) -> Path:
    """The local folder of hub model `model`, downloaded as far as it is not here.

    Without `weights` only configurations and tokenizers. Raises NotFound, or Unsupported for a
    repository of another kind.
    """
    trouble = _ask(model)
    try:
        return _get(model, weights, local=trouble is not None)
    except (*_TROUBLE, ValueError) as exc:
        if trouble is None:
            raise _broke_off(model, exc) from exc
    raise _translated(model, trouble) from trouble


def _ask(model: str) -> Exception | None:
    """What keeps us from the hub, if anything. The hub's own functions would ask six times."""
    try:
        get_hf_file_metadata(hf_hub_url(model, _INDEX), timeout=_ASK_S)
    except (*_TROUBLE, ValueError) as exc:
        return exc
    return None


def _get(model: str, weights: bool, *, local: bool) -> Path:
    index = hf_hub_download(model, _INDEX, etag_timeout=_ASK_S, local_files_only=local)
    kinds = ["json", "txt", "model"] + (["safetensors"] if weights else [])
    wanted = [_INDEX, *(f"{part}/*.{kind}" for part in _parts(index) for kind in kinds)]
    folder = snapshot_download(
        model,
        allow_patterns=wanted,
        ignore_patterns=_SKIPPED,
        etag_timeout=_ASK_S,
        local_files_only=local,
    )
    return Path(folder)


def _parts(index: str) -> list[str]:
    """The components that an index names; what is wrong with it is for sources to say."""
    try:
        entries: Any = json.loads(Path(index).read_text(encoding="utf-8"))
    except ValueError:
        return []
    named = entries.items() if isinstance(entries, dict) else ()
    return [name for name, value in named if isinstance(value, list) and any(value)]


def _broke_off(model: str, exc: Exception) -> HoldfastError:
    return NotFound(
        f"cannot get model {model!r}: the download broke off ({_first_line(exc)})",
        expected="a network, and room on the disk, until everything is here",
        hint="the same again: what has arrived is kept",
    )


def _translated(model: str, trouble: Exception) -> HoldfastError:
    """What the hub's refusal, or its silence, means. The order is from narrow to wide."""
    if isinstance(trouble, GatedRepoError):
        return NotFound(
            f"cannot get model {model!r}: the hub gives it only to people it knows",
            expected=f"an account that has accepted the terms at {constants.ENDPOINT}/{model}",
            hint="hf auth login",
        )
    if isinstance(trouble, RepositoryNotFoundError):
        return NotFound(
            f"cannot find model {model!r} on the hub",
            expected="a repository that exists and that you may read",
            hint="check the spelling; for a private model run: hf auth login",
        )
    if isinstance(trouble, EntryNotFoundError):
        return Unsupported(
            f"cannot draw with {model!r}: there is no {_INDEX} in its repository",
            expected="a repository in diffusers layout",
        )
    return NotFound(
        f"cannot get model {model!r}: it is not here, and {_silence(trouble)}",
        expected="a network, or a model that was downloaded before",
        hint="a built-in model such as tiny-flux, or the path of a folder",
    )


def _silence(trouble: Exception) -> str:
    if isinstance(trouble, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE forbids asking the hub"
    if isinstance(trouble, HfHubHTTPError):
        return f"the hub answered {trouble.response.status_code}"
    return f"the hub at {constants.ENDPOINT} did not answer ({_first_line(trouble)})"


def _first_line(exc: Exception) -> str:
    text = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {text[0]}" if text else type(exc).__name__

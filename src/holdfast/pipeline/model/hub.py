"""Download models from the Hugging Face hub: only the needed files, and only once.

Imports huggingface_hub, which comes with diffusers. A model that was downloaded before is found
without a network. The hub is probed once, so an unreachable one costs seconds. An interrupted
download resumes.
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
from holdfast.pipeline.model.library_errors import first_line

# The same weights in other file formats.
_SKIPPED = ["*.fp16.*", "*.non_ema.*", "*.bin", "*.msgpack", "*.onnx*", "*.h5"]
_INDEX = "model_index.json"
_ASK_S = 10

# Network errors: OSError, and HTTPError of the HTTP library that huggingface_hub uses, which
# differs between its major versions.
_TROUBLE = tuple(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))


def fetch(model: str, *, weights: bool = True) -> Path:
    """Return the local folder of hub model `model`; download what is missing.

    Without `weights`, only configurations and tokenizers. Raises NotFound, or Unsupported for a
    repository that is not in diffusers layout.
    """
    trouble: Exception | None = None
    try:  # the functions of the hub's library would retry six times
        get_hf_file_metadata(hf_hub_url(model, _INDEX), timeout=_ASK_S)
    except (*_TROUBLE, ValueError) as exc:
        trouble = exc
    try:
        return _get(model, weights, local=trouble is not None)
    except (*_TROUBLE, ValueError) as exc:
        if trouble is None:
            raise NotFound(
                f"cannot get model {model!r}: the download broke off ({first_line(exc)})",
                expected="a network, and room on the disk, until everything is here",
                hint="the same again: what has arrived is kept",
            ) from exc
    raise _explain(model, trouble) from trouble


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
    """The components that an index names; `sources` reports a broken index."""
    try:
        entries: Any = json.loads(Path(index).read_text(encoding="utf-8"))
    except ValueError:
        return []
    named = entries.items() if isinstance(entries, dict) else ()
    return [name for name, value in named if isinstance(value, list) and any(value)]


def _explain(model: str, trouble: Exception) -> HoldfastError:
    """The error for `trouble`; the most specific class comes first."""
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
        f"cannot get model {model!r}: it is not here, and {_why_unreachable(trouble)}",
        expected="a network, or a model that was downloaded before",
        hint="a built-in model such as tiny-flux, or the path of a folder",
    )


def _why_unreachable(trouble: Exception) -> str:
    if isinstance(trouble, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE forbids asking the hub"
    if isinstance(trouble, HfHubHTTPError):
        return f"the hub answered {trouble.response.status_code}"
    return f"the hub at {constants.ENDPOINT} did not answer ({first_line(trouble)})"

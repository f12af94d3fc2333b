"""Names of the parts of a new port: folder, node classes and category.

Importing this needs the standard library alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.base.errors import BadInput

LONGEST = 64
_BEFORE, _AFTER = "ComfyUI-", "-TPU"
_GOOD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
NODES = ("TextEncoder", "Sampler", "VAEDecoder", "Pipeline")


@dataclass(frozen=True, slots=True)
class Names:
    """`model` is as the user wrote it; `prefix` begins the names of the node classes."""

    model: str
    prefix: str

    @property
    def folder(self) -> str:
        """Specification 001's name of the pack."""
        return f"{_BEFORE}{self.model}{_AFTER}"

    @property
    def port(self) -> str:
        """The name of the port in `PORTS`, which Holdfast's own do not have."""
        return f"{self.model}-tpu".lower()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the node classes."""
        return tuple(self.prefix + node for node in NODES)


def name_parts(name: str) -> Names:
    """The names of a port called `name`; "ComfyUI-Flux-TPU" is "Flux". Raises BadInput."""
    model = name.removeprefix(_BEFORE).removesuffix(_AFTER)
    if not _GOOD.fullmatch(model) or len(model) > LONGEST:
        short = name if len(name) <= LONGEST else f"{name[:LONGEST]}…"
        raise BadInput(
            f"cannot name a port {short!r}",
            expected=f"a letter, then letters, digits, - and _; at most {LONGEST} of them",
            hint=_suggest_name(model),
        )
    words = (word for word in re.split("[-_]+", model) if word)
    return Names(model, "".join(word[0].upper() + word[1:] for word in words))


def _suggest_name(model: str) -> str:
    """The nearest name that would do, such as Wan2-1 for "Wan2.1"."""
    fixed = re.sub("[^A-Za-z0-9_]+", "-", model).strip("-_")[:LONGEST].strip("-_")
    if not fixed:
        return "Wan2-1"
    return fixed if fixed[0].isalpha() else f"Model-{fixed}"[:LONGEST]

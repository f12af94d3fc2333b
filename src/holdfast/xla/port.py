"""A port: what has to be said about a diffusers model so that it runs on XLA.

    placed = PORTS["flux"].load("models/FLUX.1-dev/transformer")
    answer = placed(hidden_states=..., timestep=..., return_dict=False)

Covers: `Port`, `PORTS`. Leaves to others: running it (placed), files (loading), a whole model from
prompt to picture (holdfast.pipeline with device "xla").
Promise: reading a port imports its class only when it is built or loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.registry import Entry, Registry

if TYPE_CHECKING:
    from jax.sharding import Mesh
    from torch import nn

    from holdfast.xla.placed import Placed, Progress


@dataclass(frozen=True, kw_only=True)
class Port:
    """One network of a model. Only `name` and `network` have to be said.

    `rules` split weights where the derived ones are not right. `scan` has lists of equal blocks,
    each with the arguments that go from one block to the next. `static` are inputs whose values
    shapes depend on. `ops` replace operators (see `holdfast.xla.ops`). `precision` is the format
    that `load` gives the weights. `output` is which part of its answer is the prediction: a number
    or a name. `parts` are the model's other networks, by the names of their
    folders. How a sampler calls it is known to its family (`holdfast.pipeline.families`).
    """

    name: str
    network: str  # library:ClassName
    rules: Mapping[str, Any] = field(default_factory=dict)
    scan: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    static: tuple[str, ...] = ()
    ops: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    precision: str = "bf16"
    output: int | str = 0
    parts: Mapping[str, Port] = field(default_factory=dict)

    def build(self, **config: Any) -> nn.Module:
        """The network without memory, for shapes alone."""
        from holdfast.residency.prediction.shadow import built
        from holdfast.xla.tiny import class_of

        cls = class_of(self.network)
        return built(lambda: cls(**config))

    def load(
        self,
        folder: str | Path,
        *,
        mesh: Mesh | None = None,
        precision: str | None = None,
        progress: Progress | None = None,
    ) -> Placed:
        """Read weights from safetensors, each straight into its shards.

        Raises BadInput, NotFound, OutOfMemory, and whatever `progress` raises.
        """
        from holdfast.xla.loading import load

        return load(self, Path(folder), mesh, precision or self.precision, progress)

    def place(self, module: nn.Module, **options: Any) -> Placed:
        """A module that is in memory already; the options are those of `Placed`."""
        from holdfast.xla.ops import overrides
        from holdfast.xla.placed import Placed

        said = {
            "rules": self.rules,
            "scan": self.scan,
            "static": self.static,
            "overrides": overrides(self.ops),
        }
        return Placed(module, **(said | options))


PORTS: Registry[Port] = Registry(
    "port",
    {
        "flux": Entry("holdfast.xla.ports.flux:PORT", "FLUX.1", "xla"),
        "sdxl": Entry("holdfast.xla.ports.sdxl:PORT", "Stable Diffusion XL", "xla"),
        "wan21": Entry("holdfast.xla.ports.wan21:PORT", "Wan 2.1", "xla"),
        "wan22": Entry("holdfast.xla.ports.wan22:PORT", "Wan 2.2, two transformers", "xla"),
    },
)

"""A port: what a diffusers model needs to run on XLA.

    placed = PORTS["flux"].load("models/FLUX.1-dev/transformer")
    answer = placed(hidden_states=..., timestep=..., return_dict=False)

A port imports the model's class only when it is built or loaded. A whole model, from prompt to
picture, is `holdfast.pipeline` with the device "xla".
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

    from holdfast.xla.module.placed import Placed, Progress


@dataclass(frozen=True, kw_only=True)
class Port:
    """One network of a model. Only `name` and `network` are required.

    `rules` shard weights where the derived rules are wrong. `scan` names lists of equal blocks,
    each with the arguments that one block passes to the next. `static` are inputs whose values
    determine shapes. `ops` replace operators (see `holdfast.xla.ops`). `precision` is the dtype
    that `load` casts weights to. `output` is the index or name of the prediction in the network's
    output. `parts` are the model's other networks, by the names of their folders. How a sampler
    calls it is known to its family (`holdfast.pipeline.run.families`).
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
        """Build the network without memory, for its shapes."""
        from holdfast.residency.predict.shadow import build_on_meta
        from holdfast.xla.tiny import class_of

        cls = class_of(self.network)
        return build_on_meta(lambda: cls(**config))

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
        from holdfast.xla.sharding.loading import open_network

        precision = precision or self.precision
        module, read = open_network(self.name, self.network, Path(folder), precision)
        return self.place(module, mesh=mesh, read=read, progress=progress)

    def place(self, module: nn.Module, **options: Any) -> Placed:
        """Place a module that is in memory already; the options are those of `Placed`."""
        from holdfast.xla.module.placed import Placed
        from holdfast.xla.ops import overrides

        options = {
            "rules": self.rules,
            "scan": self.scan,
            "static": self.static,
            "overrides": overrides(self.ops),
            **options,
        }
        return Placed(module, **options)


PORTS: Registry[Port] = Registry(
    "port",
    {
        "flux": Entry("holdfast.xla.ports:FLUX", "FLUX.1", "xla"),
        "sdxl": Entry("holdfast.xla.ports:SDXL", "Stable Diffusion XL", "xla"),
        "wan21": Entry("holdfast.xla.ports:WAN21", "Wan 2.1", "xla"),
        "wan22": Entry("holdfast.xla.ports:WAN22", "Wan 2.2, two transformers", "xla"),
    },
)

"""Models on XLA through torchax: TPU, GPU and CPU, over one device or many.

    from holdfast import xla

    placed = xla.PORTS["flux"].load("FLUX.1-dev/transformer")   # weights straight into their shards
    noise = placed(hidden_states=x, timestep=t, ...)            # tensors of the CPU in and out

Nodes that use torchax themselves find the names of the specification here: `TorchaxContext`,
`TorchaxEnvManager`, `shard_weight_dict`, `move_module_to_xla`, and `torchax` itself, which a plain
import does not give. Names load on first use; importing this is cheap.

    arrays          CPU tensors as NumPy and JAX arrays, and back
    attention/      attention with torch's arguments: Splash, cuDNN or plain XLA
    check/          `holdfast port check`: a class on torch and on XLA, compared
    cluster/        devices: meshes, several hosts, processes that hold a device
    compat/         corrections of torchax for the installed torch
    denoising       what a sampling loop needs besides its network; no JAX
    env             torchax's environment by the specification's names
    errors          errors of JAX, XLA and torchax as Holdfast's
    module/         what a port makes of a module: `Placed`, its methods compiled and cached
    ops             torch operators as functions over JAX arrays
    port            `Port`: from a diffusers model to one placed on XLA; the registry `PORTS`
    ports           declarations of the ports: FLUX, SDXL, Wan
    sampling/       schedulers, denoising steps and the loop
    scaffold/       what `holdfast port new` writes
    sharding/       which weight is split how; placing and loading weights
    stages          text encoder, sampler and decoder of a model on XLA
    tiny/           tiny models of many classes, as data
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.base.registry import Entry, Registry

if TYPE_CHECKING:
    from torchax.ops import ops_registry

    from holdfast.xla.cluster.mesh import make_mesh
    from holdfast.xla.env import TorchaxContext, TorchaxEnvManager
    from holdfast.xla.module.cache import Programs, use_compile_cache
    from holdfast.xla.module.calls import ModuleCall
    from holdfast.xla.module.placed import Placed
    from holdfast.xla.ops import Override
    from holdfast.xla.port import PORTS, Port
    from holdfast.xla.sharding.shards import move_module_to_xla, shard_weight_dict

_HOME: dict[str, tuple[str, ...]] = {
    "module.cache": ("Programs", "use_compile_cache"),
    "module.calls": ("ModuleCall",),
    "env": ("TorchaxContext", "TorchaxEnvManager"),
    "cluster.mesh": ("make_mesh",),
    "ops": ("Override",),
    "module.placed": ("Placed",),
    "port": ("PORTS", "Port"),
    "sharding.shards": ("move_module_to_xla", "shard_weight_dict"),
}
_NAMES: Registry[Any] = Registry(
    "name",
    {
        name: Entry(f"{__name__}.{module}:{name}", extra="xla")
        for module, names in _HOME.items()
        for name in names
    },
)
# Modules of torchax. They import only with our mends, and need our environment as their default.
_OF_TORCHAX = {"torchax": "torchax", "ops_registry": "torchax.ops.ops_registry"}

__all__ = [
    "PORTS",
    "ModuleCall",
    "Override",
    "Placed",
    "Port",
    "Programs",
    "TorchaxContext",
    "TorchaxEnvManager",
    "make_mesh",
    "move_module_to_xla",
    "ops_registry",
    "shard_weight_dict",
    "use_compile_cache",
]


def __getattr__(name: str) -> Any:
    if name in _OF_TORCHAX:
        _NAMES["TorchaxContext"]  # a clear error where torchax is missing
        importlib.import_module(f"{__name__}.env").ready()
        return importlib.import_module(_OF_TORCHAX[name])
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _NAMES[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES, *_OF_TORCHAX])

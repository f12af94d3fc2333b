"""Models on XLA through torchax: TPU, GPU and CPU, over one device or many.

    from holdfast import xla

    placed = xla.PORTS["flux"].load("FLUX.1-dev/transformer")   # weights straight into their shards
    noise = placed(hidden_states=x, timestep=t, ...)            # tensors of the CPU in and out

Beside it stand the names of the specification for nodes that use torchax themselves:
`TorchaxContext`, `TorchaxEnvManager`, `shard_weight_dict`, `move_module_to_xla`, and `torchax`
itself, which a plain import does not give. Names load on first use; importing this is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.base.registry import Entry, Registry

if TYPE_CHECKING:
    from torchax.ops import ops_registry

    from holdfast.xla.cache import Programs, use_compile_cache
    from holdfast.xla.calls import Call
    from holdfast.xla.env import TorchaxContext, TorchaxEnvManager
    from holdfast.xla.mesh import make_mesh
    from holdfast.xla.ops import Override
    from holdfast.xla.placed import Placed
    from holdfast.xla.port import PORTS, Port
    from holdfast.xla.sharding import move_module_to_xla, shard_weight_dict

_HOME: dict[str, tuple[str, ...]] = {
    "cache": ("Programs", "use_compile_cache"),
    "calls": ("Call",),
    "env": ("TorchaxContext", "TorchaxEnvManager"),
    "mesh": ("make_mesh",),
    "ops": ("Override",),
    "placed": ("Placed",),
    "port": ("PORTS", "Port"),
    "sharding": ("move_module_to_xla", "shard_weight_dict"),
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
    "Call",
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

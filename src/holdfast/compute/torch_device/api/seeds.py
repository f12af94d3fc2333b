"""Seeds and states of the device's random generator.

The same seed draws the same elements on the device and on the CPU, and states have torch's own
layout: what `torch.get_rng_state()` returns can be set here, and the other way round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

from holdfast.base.errors import BadInput
from holdfast.compute import random
from holdfast.compute.torch_device.api.current_device import device_index
from holdfast.compute.torch_device.errors import Refused

# torch's state of a CPU generator: the words of a Mersenne Twister, how many are left, and the
# second element of a pair of normal ones.
_LAYOUT = numpy.dtype(
    {
        "names": ["seed", "left", "seeded", "next", "words", "normal", "has_normal"],
        "formats": ["u8", "i4", "i4", "u8", ("u8", 624), "f8", "i4"],
        "offsets": [0, 8, 12, 16, 24, 5024, 5040],
        "itemsize": 5056,
    }
)


def manual_seed(seed: int) -> None:
    """Seed the generator. Raises Refused for an invalid seed."""
    try:
        random.manual_seed(int(seed))
    except BadInput as exc:
        raise Refused(exc.what, expected=exc.expected) from exc


manual_seed_all = manual_seed  # all devices share one generator


def seed() -> int:
    """Seed the generator at random; return the seed."""
    return random.seed()


def seed_all() -> None:
    """`seed`: all devices share one generator."""
    random.seed()


def initial_seed() -> int:
    """The seed in use."""
    return random.initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """The generator's state, as bytes on the CPU."""
    device_index(device)
    return pack(random.get_state())


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Restore a state of `get_rng_state` or `torch.get_rng_state`. Raises Refused."""
    device_index(device)
    if not isinstance(new_state, torch.Tensor):
        raise Refused(
            f"a {type(new_state).__name__} is no state of a generator",
            expected="a tensor: what get_rng_state() returned",
        )
    if new_state.dtype != torch.uint8 or new_state.numel() != _LAYOUT.itemsize:
        raise Refused(
            f"{new_state.numel()} numbers of {new_state.dtype} are no state of a generator",
            expected=f"{_LAYOUT.itemsize} numbers of torch.uint8: what get_rng_state() returned",
        )
    try:
        random.set_state(unpack(new_state.cpu().contiguous()))
    except BadInput as exc:
        raise Refused(exc.what, expected="what get_rng_state() returned") from exc


@contextlib.contextmanager
def using_state(state: torch.Tensor) -> Iterator[None]:
    """Draw from a saved state inside the block; then the current state is restored."""
    before = get_rng_state()
    set_rng_state(state)
    try:
        yield
    finally:
        set_rng_state(before)


def pack(state: dict[str, Any]) -> torch.Tensor:
    """Convert a generator's state to torch's layout."""
    made = numpy.zeros((), _LAYOUT)
    made["seed"], made["seeded"], made["words"] = state["seed"], 1, state["key"]
    made["left"] = 625 - state["position"]
    made["next"] = state["position"] % 624
    if state["next_normal"] is not None:
        made["normal"], made["has_normal"] = state["next_normal"], 1
    return torch.from_numpy(made.reshape(1).view(numpy.uint8))


def unpack(state: torch.Tensor) -> dict[str, Any]:
    """Convert a state in torch's layout to a generator's."""
    found: Any = state.numpy().reshape(-1).view(_LAYOUT)[0]
    return {
        "key": found["words"].astype(numpy.uint32),
        "position": 625 - int(found["left"]),
        "next_normal": float(found["normal"]) if found["has_normal"] else None,
        "seed": int(found["seed"]),
    }


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices, which share one generator."""
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restore the states of all devices."""
    for state in new_states:
        set_rng_state(state)

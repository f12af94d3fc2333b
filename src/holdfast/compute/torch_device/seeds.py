"""Seeds and states of the device's random numbers, as torch keeps them.

Covers: choosing a seed; a state as bytes and back.
Leaves to others: drawing numbers (`holdfast.compute.random`).
Promise: the same seed draws on the device what it draws on the CPU, and a state has the layout of
torch's own: what `torch.get_rng_state()` returned can be set here, and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy
import torch

from holdfast.base.errors import BadInput
from holdfast.compute import random
from holdfast.compute.torch_device.errors import Refused
from holdfast.compute.torch_device.places import place

# What torch writes for a generator of the CPU: a Mersenne Twister's words and what is left of them,
# and the second number of a pair of normal ones.
_LAYOUT = numpy.dtype(
    {
        "names": ["seed", "left", "seeded", "next", "words", "normal", "has_normal"],
        "formats": ["u8", "i4", "i4", "u8", ("u8", 624), "f8", "i4"],
        "offsets": [0, 8, 12, 16, 24, 5024, 5040],
        "itemsize": 5056,
    }
)


def manual_seed(seed: int) -> None:
    """Let all numbers that follow be the same each time. Raises Refused for what is no seed."""
    try:
        random.manual_seed(int(seed))
    except BadInput as exc:
        raise Refused(exc.what, expected=exc.expected) from exc


def manual_seed_all(seed: int) -> None:
    """`manual_seed` of every device: they have one stream of numbers."""
    manual_seed(seed)


def seed() -> int:
    """Begin again from a seed nobody knows, which is returned."""
    return random.seed()


def seed_all() -> None:
    """`seed` of every device: they have one stream of numbers."""
    random.seed()


def initial_seed() -> int:
    """The seed that the numbers began from."""
    return random.initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """What the next numbers depend on, as bytes on the CPU."""
    place(device)
    return packed(random.get_state())


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Go on from a state that `get_rng_state` or `torch.get_rng_state` returned. Raises Refused."""
    place(device)
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
        random.set_state(unpacked(new_state.cpu().contiguous()))
    except BadInput as exc:
        raise Refused(exc.what, expected="what get_rng_state() returned") from exc


def packed(state: dict[str, Any]) -> torch.Tensor:
    """A generator's state in torch's layout."""
    made = numpy.zeros((), _LAYOUT)
    made["seed"], made["seeded"], made["words"] = state["seed"], 1, state["key"]
    made["left"] = 625 - state["position"]
    made["next"] = state["position"] % 624
    if state["next_normal"] is not None:
        made["normal"], made["has_normal"] = state["next_normal"], 1
    return torch.from_numpy(made.reshape(1).view(numpy.uint8))


def unpacked(state: torch.Tensor) -> dict[str, Any]:
    """A state in torch's layout as a generator's."""
    found: Any = state.numpy().reshape(-1).view(_LAYOUT)[0]
    return {
        "key": found["words"].astype(numpy.uint32),
        "position": 625 - int(found["left"]),
        "next_normal": float(found["normal"]) if found["has_normal"] else None,
        "seed": int(found["seed"]),
    }


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of every device."""
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Go on from the states of all devices."""
    for state in new_states:
        set_rng_state(state)

"""Decide in which domains an allocation goes: near CPUs, near a GPU, or where memory is free.

`place` only reads its arguments, and returns the reason with the decision.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from holdfast.base.errors import BadInput, OutOfMemory, Unsupported
from holdfast.base.units import format_bytes
from holdfast.memory.svm.model import MODES, Domain, Layout, Mode, Placement

# Left free in every domain: when the last page is taken, the kernel kills a process.
KEPT_BYTES = 64 << 20


def place(
    layout: Layout,
    size: int,
    *,
    domain: int | Sequence[int] | None = None,
    near: str | None = None,
    mode: str | None = None,
    running_on: Sequence[int] = (),
) -> Placement:
    """Decide where `size` bytes go.

    `domain` names one domain or several. Without it, `near` names what uses the memory ("gpu:0",
    "node:1", "cpu:3"), or else the CPUs in `running_on` decide. Raises BadInput for an unknown
    domain, CPU or GPU, OutOfMemory if it does not fit.
    """
    wanted = _mode(mode)
    _check_limit(layout, size)
    if domain is not None:
        return _place_in(layout, size, domain, wanted)
    home, why = _home(layout, near, running_on)
    order = _by_distance(layout, home)
    if wanted == "interleave":
        return _interleave_widest(layout, size, order)
    chosen = next((d for d in order if fits(d, size)), None)
    if chosen is None:
        return _spread(layout, size, order, wanted)
    if chosen is not home:
        why = f"{home.name} ({why}) has {_free(home)} free; {chosen.name} is the nearest with room"
    return replace(_over(layout, [chosen], wanted or "bind", why), near=near)


def check_room(layout: Layout, size: int, target: Domain, what: str) -> None:
    """Raise OutOfMemory if `size` more bytes do not fit into a domain."""
    if not fits(target, size):
        raise _full(what, size, [target], layout)


def fits(domain: Domain, size: int) -> bool:
    """Whether a domain has room for `size` more bytes; True if that is unknown."""
    room = _room(domain)
    return room is None or size <= room


def domain_of(layout: Layout, number: object) -> Domain:
    """The domain with this id. Raises BadInput with a list of the domains."""
    is_integer = hasattr(number, "__index__") and not isinstance(number, bool)
    found = next((d for d in layout.domains if is_integer and d.id == number), None)
    if found is None:
        raise BadInput(
            f"{layout.provider!r} has no domain {number!r}",
            expected="one of " + ", ".join(f"{d.id} ({d.name})" for d in layout.domains),
        )
    return found


def _mode(mode: str | None) -> Mode | None:
    for known in MODES:
        if mode == known:
            return known
    if mode is not None:
        raise BadInput(f"there is no placement {mode!r}", expected=f"one of {', '.join(MODES)}")
    return None


# ---- domains named by the caller


def _place_in(
    layout: Layout, size: int, domain: int | Sequence[int], mode: Mode | None
) -> Placement:
    several = isinstance(domain, Sequence) and not isinstance(domain, str)
    numbers = [*domain] if several and not isinstance(domain, int) else [domain]
    if not numbers:
        raise BadInput(
            "the list of domains is empty", expected="a domain, or a list with one or more"
        )
    named = list({d.id: d for d in (domain_of(layout, number) for number in numbers)}.values())
    names = " and ".join(d.name for d in named)
    why = f"{names} was asked for" if len(named) == 1 else f"{names} were asked for"
    if mode == "interleave" or (mode is None and len(named) > 1):
        if not all(fits(d, -(-size // len(named))) for d in named):
            raise _full("interleave", size, named, layout)
        return replace(_over(layout, named, "interleave", why), pinned=True)
    if mode == "preferred" and len(named) > 1:
        raise BadInput("only one domain can be preferred", expected="one domain, or another mode")
    _check_sum(size, named if mode != "preferred" else layout.domains, layout)
    return replace(_over(layout, named, mode or "bind", why), pinned=True)


# ---- the best domain


def _home(layout: Layout, near: str | None, running_on: Sequence[int]) -> tuple[Domain, str]:
    if near is not None:
        return _near(layout, near)
    if len(layout.domains) == 1:
        return layout.domains[0], f"{layout.domains[0].name} is the only one"
    running = [d for d in layout.domains if set(d.cpus) & set(running_on)]
    if len(running) == 1:
        return running[0], f"the CPUs that run the work are those of {running[0].name}"
    fed = _gpu_homes(layout)
    if len(fed) == 1:
        [(domain, gpu)] = fed.values()
        return domain, f"{gpu} hangs off {domain.name}"
    candidates = running or [d for d in layout.domains if d.cpus] or list(layout.domains)
    most = max(candidates, key=lambda d: d.free_bytes or 0)
    return most, f"{most.name} has the most free memory of those beside the CPUs: {_free(most)}"


def _near(layout: Layout, near: str) -> tuple[Domain, str]:
    match = re.fullmatch(r"(gpu|node|cpu)(?::(\d+))?", str(near))
    if match is None or (match[1] != "gpu" and match[2] is None):
        raise BadInput(
            f"cannot place memory near {near!r}", expected='"gpu:0", "node:1" or "cpu:3"'
        )
    kind, number = match[1], int(match[2] or 0)
    if kind == "node":
        return _near_node(layout, number)
    if kind == "cpu":
        return _near_cpu(layout, number)
    return _near_gpu(layout, number)


def _node(layout: Layout, number: int | None) -> Domain | None:
    return next((d for d in layout.domains if d.name == f"node:{number}"), None)


def _near_node(layout: Layout, number: int) -> tuple[Domain, str]:
    domain = _node(layout, number)
    if domain is None:
        raise BadInput(
            f"{layout.provider!r} has no domain that is node {number}",
            expected="one of " + ", ".join(d.name for d in layout.domains),
        )
    return domain, f"{domain.name} was asked for"


def _near_cpu(layout: Layout, number: int) -> tuple[Domain, str]:
    for domain in layout.domains:
        if number in domain.cpus:
            return domain, f"CPU {number} is on {domain.name}"
    cpus = sorted(c for d in layout.domains for c in d.cpus)
    raise BadInput(
        f"there is no CPU {number} beside a domain of {layout.provider!r}",
        expected=f"one of {', '.join(map(str, cpus))}" if cpus else "a provider that knows CPUs",
    )


def _near_gpu(layout: Layout, number: int) -> tuple[Domain, str]:
    gpus = layout.topology.gpus if layout.topology else ()
    gpu = next((g for g in gpus if g.id == number), None)
    if gpu is None:
        raise BadInput(
            f"there is no GPU {number}",
            expected=f"one of {', '.join(f'gpu:{g.id}' for g in gpus)}" if gpus else "a GPU",
            hint="holdfast topo lists what is there",
        )
    domain = _node(layout, gpu.numa_node)
    if domain is None:
        if len(layout.domains) == 1:
            return layout.domains[0], f"{layout.domains[0].name} is the only one"
        raise Unsupported(
            f"the machine does not tell which node gpu:{number} hangs off",
            expected="a NUMA node for it in sysfs",
            hint="name the domain yourself: domain=0",
        )
    return domain, f"gpu:{number} hangs off {domain.name}"


def _gpu_homes(layout: Layout) -> dict[int, tuple[Domain, str]]:
    """By id: the domains that compute GPUs are attached to, each with one such GPU."""
    gpus = layout.topology.gpus if layout.topology else ()
    found: dict[int, tuple[Domain, str]] = {}
    for gpu in gpus:
        domain = _node(layout, gpu.numa_node)
        computes = gpu.kind != "display" and (gpu.kind != "virtual" or gpu.memory_bytes)
        if domain is not None and computes:
            found.setdefault(domain.id, (domain, f"gpu:{gpu.id}"))
    return found


# ---- more than one domain


def _spread(layout: Layout, size: int, order: Sequence[Domain], mode: Mode | None) -> Placement:
    """Place what does not fit one domain, unless `mode` forbids: interleaved over as few of the
    nearest domains as can take equal parts, else filling the domains, nearest first.
    """
    _check_sum(size, order, layout)
    more = f"{format_bytes(size)} is more than any domain has free"
    if mode == "preferred":
        why = f"{more}; {order[0].name} comes first"
        return _over(layout, order[:1], "preferred", why)
    for count in range(2, len(order) + 1) if mode is None else ():
        able = [d for d in order if fits(d, -(-size // count))]
        if len(able) >= count:
            names = ", ".join(d.name for d in able[:count])
            return _over(layout, able[:count], "interleave", f"{more}: over {names}")
    return _over(layout, order, "bind", f"{more}: what each of them has, nearest first")


def _interleave_widest(layout: Layout, size: int, order: Sequence[Domain]) -> Placement:
    for count in range(len(order), 0, -1):
        able = [d for d in order if fits(d, -(-size // count))]
        if len(able) >= count:
            return _over(layout, able[:count], "interleave", "interleaving was asked for")
    raise _full("interleave", size, order, layout)


def _over(layout: Layout, over: Sequence[Domain], mode: Mode, why: str) -> Placement:
    domains = tuple(d.id for d in over)
    return Placement(domains=domains, mode=mode, reason=why, cpus=_cpus(layout, over))


def _check_sum(size: int, over: Sequence[Domain], layout: Layout) -> None:
    rooms = [_room(d) for d in over]
    if None not in rooms and size > sum(r or 0 for r in rooms):
        raise _full("allocate", size, over, layout)


def _check_limit(layout: Layout, size: int) -> None:
    if layout.free_bytes is not None and size > max(0, layout.free_bytes - KEPT_BYTES):
        raise OutOfMemory(
            f"cannot allocate {format_bytes(size)}: this process may take "
            f"{format_bytes(layout.free_bytes)} more",
            expected="less than the limit on its memory (control group) leaves, with "
            f"{format_bytes(KEPT_BYTES)} to spare",
            hint="a smaller size, freeing something first, or a higher limit",
        )


def _room(domain: Domain) -> int | None:
    if domain.free_bytes is None:
        return None
    return max(0, domain.free_bytes - KEPT_BYTES)


def _by_distance(layout: Layout, home: Domain) -> list[Domain]:
    """The domains, nearest first, then by free memory. GPU memory only if it is `home`."""

    def key(domain: Domain) -> tuple[bool, int, int]:
        distance = layout.distance(home.id, domain.id)
        return domain is not home, distance or 255, -(domain.free_bytes or 0)

    return sorted((d for d in layout.domains if d is home or d.kind != "gpu"), key=key)


def _cpus(layout: Layout, domains: Sequence[Domain]) -> tuple[int, ...]:
    """CPUs of the domains, or of the nearest domain that has CPUs."""
    own = sorted({cpu for domain in domains for cpu in domain.cpus})
    if own or not domains:
        return tuple(own)
    near = next((d for d in _by_distance(layout, domains[0]) if d.cpus), None)
    return near.cpus if near else ()


def _free(domain: Domain) -> str:
    return "unknown" if domain.free_bytes is None else format_bytes(domain.free_bytes)


def _full(what: str, size: int, over: Sequence[Domain], layout: Layout) -> OutOfMemory:
    free = ", ".join(f"{d.name} {_free(d)}" for d in layout.domains)
    names = ", ".join(d.name for d in over)
    return OutOfMemory(
        f"cannot {what} {format_bytes(size)} on {names}: free are {free}",
        expected=f"that much free, with {format_bytes(KEPT_BYTES)} left for others on each",
        hint="a smaller size, another domain, or freeing something first",
    )

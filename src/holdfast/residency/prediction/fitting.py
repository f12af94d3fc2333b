"""`fit`: will a model run under a budget, how fast, and what would help. No weights are loaded.

Covers: modules, diffusers folders, networks and safetensors files; the plan that `manage` would
make, its time, the budgets around it, number formats.
Leaves to others: what a pass does (profile), what it costs (rates), the plan (plan).
Promise: reads configurations, headers and half a megabyte of weights at most; takes memory on the
device only to measure, and gives it back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.base.errors import BadInput, HoldfastError, OutOfMemory, Unsupported
from holdfast.base.units import parse_bytes
from holdfast.residency import plan
from holdfast.residency.carriers import CARRIERS, carrier_for
from holdfast.residency.carriers.carrier import Carrier
from holdfast.residency.outside import managed_of
from holdfast.residency.prediction.case import Ask, around, case_of, in_bytes, smallest, with_plan
from holdfast.residency.prediction.fitted import Fit
from holdfast.residency.prediction.formats import FORMATS, Formats, choose, word
from holdfast.residency.prediction.guesses import guessed_elements
from holdfast.residency.prediction.networks import Network, dtype_of, networks_at
from holdfast.residency.prediction.packable import Packing
from holdfast.residency.prediction.profile import Part, Profile, profile
from holdfast.residency.prediction.rates import (
    collecting_later,
    device_name,
    facts_of,
    times_of,
)
from holdfast.residency.prediction.shapes import Call, example, parse_size


def fit(
    model: nn.Module | str | Path,
    device: Any = "auto",
    budget: str | int | None = None,
    shape: Any = None,
    *,
    precision: str | None = None,
    pack: bool | str = "auto",
    keep_bytes: int | None = None,
    inputs: dict[str, Any] | None = None,
    entry: str = "forward",
    config: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Fit:
    """Say whether a model runs on `device` under `budget`, how fast, and what would help.

        residency.fit("FLUX.1-dev", "cuda", budget="8GB", shape="1024x1024")

    `model` is a module (on meta will do), a diffusers folder, the folder of a network or a
    safetensors file; `config` names the folder that says what a single file is. `shape` is
    (height, width), (frames, height, width), or text with the width first. `inputs` are the keyword
    arguments of one call of `entry`, for modules that are not known; tensors on meta will do.
    Without a budget it is all the device has. `precision` is fp32, bf16, fp16 or fp8; None is that
    of the weights. `pack` and `keep_bytes` are those of `manage`. `progress` is told what is being
    measured.
    Raises BadInput, NotFound or Unsupported; a budget that is too small is an answer, no error.
    """
    ask = Ask(
        carrier=_carrier(device),
        budget_bytes=None,
        size=parse_size(shape),
        precision=_precision(precision),
        pack=_packing(pack),
        keep_bytes=keep_bytes,
        progress=progress,
    )
    if budget is not None:
        size = parse_bytes(budget, of=ask.carrier.total_bytes())
        ask = dataclasses.replace(ask, budget_bytes=size)
    if isinstance(model, nn.Module):
        return _of_module(ask, model, inputs, entry)
    if not isinstance(model, str | Path):
        raise BadInput(
            f"cannot look at a {type(model).__name__}",
            expected="a torch.nn.Module, or the path of a model",
        )
    path = Path(model).expanduser()
    found = networks_at(path, None if config is None else Path(config).expanduser())
    scale = _scale(found)
    answers = [_of_network(ask, network, inputs, entry, scale) for network in found]
    return answers[0] if len(answers) == 1 else _together(path.resolve().name, answers)


# ---- what was asked


def _carrier(device: Any) -> Carrier:
    if isinstance(device, str) and device == "auto":
        from holdfast.residency.rules.here import get_torch_device

        device = get_torch_device()
    try:
        return carrier_for(device)
    except HoldfastError:
        raise
    except (RuntimeError, AssertionError, AttributeError) as exc:  # torch has no error of its own
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        raise Unsupported(
            f"cannot use device {str(device)!r}: {reason}",
            expected=f"auto, or one of {', '.join(CARRIERS)} that torch can use here",
        ) from exc


def _precision(precision: str | None) -> str | None:
    if precision in (None, "auto"):
        return None
    if precision not in FORMATS:
        raise BadInput(
            f"unknown precision {precision!r}", expected=f"auto, or one of {', '.join(FORMATS)}"
        )
    return precision


def _packing(pack: bool | str) -> bool | str:
    if pack not in ("auto", True, False):
        raise BadInput(f"cannot use pack={pack!r}", expected='"auto", True or False')
    return pack


def _scale(networks: Sequence[Network]) -> int | None:
    """Pixels a side of one latent, from the autoencoder beside a denoiser."""
    for network in networks:
        config = network.config or {}
        if network.class_name == "AutoencoderKL" and "block_out_channels" in config:
            return 2 ** (len(config["block_out_channels"]) - 1)
        if network.class_name == "AutoencoderKLWan":
            return config.get("scale_factor_spatial") or 8
    return None


# ---- networks


@collecting_later()
def _of_module(ask: Ask, module: nn.Module, inputs: dict[str, Any] | None, entry: str) -> Fit:
    if managed_of(module) is not None:
        raise BadInput(
            f"cannot look at {type(module).__name__}: it is managed already",
            expected="a module that nobody manages",
            hint="managed.plan has the plan at work, residency.unmanage(module) lets it go",
        )
    stored = _format_of(module)
    wanted = stored if ask.precision is None else FORMATS[ask.precision]
    computing = torch.bfloat16 if wanted.itemsize == 1 else wanted
    name = type(module).__name__
    call = _call(name, _config_of(module), ask, inputs, entry, computing, None)
    changed = dtype_of(module, computing) if computing != stored else None
    return _answer(ask, name, None, profile(module, call, changed), wanted, stored, None)


@collecting_later()
def _of_network(
    ask: Ask, network: Network, inputs: dict[str, Any] | None, entry: str, scale: int | None
) -> Fit:
    stored = network.stored()
    wanted = _wanted(ask, network, stored)
    if network.class_name is None or network.config is None:
        return _from_header(ask, network, wanted, "what its tensors are is not known")
    computing = torch.bfloat16 if wanted.itemsize == 1 else wanted
    try:
        call = _call(network.class_name, network.config, ask, inputs, entry, computing, scale)
        module = network.build()
        if network.guessed and not _same_size(network, module):
            return _from_header(ask, network, wanted, "it has other weights than it seemed")
        found = profile(module, call, dtype_of(module, computing))
    except Unsupported as exc:
        return _from_header(ask, network, wanted, exc.what)
    answer = _answer(ask, network.name, network.name, found, wanted, stored, network.sample())
    if network.guessed:
        told = f"it is a {network.class_name}, by the names and shapes of its tensors"
        answer = dataclasses.replace(answer, assumptions=(*answer.assumptions, told))
    return answer


def _wanted(ask: Ask, network: Network, stored: torch.dtype | None) -> torch.dtype:
    """The format to look at: as asked, as stored, or what the device computes with."""
    if ask.precision is not None:
        return FORMATS[ask.precision]
    config = network.config or {}
    if network.class_name == "AutoencoderKLWan" or config.get("force_upcast"):
        return torch.float32  # half precision can be seen in what they decode
    formats = Formats.of(ask.carrier)
    usable = stored is not None and (stored.itemsize == 1 or word(stored) in formats.names)
    if stored is None or not usable or (stored == torch.float32 and formats.half is not None):
        return formats.half or torch.float32
    return stored


def _call(
    class_name: str,
    config: Any,
    ask: Ask,
    inputs: dict[str, Any] | None,
    entry: str,
    dtype: torch.dtype,
    scale: int | None,
) -> Call:
    if inputs is not None:
        return Call(entry, inputs, ask.size)
    return example(class_name, config, ask.size, dtype, scale)


def _config_of(module: nn.Module) -> dict[str, Any]:
    config: Any = getattr(module, "config", {})
    return config.to_dict() if hasattr(config, "to_dict") else dict(config)


def _format_of(module: nn.Module) -> torch.dtype:
    """The format that most bytes of a module are in."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in module.parameters():
        if tensor.is_floating_point():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    return max(sizes, key=lambda dtype: sizes[dtype]) if sizes else torch.float32


def _same_size(network: Network, module: nn.Module) -> bool:
    count = sum(p.numel() for p in module.parameters())
    return abs(guessed_elements(network.tensors()) - count) <= count / 100


def _together(name: str, answers: Sequence[Fit]) -> Fit:
    """All networks of a model, one after the other under the budget; the first is the headline."""
    head = answers[0]
    peaks = [a.peak_bytes for a in answers if a.peak_bytes is not None]
    least = [a.smallest_bytes for a in answers if a.smallest_bytes is not None]
    return dataclasses.replace(
        head,
        model=name,
        network=head.network,
        fits=all(answer.fits for answer in answers),
        smallest_bytes=max(least, default=None),
        peak_bytes=max(peaks, default=None),
        parts=tuple(answers),
    )


# ---- answers


def _answer(
    ask: Ask,
    model: str,
    network: str | None,
    found: Profile,
    wanted: torch.dtype,
    stored: torch.dtype | None,
    sample: torch.Tensor | None,
) -> Fit:
    times = times_of(found, ask.carrier, ask.progress)
    facts = facts_of(ask.carrier, (), ask.progress)
    packing = Packing.of(facts.schemes, wanted, sample)
    case = case_of(ask, found, times, facts, packing)
    if wanted.itemsize == 1:
        case = in_bytes(case, wanted)
    budget = ask.limit_bytes
    packed = case.packs(budget)
    problem = case.problem(packed)
    allowance = case.allowance(budget)
    try:
        made = plan.make(problem, allowance, ask.keep_bytes, model)
    except OutOfMemory:
        made = None
    blank = Fit(
        model=model,
        network=network,
        device=_device_words(ask.carrier),
        budget_bytes=budget,
        size=None if found.call.size is None else str(found.call.size),
        precision=word(wanted),
        fits=made is not None,
        smallest_bytes=smallest(case, problem),
        weight_bytes=case.weight_bytes,
        kept_bytes=None,
        streamed_bytes=None,
        link_bytes=None,
        ring_bytes=None,
        activation_bytes=case.beside_bytes,
        reserve_bytes=case.reserve(budget),
        peak_bytes=None,
        step_ms=None,
        floor_ms=None,
        resident_ms=problem.compute_ms + case.before_ms,
        packed=packed,
        way=times.way,
        assumptions=packing.assumptions if packed else (),
    )
    if made is None:
        return dataclasses.replace(blank, **choose(blank, found, facts, ask.carrier, stored))
    answer = with_plan(blank, case, problem, made)
    answer = dataclasses.replace(answer, **around(case, problem, made, budget))
    return dataclasses.replace(answer, **choose(answer, found, facts, ask.carrier, stored))


def _device_words(carrier: Carrier) -> str:
    name = device_name(carrier)
    return carrier.name if name in (carrier.name, "") else f"{carrier.name} ({name})"


# ---- files alone


def _from_header(ask: Ask, network: Network, wanted: torch.dtype, reason: str) -> Fit:
    """What the sizes of its tensors tell."""
    tensors = network.tensors()
    elements = sum(info.elements for info in tensors.values())
    weight_bytes = elements * wanted.itemsize
    largest = max((info.elements for info in tensors.values()), default=0) * wanted.itemsize
    facts = facts_of(ask.carrier, (), ask.progress)
    budget = ask.limit_bytes
    reserve = ask.carrier.outside_bytes() + ask.carrier.slack_bytes(budget)
    packing = Packing.of(facts.schemes, wanted, network.sample() if tensors else None)
    streamed = max(0, weight_bytes - max(0, budget - reserve))
    whole = Part("", weight_bytes, wanted, False)
    payload = packing.payload_bytes(whole) if ask.pack is not False else None
    link_bytes = int(streamed * (payload or weight_bytes) / max(1, weight_bytes))
    return Fit(
        model=network.name,
        network=network.name,
        device=_device_words(ask.carrier),
        budget_bytes=budget,
        size=None,
        precision=word(wanted),
        fits=budget - reserve >= largest,
        smallest_bytes=None,
        weight_bytes=weight_bytes,
        kept_bytes=None,
        streamed_bytes=streamed,
        link_bytes=link_bytes,
        ring_bytes=None,
        activation_bytes=None,
        reserve_bytes=reserve,
        peak_bytes=None,
        step_ms=None,
        floor_ms=link_bytes / facts.rates.link_gb_s / 1e6,
        resident_ms=None,
        packed=payload is not None and streamed > 0,
        way="headers",
        assumptions=(
            f"the sizes of its weights alone: {reason}",
            *(packing.assumptions if payload is not None and streamed else ()),
        ),
    )

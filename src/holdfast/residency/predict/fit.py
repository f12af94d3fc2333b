"""`fit` predicts whether a model runs under a budget, how fast, and what would help.

It makes the plan that `manage` would make. It reads configurations, headers and at most half a
megabyte of weights, and takes device memory only to measure.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
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
from holdfast.residency.managed.module_hooks import managed_of
from holdfast.residency.predict.answer import Fit
from holdfast.residency.predict.best_dtype import PRECISIONS, DeviceDtypes, choose, format_precision
from holdfast.residency.predict.case import (
    FitRequest,
    add_plan,
    compare_budgets,
    find_min_budget,
    make_case,
    store_in_fp8,
)
from holdfast.residency.predict.networks import Network, dtype_of, find_networks
from holdfast.residency.predict.packable import Packing
from holdfast.residency.predict.profile import Profile, ProfiledStretch, profile
from holdfast.residency.predict.rates import device_name, get_facts, pause_gc, time_layers
from holdfast.residency.predict.recognise import count_denoiser_elements
from holdfast.residency.predict.shapes import ModuleCall, make_example, parse_size


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
    """Predict whether a model runs on `device` under `budget`, how fast, and what would help.

        residency.fit("FLUX.1-dev", "cuda", budget="8GB", shape="1024x1024")

    `model` is a module (it may be on meta), a diffusers folder, the folder of a network or a
    safetensors file; `config` is the folder with the configuration of a single file. `shape` is
    (height, width), (frames, height, width), or text with the width first. `inputs` are the keyword
    arguments of one call of `entry`, for unknown modules; tensors may be on meta. The default
    budget is all memory of the device. `precision` is fp32, bf16, fp16 or fp8; None is that of the
    weights. `pack` and `keep_bytes` are those of `manage`. `progress` is called with a text before
    each measurement.
    Raises BadInput, NotFound or Unsupported; a budget that is too small is an answer, no error.
    """
    request = FitRequest(
        carrier=_find_carrier(device),
        budget_bytes=None,
        size=parse_size(shape),
        precision=None if precision == "auto" else precision,
        pack=pack,
        keep_bytes=keep_bytes,
        progress=progress,
    )
    if request.precision not in (None, *PRECISIONS):
        raise BadInput(
            f"unknown precision {precision!r}", expected=f"auto, or one of {', '.join(PRECISIONS)}"
        )
    if pack not in ("auto", True, False):
        raise BadInput(f"cannot use pack={pack!r}", expected='"auto", True or False')
    if budget is not None:
        size = parse_bytes(budget, of=request.carrier.total_bytes())
        request = dataclasses.replace(request, budget_bytes=size)
    if isinstance(model, nn.Module):
        return _fit_module(request, model, inputs, entry)
    if not isinstance(model, str | Path):
        raise BadInput(
            f"cannot look at a {type(model).__name__}",
            expected="a torch.nn.Module, or the path of a model",
        )
    path = Path(model).expanduser()
    found = find_networks(path, None if config is None else Path(config).expanduser())
    scale = _find_scale(found)
    answers = [_fit_network(request, network, inputs, entry, scale) for network in found]
    return answers[0] if len(answers) == 1 else _combine(path.resolve().name, answers)


# ---- arguments


def _find_carrier(device: Any) -> Carrier:
    if isinstance(device, str) and device == "auto":
        from holdfast.residency.model_management.rules.current import get_torch_device

        device = get_torch_device()
    try:
        return carrier_for(device)
    except HoldfastError:
        raise
    except (RuntimeError, AssertionError, AttributeError) as exc:  # torch has no specific error
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        raise Unsupported(
            f"cannot use device {str(device)!r}: {reason}",
            expected=f"auto, or one of {', '.join(CARRIERS)} that torch can use here",
        ) from exc


def _find_scale(networks: Sequence[Network]) -> int | None:
    """Pixels per latent and side, from the autoencoder of the model."""
    for network in networks:
        config = network.config or {}
        if network.class_name == "AutoencoderKL" and "block_out_channels" in config:
            return 2 ** (len(config["block_out_channels"]) - 1)
        if network.class_name == "AutoencoderKLWan":
            return config.get("scale_factor_spatial") or 8
    return None


# ---- networks


@pause_gc()
def _fit_module(
    request: FitRequest, module: nn.Module, inputs: dict[str, Any] | None, entry: str
) -> Fit:
    if managed_of(module) is not None:
        raise BadInput(
            f"cannot look at {type(module).__name__}: it is managed already",
            expected="a module that is not managed",
            hint="managed.plan is its plan; residency.unmanage(module) ends that",
        )
    stored = _find_main_dtype(module)
    wanted = stored if request.precision is None else PRECISIONS[request.precision]
    computing = torch.bfloat16 if wanted.itemsize == 1 else wanted
    name = type(module).__name__
    config: Any = getattr(module, "config", {})
    config = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    call = _make_call(name, config, request, inputs, entry, computing, None)
    changed = dtype_of(module, computing) if computing != stored else None
    return _predict(request, name, None, profile(module, call, changed), wanted, stored, None)


@pause_gc()
def _fit_network(
    request: FitRequest,
    network: Network,
    inputs: dict[str, Any] | None,
    entry: str,
    scale: int | None,
) -> Fit:
    stored = network.stored()
    wanted = _choose_dtype(request, network, stored)
    if network.class_name is None or network.config is None:
        return _fit_from_header(request, network, wanted, "its class is unknown")
    computing = torch.bfloat16 if wanted.itemsize == 1 else wanted
    try:
        call = _make_call(
            network.class_name, network.config, request, inputs, entry, computing, scale
        )
        module = network.build()
        count = sum(p.numel() for p in module.parameters())
        off_by = abs(count_denoiser_elements(network.tensors()) - count) if network.guessed else 0
        if off_by > count / 100:
            return _fit_from_header(request, network, wanted, "its size fits no known class")
        found = profile(module, call, dtype_of(module, computing))
    except Unsupported as exc:
        return _fit_from_header(request, network, wanted, exc.what)
    answer = _predict(request, network.name, network.name, found, wanted, stored, network.sample())
    if network.guessed:
        guess = f"it is a {network.class_name}, judged by the names and shapes of its tensors"
        answer = dataclasses.replace(answer, assumptions=(*answer.assumptions, guess))
    return answer


def _choose_dtype(request: FitRequest, network: Network, stored: torch.dtype | None) -> torch.dtype:
    """The dtype to predict: as requested, as stored, or what the device computes with."""
    if request.precision is not None:
        return PRECISIONS[request.precision]
    config = network.config or {}
    if network.class_name == "AutoencoderKLWan" or config.get("force_upcast"):
        return torch.float32  # half precision is visible in their images
    dtypes = DeviceDtypes.of(request.carrier)
    default = dtypes.half or torch.float32
    if stored is None or stored == torch.float32:
        return default
    usable = stored.itemsize == 1 or format_precision(stored) in dtypes.names
    return stored if usable else default


def _make_call(
    class_name: str,
    config: Any,
    request: FitRequest,
    inputs: dict[str, Any] | None,
    entry: str,
    dtype: torch.dtype,
    scale: int | None,
) -> ModuleCall:
    if inputs is not None:
        return ModuleCall(entry, inputs, request.size)
    return make_example(class_name, config, request.size, dtype, scale)


def _find_main_dtype(module: nn.Module) -> torch.dtype:
    sizes: Counter[torch.dtype] = Counter()
    for tensor in module.parameters():
        if tensor.is_floating_point():
            sizes[tensor.dtype] += tensor.numel()
    return sizes.most_common(1)[0][0] if sizes else torch.float32


def _combine(name: str, answers: Sequence[Fit]) -> Fit:
    """The answer for networks that run one after the other; figures are those of the first."""
    head = answers[0]
    peaks = [a.peak_bytes for a in answers if a.peak_bytes is not None]
    least = [a.smallest_bytes for a in answers if a.smallest_bytes is not None]
    return dataclasses.replace(
        head,
        model=name,
        fits=all(answer.fits for answer in answers),
        smallest_bytes=max(least, default=None),
        peak_bytes=max(peaks, default=None),
        parts=tuple(answers),
    )


# ---- answers


def _predict(
    request: FitRequest,
    model: str,
    network: str | None,
    found: Profile,
    wanted: torch.dtype,
    stored: torch.dtype | None,
    sample: torch.Tensor | None,
) -> Fit:
    times = time_layers(found, request.carrier, request.progress)
    facts = get_facts(request.carrier, (), request.progress)
    packing = Packing.of(facts.schemes, wanted, sample)
    case = make_case(request, found, times, facts, packing)
    if wanted.itemsize == 1:
        case = store_in_fp8(case, wanted)
    budget = request.limit_bytes
    packed = case.packs(budget)
    problem = case.problem(packed)
    allowance = case.allowance(budget)
    try:
        made = plan.make(problem, allowance, request.keep_bytes, model)
    except OutOfMemory:
        made = None
    blank = Fit(
        model=model,
        network=network,
        device=_describe_device(request.carrier),
        budget_bytes=budget,
        size=None if found.call.size is None else str(found.call.size),
        precision=format_precision(wanted),
        fits=made is not None,
        smallest_bytes=find_min_budget(case, problem),
        weight_bytes=case.weight_bytes,
        activation_bytes=case.beside_bytes,
        reserve_bytes=case.reserve(budget),
        resident_ms=problem.compute_ms + case.before_ms,
        packed=packed,
        way=times.way,
        assumptions=packing.assumptions if packed else (),
    )
    if made is None:
        return dataclasses.replace(blank, **choose(blank, found, request.carrier, stored))
    answer = add_plan(blank, case, made, compare_budgets(case, problem, made, budget))
    return dataclasses.replace(answer, **choose(answer, found, request.carrier, stored))


def _describe_device(carrier: Carrier) -> str:
    name = device_name(carrier)
    return carrier.name if name in (carrier.name, "") else f"{carrier.name} ({name})"


# ---- headers only


def _fit_from_header(
    request: FitRequest, network: Network, wanted: torch.dtype, reason: str
) -> Fit:
    tensors = network.tensors()
    elements = sum(info.elements for info in tensors.values())
    weight_bytes = elements * wanted.itemsize
    largest = max((info.elements for info in tensors.values()), default=0) * wanted.itemsize
    facts = get_facts(request.carrier, (), request.progress)
    budget = request.limit_bytes
    reserve = request.carrier.outside_bytes() + request.carrier.slack_bytes(budget)
    packing = Packing.of(facts.schemes, wanted, network.sample() if tensors else None)
    streamed = max(0, weight_bytes - max(0, budget - reserve))
    whole = ProfiledStretch("", weight_bytes, wanted, False)
    payload = packing.payload_bytes(whole) if request.pack is not False else None
    link_bytes = int(streamed * (payload or weight_bytes) / max(1, weight_bytes))
    return Fit(
        model=network.name,
        network=network.name,
        device=_describe_device(request.carrier),
        budget_bytes=budget,
        precision=format_precision(wanted),
        fits=budget - reserve >= largest,
        weight_bytes=weight_bytes,
        streamed_bytes=streamed,
        link_bytes=link_bytes,
        reserve_bytes=reserve,
        floor_ms=link_bytes / facts.rates.link_gb_s / 1e6,
        packed=payload is not None and streamed > 0,
        way="headers",
        assumptions=(
            f"the sizes of its weights alone: {reason}",
            *(packing.assumptions if payload is not None and streamed else ()),
        ),
    )

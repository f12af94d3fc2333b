"""What ComfyUI would do with a model: free memory, its estimates, and the inputs of the network.

Nothing is loaded onto a device, and only the network's inputs are computed: the call is stopped
before the network runs. The model is not changed.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.base.errors import BadInput, Unsupported
from holdfast.base.interrupts import is_interrupt

# ComfyUI batches both directions of guidance if this many times its estimate is free.
AT_ONCE = 1.5
_LEFT_OUT = ("wrappers", "callbacks")  # they would see meta tensors
_NOT_FOLLOWED = {"control": "ControlNet", "gligen": "GLIGEN", "hooks": "hooks"}
_OPTIONS = {
    "context_handler": "context windows: the latent is sampled in one piece",
    "model_function_wrapper": "other nodes' wrappers around the model take no time",
}
_OVERRIDE = "optimized_attention_override"
_SHORT_TOKENS, _LONG_TOKENS = 77, 512
_WIDE = 2048  # wider text encoders are T5 or similar, with long prompts


@dataclass(frozen=True, slots=True)
class Room:
    """Memory as ComfyUI counts it. `least_bytes` is its minimum for computing."""

    free_bytes: int  # with all of its models unloaded
    reserve_bytes: int
    least_bytes: int
    share: float  # of free memory that weights get at least

    @property
    def have_bytes(self) -> int:
        """Bytes for a model and its computing together."""
        return max(0, self.free_bytes - self.reserve_bytes)

    def of(self, budget_bytes: int) -> Room:
        """The same with only `budget_bytes` free."""
        least = max(0, self.least_bytes - self.reserve_bytes)
        return Room(budget_bytes, 0, least, self.share)

    def kept_bytes(self, needed_bytes: int) -> int:
        """Bytes of weights that ComfyUI keeps on the device; the rest is "lowvram"."""
        beside = max(self.least_bytes, needed_bytes + self.reserve_bytes)
        floor = min(self.free_bytes * self.share, self.free_bytes - self.least_bytes)
        return max(0, int(self.free_bytes - beside), int(floor))


@dataclass(frozen=True, slots=True)
class Question:
    """A model of ComfyUI and what will be sampled.

    `needs_bytes` is ComfyUI's estimate for computing, with one direction of guidance and with both;
    `inputs(n)` are the keyword arguments of the network for n directions at once.
    """

    name: str
    network: Any
    device: Any
    shape: tuple[int, ...]
    weight_bytes: int
    room: Room
    needs_bytes: tuple[int, int]
    inputs: Callable[[int], dict[str, Any]]
    decode_bytes: int | None = None
    assumptions: tuple[str, ...] = ()


def question(model: Any, latent: Any, positive: Any = None, vae: Any = None) -> Question:
    """Collect what is known before sampling. Raises BadInput."""
    if not hasattr(model, "load_device") or not hasattr(model, "model_size"):
        raise BadInput(
            f"cannot look at a {type(model).__name__}",
            expected="a MODEL of ComfyUI",
            hint="in plain Python: holdfast.residency.fit(module, device, budget)",
        )
    _check_optional(positive, vae)
    base = model.model
    samples = _samples(model, latent)
    assumptions: list[str] = []
    if not positive:
        positive, text = _make_conditioning(base)
        assumptions.append(text)
    assumptions += _list_assumptions(model, positive)

    def inputs(directions: int) -> dict[str, Any]:
        return _inputs(model, samples, positive, directions)

    shape = tuple(samples.shape)
    return Question(
        name=type(base.model_config).__name__,
        network=base.diffusion_model,
        device=model.load_device,
        shape=shape,
        weight_bytes=int(model.model_size()),
        room=room(model),
        needs_bytes=(_estimate_bytes(base, shape, 1), _estimate_bytes(base, shape, 2)),
        inputs=inputs,
        decode_bytes=None if vae is None else int(vae.memory_used_decode(shape, vae.vae_dtype)),
        assumptions=tuple(assumptions),
    )


# ---- memory


def room(model: Any = None) -> Room:
    """Memory for a model with ComfyUI's other models unloaded."""
    management = _comfy("model_management")
    device = management.get_torch_device() if model is None else model.load_device
    reserve = int(management.extra_reserved_memory())
    return Room(
        free_bytes=_free_bytes(management, device, model),
        reserve_bytes=0 if device.type == "cpu" else reserve,
        least_bytes=int(management.minimum_inference_memory()),
        share=float(getattr(management, "MIN_WEIGHT_MEMORY_RATIO", 0.4)),
    )


def _free_bytes(management: Any, device: Any, model: Any) -> int:
    """Free bytes, rounded down so that small changes do not change `fingerprint`."""
    free = management.get_free_memory(device)
    loaded = [one for one in management.loaded_models() if one.load_device == device]
    free += sum(one.loaded_size() for one in loaded)
    if device.type == "cpu" and model is not None and not any(model.is_clone(m) for m in loaded):
        free += model.model_size()  # it is in this memory already
    parts = 4 if device.type == "cpu" else 7  # coarser on the host, where other processes run
    step = _step_bytes(management.get_total_memory(device), parts)
    return int(free) // step * step


def _step_bytes(total_bytes: int, halvings: int) -> int:
    """A power of two, about `total_bytes` / 2**`halvings`."""
    return 1 << max(20, (int(total_bytes) >> halvings).bit_length())


def fingerprint() -> str | None:
    """Changes when the free memory of the device does; None without ComfyUI."""
    if "comfy.model_management" not in sys.modules:
        return None
    return str(room().free_bytes)


def _estimate_bytes(base: Any, shape: tuple[int, ...], directions: int) -> int:
    return int(base.memory_required([shape[0] * directions, *shape[1:]]))


# ---- the call


class _NetworkCalled(Exception):
    """Raised in place of the network's forward, with its arguments."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.args_, self.kwargs = args, kwargs


def _inputs(model: Any, samples: Any, positive: Any, directions: int) -> dict[str, Any]:
    """The arguments of the network. Raises Unsupported with ComfyUI's reason."""
    base = model.model
    network = base.diffusion_model
    try:
        latents, sigmas, conds = _prepare_sampling(base, samples, positive, directions)
        options = _options(model, sigmas, directions)
        called = _capture_call(
            network,
            lambda: base.apply_model(latents, sigmas, transformer_options=options, **conds),
        )
        bound = inspect.signature(type(network).forward).bind_partial(network, *called.args_)
    except Exception as exc:  # any error of a model's code
        if is_interrupt(exc):
            raise
        reason = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        raise Unsupported(
            f"cannot tell what {type(base.model_config).__name__} would be called with: {reason}",
            expected="conditioning and a latent that this model takes",
        ) from exc
    given = dict(bound.arguments)
    given.pop(next(iter(given)))  # the network itself
    return {**given, **called.kwargs}


def _prepare_sampling(
    base: Any, samples: Any, positive: Any, directions: int
) -> tuple[Any, Any, Any]:
    """(latents, sigmas, conditioning) as ComfyUI's sampler makes them."""
    torch, samplers = importlib.import_module("torch"), _comfy("samplers")
    convert = _comfy("sampler_helpers").convert_cond
    noise = samples.float().cpu()
    conds = {"positive": convert(positive)}
    for cond in conds["positive"]:
        for name in _NOT_FOLLOWED:
            cond.pop(name, None)
    conds = samplers.process_conds(base, noise, conds, noise.device, latent_image=noise)
    sigma = torch.full((noise.shape[0],), float(base.model_sampling.sigma_max))
    parts = [
        part
        for cond in conds["positive"]
        if (part := samplers.get_area_and_mult(cond, noise, sigma)) is not None
    ]
    part = max(parts, key=lambda one: one.input_x.numel())
    latents = torch.cat([part.input_x] * directions)
    joined = samplers.cond_cat([part.conditioning] * directions)
    return latents, torch.cat([sigma] * directions), joined


def _options(model: Any, sigmas: Any, directions: int) -> dict[str, Any]:
    given = model.model_options.get("transformer_options", {})
    kept = {name: value for name, value in given.items() if name not in _LEFT_OUT}
    if not _attention_is_torchs():
        kept.setdefault(_OVERRIDE, _plain_attention)
    return kept | {
        "cond_or_uncond": list(range(directions)),
        "sigmas": sigmas[: len(sigmas) // directions],
        "sample_sigmas": sigmas[:1],
    }


def _attention_is_torchs() -> bool:
    attention = _comfy("ldm.modules.attention")
    return attention.optimized_attention is attention.attention_pytorch


def _plain_attention(function: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention override for ComfyUI: torch's for meta tensors, else ComfyUI's choice."""
    if query.is_meta:
        function = _comfy("ldm.modules.attention").attention_pytorch
    return function(query, *args, **kwargs)


def _capture_call(network: Any, call: Callable[[], Any]) -> _NetworkCalled:
    """Make a call up to the network, and return the arguments of that."""

    def stop(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        raise _NetworkCalled(args, kwargs)

    torch = importlib.import_module("torch")
    handle = network.register_forward_pre_hook(stop, prepend=True, with_kwargs=True)
    try:
        with torch.no_grad():
            call()
    except _NetworkCalled as called:
        return called
    finally:
        handle.remove()
    raise RuntimeError("it does not call its network")


def _check_optional(positive: Any, vae: Any) -> None:
    """Raise BadInput for a bad conditioning or VAE; None is fine."""
    if positive is not None and not (isinstance(positive, list) and all(map(_is_cond, positive))):
        raise BadInput(
            f"cannot look at a positive of type {type(positive).__name__}",
            expected="a CONDITIONING of ComfyUI",
            hint="connect the text encoder, or leave it open",
        )
    if vae is not None and not (hasattr(vae, "memory_used_decode") and hasattr(vae, "vae_dtype")):
        raise BadInput(
            f"cannot decode with a {type(vae).__name__}",
            expected="a VAE of ComfyUI",
            hint="connect the loader of the checkpoint or of the VAE, or leave it open",
        )


def _is_cond(pair: Any) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[1], dict)


def _samples(model: Any, latent: Any) -> Any:
    """The latent as the model takes it. Raises BadInput."""
    samples = latent.get("samples") if isinstance(latent, dict) else None
    if getattr(samples, "ndim", 0) < 3:
        raise BadInput(
            f"cannot sample a {type(latent).__name__} without samples",
            expected="a LATENT of ComfyUI",
            hint="Empty Latent Image",
        )
    wanted = model.get_model_object("latent_format")
    fixed = _comfy("sample").fix_empty_latent_channels(model, samples)
    channels = wanted.latent_channels
    if fixed.shape[1] != channels or fixed.ndim != wanted.latent_dimensions + 2:
        raise BadInput(
            f"a latent of {fixed.shape[1]} channels and {fixed.ndim - 2} dimensions is none of "
            f"{type(model.model.model_config).__name__}",
            expected=f"{channels} channels and {wanted.latent_dimensions} dimensions",
            hint="an empty latent, or one that was encoded with this model's VAE",
        )
    return fixed


# ---- assumptions


def _make_conditioning(base: Any) -> tuple[Any, str]:
    """Zero conditioning of the model's size, for an open input; and the assumption as text."""
    torch = importlib.import_module("torch")
    config = base.model_config.unet_config
    embedder = (config.get("context_embedder_config") or {}).get("params", {})
    network = base.diffusion_model
    width = (
        config.get("context_dim")
        or config.get("context_in_dim")
        or config.get("cond_seq_dim")
        or embedder.get("in_features")
        or getattr(network, "text_dim", None)
    )
    if not isinstance(width, int):
        return [[None, {}]], "no conditioning: connect positive, its size is not known here"
    tokens = _LONG_TOKENS if width > _WIDE else _SHORT_TOKENS
    pooled = config.get("adm_in_channels") or config.get("vec_in_dim") or 1
    pooled = {2816: 1280, 2560: 1280}.get(pooled, pooled)  # SDXL adds sizes to it
    more = {"pooled_output": torch.zeros(1, pooled)}
    text = f"conditioning of {tokens} tokens: none is connected"
    return [[torch.zeros(1, tokens, width), more]], text


def _list_assumptions(model: Any, positive: Any) -> list[str]:
    found = [
        f"{words} of the conditioning takes no time and no memory"
        for name, words in _NOT_FOLLOWED.items()
        if any(name in cond[1] for cond in positive)
    ]
    found += [words for name, words in _OPTIONS.items() if name in model.model_options]
    if any(model.wrappers.values()):
        found.append(_OPTIONS["model_function_wrapper"])
    if any(name.startswith("diffusion_model") for name in model.object_patches):
        found.append("parts of the model that other nodes replace are as they were")
    if not _attention_is_torchs():
        found.append("attention takes no more memory than torch's own")
    if len(positive) > 1:
        found.append("a direction of guidance is one call; parts of conditioning may make it more")
    return list(dict.fromkeys(found))


def _comfy(name: str) -> Any:
    return importlib.import_module(f"comfy.{name}")

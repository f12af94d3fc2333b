"""Record what full-size models allocate, without their memory: the traces of bench_replay.

Every model is built from the numbers below on the meta device and called there once; no weights,
no network. A trace holds the storages that operations made between the call and the moment when
everything it left behind was dropped again: activations, gradients, caches. Parameters and
inputs are not in it. The workspaces of kernels are invisible to torch's dispatch, and are not in
it either. Attention and RMSNorm, which torch computes step by step on meta, are recorded as the
fused CUDA kernels allocate: outputs, and what the backward pass needs.

    python benchmarks/record_traces.py [NAME ...]     a few seconds to half a minute each

Covers: models, recorder, files in benchmarks/traces/.  Leaves to others: replaying them.
Promise: a trace depends on the versions of torch and diffusers in it, never on the machine.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holdfast.memory.profile.recording import SUFFIX, Event, Kind, MemoryPlace, Recording

HERE = Path(__file__).parent / "traces"
META = torch.device("meta")
aten = torch.ops.aten

FLUX: dict[str, Any] = {
    "patch_size": 1,
    "in_channels": 64,
    "num_layers": 19,
    "num_single_layers": 38,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
    "axes_dims_rope": (16, 56, 56),
}
SDXL: dict[str, Any] = {
    "sample_size": 128,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "layers_per_block": 2,
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
# Twelve pictures one after the other, as a server draws them: width x height.
MIXED = (
    (1024, 1024),
    (832, 1216),
    (512, 512),
    (1536, 640),
    (768, 768),
    (1152, 896),
    (640, 1536),
    (1280, 1280),
    (896, 1152),
    (1344, 768),
    (1216, 832),
    (768, 1344),
)
# A language model of 1.1 thousand million parameters, in the manner of Llama.
LLM_LAYERS, LLM_WIDTH, LLM_HEADS, LLM_KEYS, LLM_INNER, LLM_WORDS = 24, 2048, 16, 8, 5632, 32000
LLM_PROMPT, LLM_TOKENS, LLM_BATCH = 128, 200, 4


class Fused(TorchFunctionMode):
    """Attention and RMSNorm as one kernel each, as they run on CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is F.rms_norm:
            return _rms_norm(*args, **kwargs)
        return func(*args, **kwargs)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> torch.Tensor:
    if attn_mask is not None:
        raise NotImplementedError("no model here has an attention mask")
    # The first two outputs are the result and the logsumexp; the others are a few bytes.
    return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal)[0]


class RmsNorm(torch.autograd.Function):
    """What the CUDA kernels of torch's RMSNorm allocate: the result and 1 / rms; two gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        rstd = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
        ctx.save_for_backward(x, weight, rstd)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


def _rms_norm(
    input: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, **_: Any
) -> torch.Tensor:
    return RmsNorm.apply(input, weight)


class Recorder(TorchDispatchMode):
    """Writes down every storage that an operation makes, and when it goes."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.recording = Recording(title=title, started_s=0.0)
        self.recording.places_table.append(MemoryPlace("torch", "meta"))
        self.tag = 0
        self._known: set[int] = set()
        self._slots: list[int] = []  # numbers of blocks that are gone, a heap
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):  # parameters and inputs: there before
            self._see(leaf, counts=False)
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self._see(leaf, counts=True)
        return result

    def _see(self, leaf: object, *, counts: bool) -> None:
        if not isinstance(leaf, torch.Tensor) or leaf.device != META:
            return
        storage = leaf.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        size = storage.nbytes() if counts else 0
        slot = 0
        if size:
            # The lowest number that no live block has: files of them are half as large.
            slot = heapq.heappop(self._slots) if self._slots else self._next()
            self._add(Kind.ALLOC, slot, size)
        weakref.finalize(storage, self._gone, key, slot, size)

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _gone(self, key: int, slot: int, size: int) -> None:
        self._known.discard(key)
        if size:
            heapq.heappush(self._slots, slot)
            self._add(Kind.FREE, slot, size)

    def _add(self, kind: Kind, slot: int, size: int) -> None:
        at = len(self.recording)  # the number of the event stands for the time
        self.recording.add(Event(at, kind, slot << 40, size, 0, 0, self.tag))

    @contextmanager
    def tagged(self, name: str) -> Iterator[None]:
        table = self.recording.tags_table
        if name not in table:
            table.append(name)
        before, self.tag = self.tag, table.index(name)
        try:
            yield
        finally:
            self.tag = before


def _meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def flux_inputs(dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """One picture of 1024 x 1024: 64 x 64 patches, 512 tokens of text."""
    return {
        "hidden_states": _meta(1, 4096, 64, dtype=dtype),
        "encoder_hidden_states": _meta(1, 512, 4096, dtype=dtype),
        "pooled_projections": _meta(1, 768, dtype=dtype),
        "timestep": _meta(1, dtype=dtype),
        "guidance": _meta(1, dtype=dtype),
        "img_ids": _meta(4096, 3, dtype=dtype),
        "txt_ids": _meta(512, 3, dtype=dtype),
    }


def sdxl_inputs(batch: int, width: int, height: int) -> dict[str, Any]:
    """Latents, 77 tokens of text, and the sizes that SDXL is told."""
    dtype = torch.float16
    return {
        "sample": _meta(batch, 4, height // 8, width // 8, dtype=dtype),
        "timestep": _meta(batch, dtype=torch.int64),
        "encoder_hidden_states": _meta(batch, 77, 2048, dtype=dtype),
        "added_cond_kwargs": {
            "text_embeds": _meta(batch, 1280, dtype=dtype),
            "time_ids": _meta(batch, 6, dtype=dtype),
        },
    }


def flux_model() -> torch.nn.Module:
    with META:
        return diffusers.FluxTransformer2DModel(**FLUX).to(torch.bfloat16)


def sdxl_model() -> torch.nn.Module:
    with META:
        return diffusers.UNet2DConditionModel(**SDXL).to(torch.float16)


def flux(recorder: Recorder) -> None:
    """One denoising step of Flux at 1024 x 1024, bfloat16."""
    model, inputs = flux_model().eval(), flux_inputs()
    with torch.no_grad(), recorder, recorder.tagged("step"):
        model(**inputs, return_dict=False)


def sdxl(recorder: Recorder) -> None:
    """One denoising step of SDXL at 1024 x 1024, float16, with guidance (a batch of 2)."""
    model, inputs = sdxl_model().eval(), sdxl_inputs(2, 1024, 1024)
    with torch.no_grad(), recorder, recorder.tagged("step"):
        model(**inputs, return_dict=False)


def mixed(recorder: Recorder) -> None:
    """One denoising step of SDXL at each of 12 sizes, float16, with guidance."""
    model = sdxl_model().eval()
    for width, height in MIXED:
        inputs = sdxl_inputs(2, width, height)
        with torch.no_grad(), recorder, recorder.tagged(f"{width}x{height}"):
            model(**inputs, return_dict=False)


def _train(recorder: Recorder, model: torch.nn.Module, inputs: dict[str, Any]) -> None:
    with recorder:
        with recorder.tagged("forward"):
            output = model(**inputs, return_dict=False)[0]
            loss = F.mse_loss(output.float(), torch.zeros_like(output, dtype=torch.float32))
        with recorder.tagged("backward"):
            loss.backward()
        del output, loss
        model.zero_grad(set_to_none=True)


def flux_train(recorder: Recorder) -> None:
    """One training step of Flux at 1024 x 1024, bfloat16: forward, backward, all gradients."""
    _train(recorder, flux_model().train(), flux_inputs())


def sdxl_train(recorder: Recorder) -> None:
    """One training step of SDXL at 1024 x 1024, float16: forward, backward, all gradients."""
    _train(recorder, sdxl_model().train(), sdxl_inputs(1, 1024, 1024))


class Decoder(torch.nn.Module):
    """One layer of a language model that keeps its keys and values by torch.cat."""

    def __init__(self) -> None:
        super().__init__()
        keys = LLM_WIDTH // LLM_HEADS * LLM_KEYS
        self.before, self.between = torch.nn.RMSNorm(LLM_WIDTH), torch.nn.RMSNorm(LLM_WIDTH)
        self.query = torch.nn.Linear(LLM_WIDTH, LLM_WIDTH, bias=False)
        self.key = torch.nn.Linear(LLM_WIDTH, keys, bias=False)
        self.value = torch.nn.Linear(LLM_WIDTH, keys, bias=False)
        self.out = torch.nn.Linear(LLM_WIDTH, LLM_WIDTH, bias=False)
        self.gate = torch.nn.Linear(LLM_WIDTH, LLM_INNER, bias=False)
        self.up = torch.nn.Linear(LLM_WIDTH, LLM_INNER, bias=False)
        self.down = torch.nn.Linear(LLM_INNER, LLM_WIDTH, bias=False)
        self.cache: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.before(x)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, LLM_WIDTH // LLM_HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        if self.cache is not None:
            key = torch.cat((self.cache[0], key), dim=2)
            value = torch.cat((self.cache[1], value), dim=2)
        self.cache = (key, value)
        seen = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        normed = self.between(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def kv_cat(recorder: Recorder) -> None:
    """A language model, a batch of 4, writes 200 tokens; keys and values grow by torch.cat."""
    dtype = torch.bfloat16
    with META:
        words = torch.nn.Embedding(LLM_WORDS, LLM_WIDTH, dtype=dtype)
        layers = torch.nn.Sequential(*(Decoder() for _ in range(LLM_LAYERS))).to(dtype)
        head = torch.nn.Linear(LLM_WIDTH, LLM_WORDS, bias=False, dtype=dtype)
    tokens = _meta(LLM_BATCH, LLM_PROMPT, dtype=torch.int64)
    with torch.no_grad(), recorder:
        for number in range(LLM_TOKENS):
            with recorder.tagged("token" if number else "prompt"):
                tokens = head(layers(words(tokens))[:, -1:]).argmax(-1)
        with recorder.tagged("end"):
            for layer in layers:
                layer.cache = None
            del tokens


TRACES: dict[str, Callable[[Recorder], None]] = {
    "flux": flux,
    "sdxl": sdxl,
    "sdxl_12_sizes": mixed,
    "flux_train": flux_train,
    "sdxl_train": sdxl_train,
    "kv_cat": kv_cat,
}


def record(name: str) -> Recording:
    """The trace of one entry of TRACES."""
    recorder = Recorder(title=(TRACES[name].__doc__ or name).split("\n")[0].rstrip("."))
    gc.collect()
    gc.disable()  # so that nothing but the end of a reference frees a storage
    try:
        with Fused():
            TRACES[name](recorder)
    finally:
        gc.enable()
    gc.collect()
    recording = recorder.recording
    recording.duration_ns = len(recording)
    recording.notes = [
        "times are event numbers",
        f"torch {torch.__version__}, diffusers {diffusers.__version__}, meta device",
        "activations, gradients and caches; no parameters, inputs or kernel workspaces",
    ]
    return recording


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    known = ", ".join(TRACES)
    parser.add_argument("names", nargs="*", help=f"which of {known} (default: all)")
    parser.add_argument("--out", type=Path, default=HERE, help=f"folder (default {HERE})")
    options = parser.parse_args()
    if unknown := sorted({*options.names} - {*TRACES}):
        parser.error(f"no trace {unknown[0]!r}; there are {known}")
    diffusers.utils.logging.set_verbosity_error()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or TRACES:
        start = time.perf_counter()
        recording = record(name)
        path = recording.save(options.out / f"{name}{SUFFIX}")
        blocks = recording.lifetimes()
        kept = sum(block.end_ns is None for block in blocks)
        print(
            f"{name}: {len(blocks)} blocks, {kept} never freed, {path.stat().st_size // 1000} KB,"
            f" {time.perf_counter() - start:.1f} s"
        )


if __name__ == "__main__":
    main()

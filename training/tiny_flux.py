"""Train tiny-flux: the architecture of FLUX.1-dev at a few million weights, drawing digits.

Covers: the parts of the model, flow matching with prompt dropout, distilled guidance.
Leaves to others: pictures and prompts (digits), tokenizers (vocabulary), latents (autoencoder).

    python training/tiny_flux.py --out DIR [--device cuda] [--seed 0] [--steps N]

`--steps` counts the flow matching; the autoencoder takes half as many, distillation a quarter.
"""

from __future__ import annotations

import copy
import functools

import autoencoder
import torch
import torch.nn.functional as F
from common import (
    Asked,
    Log,
    Trainer,
    arguments,
    count_weights,
    mixed,
    prepare,
    report_score,
    save,
)
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)
from digits import Digits, Size
from transformers import CLIPTextModel, T5Config, T5EncoderModel
from vocabulary import clip_config, clip_tokenizer, sample_prompts, t5_tokenizer

STEPS = 6500
BATCH = 256
POOL = 49_152
DROPOUT = 0.1  # part of the prompts that is left out
GUIDANCE = (1.0, 6.0)  # the range that is distilled
CHANNELS = 8  # of a latent


def make_vae() -> AutoencoderKL:
    more = {"shift_factor": 0.0, "use_quant_conv": False, "use_post_quant_conv": False}
    return autoencoder.make(CHANNELS, **more)


def make_transformer() -> FluxTransformer2DModel:
    transformer = FluxTransformer2DModel(
        in_channels=4 * CHANNELS,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=32,
        num_attention_heads=5,
        joint_attention_dim=128,
        pooled_projection_dim=64,
        guidance_embeds=True,
        axes_dims_rope=(4, 14, 14),
    )
    for name, weight in transformer.named_parameters():
        # Blocks that begin as the identity, and a velocity that begins as 0, learn sooner.
        if name.startswith("proj_out.") or (".norm1" in name or ".norm." in name):
            torch.nn.init.zeros_(weight)
    return transformer


def make_t5(tokenizer) -> T5EncoderModel:
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        is_encoder_decoder=False,
        use_cache=False,
    )
    return T5EncoderModel(config)


def make_scheduler() -> FlowMatchEulerDiscreteScheduler:
    """Every setting as FLUX.1-dev has it."""
    return FlowMatchEulerDiscreteScheduler(
        num_train_timesteps=1000,
        shift=3.0,
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=256,
        max_image_seq_len=4096,
    )


def make_pipeline() -> FluxPipeline:
    """All parts, with untrained weights."""
    prompts = sample_prompts()
    tokenizer, tokenizer_2 = clip_tokenizer(prompts), t5_tokenizer(prompts)
    return FluxPipeline(
        scheduler=make_scheduler(),
        vae=make_vae(),
        text_encoder=CLIPTextModel(clip_config(tokenizer, layers=2)),
        tokenizer=tokenizer,
        text_encoder_2=make_t5(tokenizer_2),
        tokenizer_2=tokenizer_2,
        transformer=make_transformer(),
    )


class Flow(torch.nn.Module):
    """Text encoders and transformer as one function from noisy latents to a velocity."""

    def __init__(self, clip: CLIPTextModel, t5: T5EncoderModel, transformer) -> None:
        super().__init__()
        self.clip, self.t5, self.transformer = clip, t5, transformer
        self.exact: tuple[torch.Tensor, torch.Tensor] | None = None
        transformer.time_text_embed.register_forward_pre_hook(self._put_exact)

    def _put_exact(self, _module, given: tuple) -> tuple:
        """Times and guidance as they are: the transformer rounds them to bfloat16 in training."""
        return (self.exact[0] * 1000, self.exact[1] * 1000, given[2])

    def text(self, ids: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        return self.clip(ids[0]).pooler_output, self.t5(ids[1])[0]

    def forward(self, noisy, time, guidance, text) -> torch.Tensor:
        count, channels, height, width = noisy.shape
        pooled, words = text
        self.exact = (half_rounded(time), half_rounded(guidance))
        made = self.transformer(
            hidden_states=FluxPipeline._pack_latents(noisy, count, channels, height, width),
            encoder_hidden_states=words,
            pooled_projections=pooled,
            timestep=time,
            guidance=guidance,
            img_ids=places(height // 2, width // 2, noisy.device),
            txt_ids=torch.zeros(words.shape[1], 3, device=noisy.device),
        ).sample
        return FluxPipeline._unpack_latents(made.float(), 8 * height, 8 * width, 8)


@functools.cache
def places(height: int, width: int, device: torch.device) -> torch.Tensor:
    """Row and column of each token; kept, because a recorded step must not copy from the host."""
    return FluxPipeline._prepare_latent_image_ids(1, height, width, device, torch.float32)


def half_rounded(values: torch.Tensor) -> torch.Tensor:
    """A quarter of the values as bfloat16 would hold them, so that both types are at home."""
    rough = values.bfloat16().float()
    return torch.where(torch.rand_like(values) < 0.25, rough, values)


def draw_times(count: int, device: torch.device) -> torch.Tensor:
    """Times 0..1, most of them in the middle and a little on the noisy side, as in use."""
    middle = torch.sigmoid(torch.randn(count, device=device))
    times = torch.where(torch.rand(count, device=device) < 0.2, torch.rand_like(middle), middle)
    return 1.5 * times / (1 + 0.5 * times)


def mix(clean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noisy latents, their times, and the velocity from clean to noise."""
    times, noise = draw_times(len(clean), clean.device), torch.randn_like(clean)
    at = times[:, None, None, None]
    return (1 - at) * clean + at * noise, times, noise - clean


def drop(ids: tuple, empty: tuple, part: float) -> tuple:
    """Replace a part of the prompts by the empty prompt."""
    gone = torch.rand(len(ids[0]), 1, device=ids[0].device) < part
    return tuple(torch.where(gone, none, some) for some, none in zip(ids, empty, strict=True))


def match_flow(flow: Flow, pools: dict, empty: tuple, steps: int, seed: int, log: Log) -> Flow:
    """Flow matching of the whole model; returns the average of the weights."""
    trainer = Trainer("flow", [flow], steps, 1e-3, log)

    def loss_of(size: Size) -> torch.Tensor:
        clean, ids = pools[size].batch(BATCH)
        noisy, times, velocity = mix(clean)
        with mixed(clean.device):
            text = flow.text(drop(ids, empty, DROPOUT))
            made = flow(noisy, times, torch.ones_like(times), text)
        return F.mse_loss(made, velocity)

    trainer.run(loss_of, autoencoder.pick_sizes(steps, seed))
    kept = trainer.average.kept[0]
    return Flow(kept.clip, kept.t5, fresh(kept.transformer))


def fresh(transformer):
    """A copy without the hooks of the `Flow` it came from."""
    other = make_transformer().to(transformer.device)
    other.load_state_dict(transformer.state_dict())
    return other


def distil(teacher: Flow, pools: dict, empty: tuple, steps: int, seed: int, log: Log) -> Flow:
    """Teach the guidance embedding what two passes with classifier-free guidance give."""
    teacher.requires_grad_(False)
    student = Flow(teacher.clip, teacher.t5, fresh(teacher.transformer))
    trainer = Trainer("guidance", [student.transformer], steps, 5e-4, log)
    low, high = GUIDANCE

    def loss_of(size: Size) -> torch.Tensor:
        clean, ids = pools[size].batch(BATCH // 2)
        noisy, times, _ = mix(clean)
        guidance, ones = torch.empty_like(times).uniform_(low, high), torch.ones_like(times)
        with mixed(clean.device):
            with torch.no_grad():
                text = teacher.text(drop(ids, empty, DROPOUT))
                none = teacher.text(tuple(one.expand(len(clean), -1) for one in empty))
                plain = teacher(noisy, times, ones, none)
                aimed = teacher(noisy, times, ones, text)
            made = student(noisy, times, guidance, text)
        return F.mse_loss(made, plain + guidance[:, None, None, None] * (aimed - plain))

    trainer.run(loss_of, autoencoder.pick_sizes(steps, seed))
    return Flow(teacher.clip, teacher.t5, fresh(trainer.average.kept[0]))


def train(pipe: FluxPipeline, asked: Asked, log: Log) -> None:
    """Train every part of `pipe` in place."""
    device, steps, seed, out = asked.device, asked.steps, asked.seed, asked.out
    digits = Digits(device)
    vae = autoencoder.train(pipe.vae, digits, max(1, steps // 2), seed, log)
    tokenizers = [pipe.tokenizer, pipe.tokenizer_2]
    pools = autoencoder.fill_all(vae, digits, tokenizers, min(POOL, 16 * steps), seed + 10, log)
    empty = autoencoder.tokens_of(tokenizers, [""], device)
    flow = Flow(pipe.text_encoder, pipe.text_encoder_2, pipe.transformer).to(device).train()
    teacher = match_flow(flow, pools, empty, steps, seed + 20, log)
    assemble(pipe, vae, teacher)
    save(copy.deepcopy(pipe), out)  # already draws, though guidance does nothing yet
    assemble(pipe, vae, distil(teacher, pools, empty, max(1, steps // 4), seed + 30, log))


def assemble(pipe: FluxPipeline, vae: AutoencoderKL, flow: Flow) -> None:
    """Put trained parts in the place of `pipe`'s own."""
    pipe.register_modules(
        vae=vae.to(memory_format=torch.contiguous_format),
        text_encoder=copy.deepcopy(flow.clip),
        text_encoder_2=copy.deepcopy(flow.t5),
        transformer=fresh(flow.transformer),
    )


def main() -> None:
    asked = arguments(__doc__.splitlines()[0], STEPS)
    log = Log(asked.log)
    log.header(asked)
    prepare(asked)
    pipe = make_pipeline()
    parts = {"transformer": pipe.transformer, "vae": pipe.vae}
    parts |= {"text_encoder": pipe.text_encoder, "text_encoder_2": pipe.text_encoder_2}
    log.say(count_weights(parts))
    if asked.steps:
        train(pipe, asked, log)
    save(pipe, asked.out)
    report_score(asked.out, log, asked.device)


if __name__ == "__main__":
    main()

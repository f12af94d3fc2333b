"""Train tiny-sdxl: the architecture of Stable Diffusion XL at a few million weights.

Covers: the parts of the model, noise prediction with prompt dropout.
Leaves to others: pictures and prompts (digits), tokenizers (vocabulary), latents (autoencoder).

    python training/tiny_sdxl.py --out DIR [--device cuda] [--seed 0] [--steps N] [--seconds S]

The autoencoder starts from tiny-flux's, so it takes only a quarter of the steps.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path

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
    EulerDiscreteScheduler,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from digits import Digits, Size
from transformers import CLIPTextModel, CLIPTextModelWithProjection
from vocabulary import clip_config, clip_tokenizer, sample_prompts

FLUX_VAE = Path(__file__).parent.parent / "src/holdfast/pipeline/models/tiny-flux/vae"
STEPS = 5000
BATCH = 128
POOL = 24_576
DROPOUT = 0.12  # part of the prompts that is left out
WIDTH = 64  # of each text encoder


def make_vae() -> AutoencoderKL:
    """Four channels of latent; every weight that fits is taken from tiny-flux."""
    vae = autoencoder.make(4)
    if FLUX_VAE.exists():
        given = AutoencoderKL.from_pretrained(FLUX_VAE, dtype=torch.float32).state_dict()
        own = vae.state_dict()
        vae.load_state_dict(own | {k: v for k, v in given.items() if v.shape == own[k].shape})
    return vae


def make_unet() -> UNet2DConditionModel:
    return UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(32, 64, 80),
        layers_per_block=1,
        transformer_layers_per_block=1,
        attention_head_dim=(1, 2, 2),
        norm_num_groups=16,
        cross_attention_dim=2 * WIDTH,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=32,
        projection_class_embeddings_input_dim=WIDTH + 6 * 32,
    )


def make_scheduler() -> EulerDiscreteScheduler:
    """Every setting as SDXL's base model has it."""
    return EulerDiscreteScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="epsilon",
        interpolation_type="linear",
        timestep_spacing="leading",
        steps_offset=1,
    )


def make_pipeline() -> StableDiffusionXLPipeline:
    """All parts; only the autoencoder has trained weights."""
    prompts = sample_prompts()
    tokenizer, tokenizer_2 = clip_tokenizer(prompts), clip_tokenizer(prompts, pad="!")
    return StableDiffusionXLPipeline(
        vae=make_vae(),
        text_encoder=CLIPTextModel(clip_config(tokenizer, layers=3)),
        text_encoder_2=CLIPTextModelWithProjection(clip_config(tokenizer_2, layers=3)),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer_2,
        unet=make_unet(),
        scheduler=make_scheduler(),
        force_zeros_for_empty_prompt=True,
        add_watermarker=False,
    )


class Denoiser(torch.nn.Module):
    """Text encoders and U-Net as one function from noisy latents to their noise."""

    def __init__(self, text_encoder, text_encoder_2, unet: UNet2DConditionModel) -> None:
        super().__init__()
        self.text_encoder, self.text_encoder_2, self.unet = text_encoder, text_encoder_2, unet

    def text(self, ids: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        """Words from the last layer but one of both, and the second one's summary."""
        first = self.text_encoder(ids[0], output_hidden_states=True)
        second = self.text_encoder_2(ids[1], output_hidden_states=True)
        words = torch.cat([first.hidden_states[-2], second.hidden_states[-2]], dim=-1)
        return words, second.text_embeds

    def forward(self, noisy, times, ids: tuple, kept: torch.Tensor, size: Size) -> torch.Tensor:
        """`kept` is 0 where the prompt is left out: its embeddings are zeros, as in use."""
        words, summary = self.text(ids)
        added = {
            "text_embeds": summary * kept,
            "time_ids": size_ids(size, noisy.device).expand(len(noisy), -1),
        }
        return self.unet(noisy, times, words * kept[:, None], added_cond_kwargs=added).sample


@functools.cache
def size_ids(size: Size, device: torch.device) -> torch.Tensor:
    """Original size, crop and target size of a picture that was never cut."""
    return torch.tensor([[*size, 0, 0, *size]], dtype=torch.float32, device=device)


def learn_noise(model: Denoiser, pools: dict, asked: Asked, log: Log) -> Denoiser:
    """Train the whole model to see the noise; returns the average of the weights."""
    kept_part = make_scheduler().alphas_cumprod.to(asked.device)
    trainer = Trainer("noise", [model], asked.steps, 1.2e-3, log, seconds=asked.seconds)

    def loss_of(size: Size) -> torch.Tensor:
        clean, ids = pools[size].batch(BATCH)
        noise = torch.randn_like(clean)
        times = torch.randint(len(kept_part), (BATCH,), device=clean.device)
        part = kept_part[times][:, None, None, None]
        noisy = part.sqrt() * clean + (1 - part).sqrt() * noise
        kept = (torch.rand(BATCH, 1, device=clean.device) >= DROPOUT).float()
        with mixed(clean.device):
            made = model(noisy, times, ids, kept, size)
        return F.mse_loss(made.float(), noise)

    trainer.run(loss_of, autoencoder.pick_sizes(asked.steps, asked.seed + 20))
    return trainer.average.kept[0]


def train(pipe: StableDiffusionXLPipeline, asked: Asked, log: Log) -> None:
    """Train every part of `pipe` in place."""
    digits = Digits(asked.device)
    steps = max(1, asked.steps // 4)
    vae = autoencoder.train(pipe.vae, digits, steps, asked.seed, log, peak=1e-3)
    tokenizers = [pipe.tokenizer, pipe.tokenizer_2]
    count = min(POOL, 16 * asked.steps)
    pools = autoencoder.fill_all(vae, digits, tokenizers, count, asked.seed + 10, log)
    model = Denoiser(pipe.text_encoder, pipe.text_encoder_2, pipe.unet).to(asked.device).train()
    model = learn_noise(model, pools, asked, log)
    pipe.register_modules(
        vae=vae.to(memory_format=torch.contiguous_format),
        text_encoder=copy.deepcopy(model.text_encoder),
        text_encoder_2=copy.deepcopy(model.text_encoder_2),
        unet=copy.deepcopy(model.unet),
    )


def main() -> None:
    asked = arguments(__doc__.splitlines()[0], STEPS)
    log = Log(asked.log)
    log.header(asked)
    prepare(asked)
    pipe = make_pipeline()
    parts = {"unet": pipe.unet, "vae": pipe.vae}
    parts |= {"text_encoder": pipe.text_encoder, "text_encoder_2": pipe.text_encoder_2}
    log.say(count_weights(parts))
    if asked.steps:
        train(pipe, asked, log)
    save(pipe, asked.out)
    report_score(asked.out, log, asked.device)


if __name__ == "__main__":
    main()

"""Train the picture autoencoders of the tiny models, and fill a pool with latents and tokens.

Covers: the loss of `AutoencoderKL`, its scaling and shift, pools of encoded pictures by size.
Leaves to others: what is drawn (digits), what is learnt from the latents (tiny_flux, tiny_sdxl).
Promise: after `train`, latents of the drawn pictures have mean 0 and deviation 1 under the
autoencoder's own `shift_factor` and `scaling_factor`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from common import Log, Trainer, mixed
from diffusers import AutoencoderKL
from digits import Digits, Size, Wish, draw_wish, phrase

# Height and width of the pictures to learn from; the first is the one the models are made for.
SIZES = (
    (128, 128),
    (96, 96),
    (112, 112),
    (144, 144),
    (160, 160),
    (96, 128),
    (128, 96),
    (128, 160),
    (160, 128),
)
MAIN_PART = 0.55  # part of the steps that use the first size
SIZES_FOR_ITSELF = (SIZES[0], SIZES[1], SIZES[-1])  # convolutions need no more
KL_WEIGHT = 1e-3
BATCH = 24


def make(channels: int, **more) -> AutoencoderKL:
    """An untrained autoencoder: a latent of `channels` for every 8x8 pixels."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 64, 64),
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=8,
        sample_size=128,
        scaling_factor=1.0,
        **more,
    )


def pick_sizes(steps: int, seed: int, sizes: Sequence[Size] = SIZES) -> list[Size]:
    """A size for each step."""
    rng = random.Random(seed)
    return [sizes[0] if rng.random() < MAIN_PART else rng.choice(sizes[1:]) for _ in range(steps)]


def edges(pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Differences of neighbours, down and across."""
    return pictures.diff(dim=-2), pictures.diff(dim=-1)


def picture_loss(made: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Difference of colours and of edges: edges keep strokes clean."""
    loss = F.l1_loss(made, real) + F.mse_loss(made, real)
    for one, other in zip(edges(made), edges(real), strict=True):
        loss = loss + F.l1_loss(one, other)
    return loss


def train(
    vae: AutoencoderKL, digits: Digits, steps: int, seed: int, log: Log, peak: float = 2e-3
) -> AutoencoderKL:
    """Train `vae`; returns the average of its weights, with scaling and shift set."""
    vae = vae.to(digits.device, memory_format=torch.channels_last).train()
    trainer = Trainer("autoencoder", [vae], steps, peak, log, decay=0.0)

    def loss_of(size: Size) -> torch.Tensor:
        real = digits.draw_any(BATCH, size).contiguous(memory_format=torch.channels_last)
        with mixed(digits.device):
            spread = vae.encode(real).latent_dist
            noise = torch.randn_like(spread.mean)
            made = vae.decode(spread.mean + spread.std * noise).sample
        return picture_loss(made.float(), real) + KL_WEIGHT * kl(spread)

    trainer.run(loss_of, pick_sizes(steps, seed, SIZES_FOR_ITSELF))
    vae = trainer.average.kept[0]
    measure(vae, digits, log)
    return vae


def kl(spread) -> torch.Tensor:
    """Mean over all latents of the distance to a normal distribution, in nats."""
    mean, logvar = spread.mean.float(), spread.logvar.float()
    return 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()


@torch.no_grad()
def measure(vae: AutoencoderKL, digits: Digits, log: Log) -> None:
    """Set scaling and shift from the data, and say how well pictures come back."""
    real = digits.draw_any(256, SIZES[0], wild=0.0)
    latents = vae.encode(real).latent_dist.sample()
    shift, scale = latents.mean().item(), 1 / latents.std().item()
    if vae.config.shift_factor is None:
        shift, scale = 0.0, 1 / latents.square().mean().sqrt().item()
        vae.register_to_config(scaling_factor=scale)
    else:
        vae.register_to_config(scaling_factor=scale, shift_factor=shift)
    error = (vae.decode(latents).sample.clamp(-1, 1) - real).square().mean()
    decibels = 10 * torch.log10(4 / error).item()
    log.say(f"autoencoder: {decibels:.1f} dB, scaling {scale:.4f}, shift {shift:.4f}")


def normalise(vae: AutoencoderKL, latents: torch.Tensor) -> torch.Tensor:
    return (latents - (vae.config.shift_factor or 0.0)) * vae.config.scaling_factor


@dataclass(frozen=True)
class Pool:
    """Encoded pictures of one size with their prompts' tokens, all on the device."""

    latents: torch.Tensor
    tokens: tuple[torch.Tensor, ...]

    def batch(self, count: int) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """`count` of them at random."""
        rows = torch.randint(len(self.latents), (count,), device=self.latents.device)
        return self.latents[rows], tuple(ids[rows] for ids in self.tokens)


def tokens_of(tokenizers: list, prompts: list[str], device: torch.device) -> tuple:
    """The ids of prompts, one tensor [N, length] for each tokenizer."""
    return tuple(
        tokenizer(
            prompts,
            padding="max_length",
            max_length=tokenizer.model_max_length,
            truncation=True,
            return_tensors="pt",
        ).input_ids.to(device)
        for tokenizer in tokenizers
    )


@torch.no_grad()
def fill(vae, digits: Digits, tokenizers: list, size: Size, count: int, seed: int) -> Pool:
    """Draw and encode `count` pictures of one size, with a prompt for each."""
    rng = random.Random(seed)
    wishes: list[Wish] = [draw_wish(rng) for _ in range(count)]
    latents = []
    for at in range(0, count, 512):
        some = wishes[at : at + 512]
        pictures = digits.draw(digits.rows_for(some, rng), digits.colours_for(some), size)
        with mixed(digits.device):
            spread = vae.encode(pictures).latent_dist
        latents.append(normalise(vae, spread.sample().float()))
    prompts = [phrase(wish, rng) for wish in wishes]
    return Pool(torch.cat(latents), tokens_of(tokenizers, prompts, digits.device))


def fill_all(vae, digits: Digits, tokenizers: list, count: int, seed: int, log: Log) -> dict:
    """A pool for each size: `count` pictures of the first, an eighth of that of each other."""
    pools = {}
    for number, size in enumerate(SIZES):
        share = count if number == 0 else max(1, count // 8)
        pools[size] = fill(vae, digits, tokenizers, size, share, seed + number)
    log.say(f"pool: {sum(len(pool.latents) for pool in pools.values())} pictures with prompts")
    return pools

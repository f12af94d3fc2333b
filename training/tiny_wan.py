"""Train tiny-wan: the architecture of Wan 2.1 at a few million weights, drawing digits that move.

Covers: the parts of the model, the video autoencoder, flow matching with prompt dropout.
Leaves to others: videos and prompts (motion), tokenizers (vocabulary).

    python training/tiny_wan.py --out DIR [--device cuda] [--seed 0] [--steps N] [--seconds S]

The autoencoder takes half as many steps as the flow matching.
"""

from __future__ import annotations

import copy
import random

import torch
import torch.nn.functional as F
from autoencoder import Pool, kl, picture_loss
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
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
)
from digits import Digits
from motion import (
    MOTIONS,
    Clip,
    draw_any_video,
    draw_scene,
    draw_video,
    motion_rows,
    say,
)
from transformers import UMT5Config, UMT5EncoderModel
from vocabulary import sample_prompts, t5_tokenizer

STEPS = 4000
BATCH = 128
VIDEOS = 12  # in a step of the autoencoder
POOL = 16_384
DROPOUT = 0.12  # part of the prompts that is left out
CHANNELS = 8  # of a latent
CLIPS: tuple[Clip, ...] = ((9, 64, 64), (17, 64, 64), (9, 96, 96))
MAIN_PART = 0.6  # part of the steps that use the first of them
KL_WEIGHT = 5e-4


def make_vae() -> AutoencoderKLWan:
    return AutoencoderKLWan(
        base_dim=12,
        z_dim=CHANNELS,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=1,
        attn_scales=[],
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * CHANNELS,
        latents_std=[1.0] * CHANNELS,
    )


def make_transformer() -> WanTransformer3DModel:
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        text_dim=128,
        freq_dim=128,
        ffn_dim=384,
        num_layers=6,
        rope_max_seq_len=64,
    )
    torch.nn.init.zeros_(transformer.proj_out.weight)
    return transformer


def make_text_encoder(tokenizer) -> UMT5EncoderModel:
    config = UMT5Config(
        vocab_size=len(tokenizer),
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        is_encoder_decoder=False,
        use_cache=False,
    )
    return UMT5EncoderModel(config)


def make_scheduler() -> UniPCMultistepScheduler:
    """Every setting as Wan 2.1 has it."""
    return UniPCMultistepScheduler(
        num_train_timesteps=1000,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=3.0,
        solver_order=2,
        timestep_spacing="linspace",
        final_sigmas_type="zero",
    )


def make_pipeline() -> WanPipeline:
    """All parts, with untrained weights."""
    rng = random.Random(2)
    tokenizer = t5_tokenizer(sample_prompts(more=[say(draw_scene(rng), rng) for _ in range(9000)]))
    return WanPipeline(
        tokenizer=tokenizer,
        text_encoder=make_text_encoder(tokenizer),
        vae=make_vae(),
        scheduler=make_scheduler(),
        transformer=make_transformer(),
    )


def pick_clips(steps: int, seed: int) -> list[Clip]:
    """A length and size for each step."""
    rng = random.Random(seed)
    return [CLIPS[0] if rng.random() < MAIN_PART else rng.choice(CLIPS[1:]) for _ in range(steps)]


def train_vae(vae: AutoencoderKLWan, digits: Digits, asked: Asked, log: Log) -> AutoencoderKLWan:
    """Train `vae`; returns the average of its weights, with the latents' mean and spread set."""
    vae = vae.to(digits.device).train()
    table = torch.tensor(list(MOTIONS.values()), device=digits.device)
    trainer = Trainer(
        "autoencoder", [vae], max(1, asked.steps // 2), 2e-3, log, decay=0.0, seconds=asked.seconds
    )

    def loss_of(clip: Clip) -> torch.Tensor:
        real = draw_any_video(digits, table, VIDEOS, clip)
        with mixed(digits.device):
            spread = vae.encode(real).latent_dist
            noise = torch.randn_like(spread.mean)
            made = vae.decode(spread.mean + spread.std * noise).sample
        return picture_loss(made.float(), real) + KL_WEIGHT * kl(spread)

    trainer.run(loss_of, [CLIPS[0]] * trainer.steps)
    vae = trainer.average.kept[0]
    measure(vae, draw_any_video(digits, table, 64, CLIPS[0]), log)
    return vae


@torch.no_grad()
def measure(vae: AutoencoderKLWan, real: torch.Tensor, log: Log) -> None:
    """Set mean and spread of each channel from the data, and say how well videos come back."""
    latents = vae.encode(real).latent_dist.sample()
    vae.register_to_config(
        latents_mean=latents.mean(dim=(0, 2, 3, 4)).tolist(),
        latents_std=latents.std(dim=(0, 2, 3, 4)).tolist(),
    )
    error = (vae.decode(latents).sample.clamp(-1, 1) - real).square().mean()
    log.say(f"autoencoder: {10 * torch.log10(4 / error).item():.1f} dB")


def normalise(vae: AutoencoderKLWan, latents: torch.Tensor) -> torch.Tensor:
    mean, std = (
        torch.tensor(values, device=latents.device)[:, None, None, None]
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return (latents - mean) / std


def tokens_of(tokenizer, prompts: list[str], device: torch.device) -> tuple:
    """Ids and mask of prompts, each [N, length]."""
    got = tokenizer(
        prompts,
        padding="max_length",
        max_length=tokenizer.model_max_length,
        truncation=True,
        return_tensors="pt",
    )
    return got.input_ids.to(device), got.attention_mask.to(device)


@torch.no_grad()
def fill(vae, digits: Digits, tokenizer, clip: Clip, count: int, seed: int) -> Pool:
    """Draw and encode `count` videos of one length and size, with a prompt for each."""
    rng = random.Random(seed)
    scenes = [draw_scene(rng) for _ in range(count)]
    latents = []
    for at in range(0, count, 256):
        some = scenes[at : at + 256]
        wishes = [scene.wish for scene in some]
        rows, colours = digits.rows_for(wishes, rng), digits.colours_for(wishes)
        videos = draw_video(digits, rows, colours, motion_rows(some, digits.device), clip)
        with mixed(digits.device):
            spread = vae.encode(videos).latent_dist
        latents.append(normalise(vae, spread.sample().float()))
    prompts = [say(scene, rng) for scene in scenes]
    return Pool(torch.cat(latents), tokens_of(tokenizer, prompts, digits.device))


class Flow(torch.nn.Module):
    """Text encoder and transformer as one function from noisy latents to a velocity."""

    def __init__(self, text_encoder: UMT5EncoderModel, transformer) -> None:
        super().__init__()
        self.text_encoder, self.transformer = text_encoder, transformer

    def forward(self, noisy: torch.Tensor, times: torch.Tensor, tokens: tuple) -> torch.Tensor:
        ids, mask = tokens
        # A mask in four dimensions is taken as it is; one in two is looked at on the host.
        shut = (1.0 - mask[:, None, None].float()) * -1e9
        words = self.text_encoder(ids, shut.expand(-1, 1, ids.shape[1], -1)).last_hidden_state
        words = words * mask[..., None]
        return self.transformer(noisy, 1000 * times, words).sample


def match_flow(flow: Flow, pools: dict, empty: tuple, asked: Asked, log: Log) -> Flow:
    """Flow matching of the whole model; returns the average of the weights."""
    trainer = Trainer("flow", [flow], asked.steps, 1.2e-3, log, seconds=asked.seconds)

    def loss_of(clip: Clip) -> torch.Tensor:
        clean, tokens = pools[clip].batch(BATCH)
        noise, times = torch.randn_like(clean), torch.rand(BATCH, device=clean.device)
        times = 2 * times / (1 + times)  # more of the noisy side, as in use
        at = times[:, None, None, None, None]
        gone = torch.rand(BATCH, 1, device=clean.device) < DROPOUT
        tokens = tuple(torch.where(gone, e, t) for e, t in zip(empty, tokens, strict=True))
        with mixed(clean.device):
            made = flow((1 - at) * clean + at * noise, times, tokens)
        return F.mse_loss(made.float(), noise - clean)

    trainer.run(loss_of, pick_clips(asked.steps, asked.seed + 20))
    return trainer.average.kept[0]


def train(pipe: WanPipeline, asked: Asked, log: Log) -> None:
    """Train every part of `pipe` in place."""
    digits = Digits(asked.device)
    vae = train_vae(pipe.vae, digits, asked, log)
    pools = {}
    for number, clip in enumerate(CLIPS):
        count = min(POOL, 16 * asked.steps) // (1 if number == 0 else 4)
        pools[clip] = fill(vae, digits, pipe.tokenizer, clip, count, asked.seed + number)
    log.say(f"pool: {sum(len(pool.latents) for pool in pools.values())} videos with prompts")
    empty = tokens_of(pipe.tokenizer, [""], asked.device)
    flow = Flow(pipe.text_encoder, pipe.transformer).to(asked.device).train()
    flow = match_flow(flow, pools, empty, asked, log)
    pipe.register_modules(
        vae=vae,
        text_encoder=copy.deepcopy(flow.text_encoder),
        transformer=copy.deepcopy(flow.transformer),
    )


def main() -> None:
    asked = arguments(__doc__.splitlines()[0], STEPS)
    log = Log(asked.log)
    log.header(asked)
    prepare(asked)
    pipe = make_pipeline()
    parts = {"transformer": pipe.transformer, "vae": pipe.vae, "text_encoder": pipe.text_encoder}
    log.say(count_weights(parts))
    if asked.steps:
        train(pipe, asked, log)
    save(pipe, asked.out)
    report_score(asked.out, log, asked.device)


if __name__ == "__main__":
    main()

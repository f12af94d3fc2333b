"""Tiny configurations of diffusers' audio and temporal transformers.

Covers: ACE-Step (a length that the patch does not divide, sliding and full attention, grouped
heads), MiniMax Music 3 and the temporal transformer of the video UNets.
"""

from __future__ import annotations

from holdfast.xla.tiny.spec import Tiny, random, values

TINY: dict[str, Tiny] = {
    "diffusers:AceStepTransformer1DModel": Tiny(
        config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "in_channels": 24,
            "audio_acoustic_hidden_dim": 8,
            "patch_size": 2,
            "sliding_window": 3,
            "encoder_hidden_size": 20,
        },
        inputs={
            "hidden_states": random(2, 21, 8),
            "timestep": values([0.75, 0.75]),
            "timestep_r": values([0.75, 0.75]),
            "encoder_hidden_states": random(2, 7, 20),
            "context_latents": random(2, 21, 16),
        },
    ),
    "diffusers:MiniMaxMusic3Transformer1DModel": Tiny(
        config={
            "in_channels": 8,
            "condition_dim": 24,
            "num_layers": 2,
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "ff_inner_dim": 96,
            "rotary_dim": 8,
            "fourier_embedding_dim": 32,
        },
        inputs={
            "hidden_states": random(2, 8, 19),
            "timestep": values([0.25, 0.25]),
            "encoder_hidden_states": random(2, 19, 24),
        },
    ),
    "diffusers:TransformerTemporalModel": Tiny(
        config={
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "in_channels": 16,
            "num_layers": 2,
            "norm_num_groups": 4,
        },
        inputs={
            "hidden_states": random(10, 16, 3, 7),
            "num_frames": 5,
        },
    ),
}

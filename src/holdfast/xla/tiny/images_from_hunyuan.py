"""Tiny image transformers, HunyuanImage to Z-Image.

Covers: two blocks of every kind where the class lets one choose, and one denoising step's inputs
as the class's pipeline gives them, prompts padded where the pipeline pads.
"""

from __future__ import annotations

from holdfast.xla.tiny.spec import Tiny, random, values


def _grid(height: int, width: int, first: float = 0, start: float = 0) -> list[list[float]]:
    """Positions (first, row, column) of an image's tokens, row by row."""
    return [
        [first, start + row, start + column] for row in range(height) for column in range(width)
    ]


def _line(length: int, first: float | None = None) -> list[list[float]]:
    """Positions (first, i, i) of a text's tokens; (i, i, i) without `first`."""
    return [[i if first is None else first, i, i] for i in range(length)]


def _omnigen_mask(pad: int, text: int, image: int) -> list[list[float]]:
    """Causal over the text and the time token, everything for the image, nothing sees the pad."""
    length = pad + text + 1 + image
    return [
        [
            float(row < pad or (column >= pad and (column <= row or row > pad + text)))
            for column in range(length)
        ]
        for row in range(length)
    ]


TINY: dict[str, Tiny] = {
    "diffusers:HunyuanImageTransformer2DModel": Tiny(
        config={
            "in_channels": 6,
            "out_channels": 6,
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "num_layers": 2,
            "num_single_layers": 2,
            "num_refiner_layers": 2,
            "mlp_ratio": 2.0,
            "patch_size": (1, 1),
            "guidance_embeds": True,
            "text_embed_dim": 24,
            "rope_axes_dim": (8, 8),
            "use_meanflow": True,
        },
        inputs={
            "hidden_states": random(2, 6, 5, 7),
            "timestep": values([750.0, 750.0]),
            "timestep_r": values([500.0, 500.0]),
            "encoder_hidden_states": random(2, 9, 24),
            "encoder_attention_mask": values([[1] * 9, [1] * 5 + [0] * 4]),
            "guidance": values([3500.0, 3500.0]),
        },
    ),
    "diffusers:Ideogram4Transformer2DModel": Tiny(
        config={
            "in_channels": 12,
            "num_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 3,
            "intermediate_size": 80,
            "adaln_dim": 20,
            "llm_features_dim": 28,
            "mrope_section": (4, 2, 2),
        },
        inputs={
            "hidden_states": random(2, 22, 12),
            "timestep": values([0.25, 0.25]),
            "encoder_hidden_states": random(2, 22, 28),
            "position_ids": values(
                [
                    _line(7) + _grid(3, 5, 65536, 65536),
                    [[0, 0, 0]] * 3 + _line(4) + _grid(3, 5, 65536, 65536),
                ]
            ),
            "segment_ids": values([[1] * 22, [-1] * 3 + [1] * 19]),
            "indicator": values([[3] * 7 + [2] * 15, [0] * 3 + [3] * 4 + [2] * 15]),
        },
    ),
    "diffusers:Krea2Transformer2DModel": Tiny(
        config={
            "in_channels": 12,
            "num_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "timestep_embed_dim": 32,
            "text_hidden_dim": 24,
            "num_text_layers": 3,
            "text_num_attention_heads": 3,
            "text_num_key_value_heads": 3,
            "text_intermediate_size": 40,
            "num_layerwise_text_blocks": 2,
            "num_refiner_text_blocks": 2,
            "axes_dims_rope": (4, 6, 6),
        },
        inputs={
            "hidden_states": random(2, 35, 12),
            "encoder_hidden_states": random(2, 9, 3, 24),
            "timestep": values([0.75, 0.75]),
            "position_ids": values([[0, 0, 0]] * 9 + _grid(5, 7)),
            "encoder_attention_mask": values([[True] * 9, [True] * 6 + [False] * 3]),
        },
    ),
    "diffusers:LongCatImageTransformer2DModel": Tiny(
        config={
            "patch_size": 1,
            "in_channels": 12,
            "num_layers": 2,
            "num_single_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 24,
            "pooled_projection_dim": 24,
            "axes_dims_rope": [4, 6, 6],
        },
        inputs={
            "hidden_states": random(1, 35, 12),
            "encoder_hidden_states": random(1, 11, 24),
            "timestep": values([0.5]),
            "img_ids": values(_grid(5, 7, 1.0, 11.0)),
            "txt_ids": values(_line(11, 0.0)),
        },
    ),
    "diffusers:Lumina2Transformer2DModel": Tiny(
        config={
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "hidden_size": 48,
            "num_layers": 2,
            "num_refiner_layers": 2,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "multiple_of": 16,
            "axes_dim_rope": (4, 4, 4),
            "axes_lens": (24, 16, 16),
            "cap_feat_dim": 20,
        },
        inputs={
            "hidden_states": random(2, 4, 6, 10),
            "timestep": values([0.25, 0.25]),
            "encoder_hidden_states": random(2, 11, 20),
            "encoder_attention_mask": values([[1] * 11, [1] * 6 + [0] * 5]),
        },
        notes={
            "encoder_attention_mask": "its row sums are the lengths of the sequences, a shape",
        },
        static=("encoder_attention_mask",),
    ),
    "diffusers:NucleusMoEImageTransformer2DModel": Tiny(
        config={
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 4,
            "num_layers": 6,
            "attention_head_dim": 16,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "joint_attention_dim": 24,
            "axes_dims_rope": (4, 6, 6),
            "mlp_ratio": 4.0,
            "num_experts": 4,
            "moe_intermediate_dim": 24,
            "capacity_factors": 2.0,
        },
        inputs={
            "hidden_states": random(2, 35, 16),
            "img_shapes": [(1, 5, 7), (1, 5, 7)],
            "encoder_hidden_states": random(2, 9, 24),
            "encoder_hidden_states_mask": values([[True] * 9, [True] * 5 + [False] * 4]),
            "timestep": values([0.75, 0.75]),
        },
    ),
    "diffusers:OmniGenTransformer2DModel": Tiny(
        config={
            "in_channels": 4,
            "patch_size": 2,
            "hidden_size": 48,
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "intermediate_size": 80,
            "num_layers": 2,
            "pad_token_id": 0,
            "vocab_size": 40,
            "rope_scaling": {
                "short_factor": [1.0, 1.0, 1.05, 1.1, 1.1, 1.25, 1.4, 1.5],
                "long_factor": [1.0, 1.05, 1.2, 1.5, 2.0, 3.0, 5.0, 8.0],
            },
            "pos_embed_max_size": 10,
            "time_step_dim": 32,
        },
        inputs={
            "hidden_states": random(2, 4, 6, 10),
            "timestep": values([0.25, 0.25]),
            "input_ids": values(
                [[1, 7, 0, 0, 0, 0, 0, 0, 31, 12, 5], [0, 0, 0, 0, 0, 0, 0, 0, 1, 9, 22]]
            ),
            "input_img_latents": [random(1, 4, 4, 6)],
            "input_image_sizes": {0: [[2, 8]]},
            "attention_mask": values(
                [
                    [
                        [
                            1.0 if 2 <= row < 8 and 2 <= column < 8 else sees
                            for column, sees in enumerate(line)
                        ]
                        for row, line in enumerate(_omnigen_mask(0, 11, 15))
                    ],
                    _omnigen_mask(8, 3, 15),
                ]
            ),
            "position_ids": values([list(range(27)), [0] * 8 + list(range(19))]),
        },
        notes={
            "position_ids": "the largest one decides which table of frequencies is taken",
        },
        static=("position_ids",),
    ),
    "diffusers:OvisImageTransformer2DModel": Tiny(
        config={
            "patch_size": 1,
            "in_channels": 12,
            "out_channels": 12,
            "num_layers": 2,
            "num_single_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 24,
            "axes_dims_rope": (4, 6, 6),
        },
        inputs={
            "hidden_states": random(1, 35, 12),
            "encoder_hidden_states": random(1, 11, 24),
            "timestep": values([0.5]),
            "img_ids": values(_grid(5, 7, 0.0)),
            "txt_ids": values(_line(11, 0.0)),
        },
    ),
    "diffusers:PRXTransformer2DModel": Tiny(
        config={
            "in_channels": 4,
            "patch_size": 2,
            "context_in_dim": 20,
            "hidden_size": 48,
            "mlp_ratio": 2.5,
            "num_heads": 3,
            "depth": 2,
            "axes_dim": [8, 8],
        },
        inputs={
            "hidden_states": random(2, 4, 6, 10),
            "timestep": values([0.5, 0.5]),
            "encoder_hidden_states": random(2, 11, 20),
            "attention_mask": values([[True] * 11, [True] * 4 + [False] * 7]),
        },
    ),
    "diffusers:PixArtTransformer2DModel": Tiny(
        config={
            "num_attention_heads": 3,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 2,
            "cross_attention_dim": 48,
            "sample_size": 16,
            "patch_size": 2,
            "use_additional_conditions": True,
            "caption_channels": 20,
        },
        inputs={
            "hidden_states": random(2, 4, 6, 10),
            "encoder_hidden_states": random(2, 11, 20),
            "timestep": values([501, 501]),
            "added_cond_kwargs": {
                "resolution": values([[48.0, 80.0], [48.0, 80.0]]),
                "aspect_ratio": values([[0.6], [0.6]]),
            },
            "encoder_attention_mask": values([[1] * 11, [1] * 4 + [0] * 7]),
        },
    ),
    "diffusers:QwenImage21Transformer2DModel": Tiny(
        config={
            "patch_size": 1,
            "in_channels": 12,
            "out_channels": 12,
            "num_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 3,
            "context_in_dim": 20,
            "mlp_ratio": 2,
            "axes_dims_rope": (4, 6, 6),
        },
        inputs={
            "hidden_states": random(2, 84, 12),
            "encoder_hidden_states": random(2, 13, 20),
            "timestep": values([0.75, 0.75]),
            "img_shapes": [[(1, 4, 6), (1, 6, 10)], [(1, 4, 6), (1, 6, 10)]],
            "img_mask": values([[False] * 3 + [True] * 6 + [False] * 4 + [True] * 15] * 2),
            "encoder_hidden_states_mask": values([[True] * 13, [True] * 11 + [False] * 2]),
        },
        notes={
            "img_mask": "where images go among the tokens: repeated, it is as long as all of them",
        },
        static=("img_mask",),
    ),
    "diffusers:QwenImageTransformer2DModel": Tiny(
        config={
            "patch_size": 2,
            "in_channels": 16,
            "out_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 3,
            "joint_attention_dim": 20,
            "axes_dims_rope": (4, 6, 6),
        },
        inputs={
            "hidden_states": random(2, 35, 16),
            "encoder_hidden_states": random(2, 11, 20),
            "encoder_hidden_states_mask": values([[1] * 11, [1] * 6 + [0] * 5]),
            "timestep": values([0.75, 0.75]),
            "img_shapes": [[(1, 5, 7)], [(1, 5, 7)]],
        },
    ),
    "diffusers:SD3Transformer2DModel": Tiny(
        config={
            "sample_size": 16,
            "patch_size": 2,
            "in_channels": 4,
            "num_layers": 5,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 20,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 24,
            "out_channels": 4,
            "pos_embed_max_size": 10,
            "dual_attention_layers": (0, 1),
            "qk_norm": "rms_norm",
        },
        inputs={
            "hidden_states": random(2, 4, 6, 10),
            "encoder_hidden_states": random(2, 11, 20),
            "pooled_projections": random(2, 24),
            "timestep": values([750.0, 750.0]),
        },
    ),
    "diffusers:SanaTransformer2DModel": Tiny(
        config={
            "in_channels": 6,
            "out_channels": 6,
            "num_attention_heads": 6,
            "attention_head_dim": 8,
            "num_layers": 2,
            "num_cross_attention_heads": 3,
            "cross_attention_head_dim": 16,
            "cross_attention_dim": 48,
            "caption_channels": 20,
            "mlp_ratio": 2.5,
            "sample_size": 8,
            "patch_size": 1,
        },
        inputs={
            "hidden_states": random(2, 6, 5, 7),
            "encoder_hidden_states": random(2, 11, 20),
            "timestep": values([750.0, 750.0]),
            "encoder_attention_mask": values([[1] * 11, [1] * 4 + [0] * 7]),
        },
    ),
    "diffusers:Transformer2DModel": Tiny(
        config={
            "num_attention_heads": 3,
            "attention_head_dim": 16,
            "in_channels": 48,
            "num_layers": 2,
            "norm_num_groups": 6,
            "cross_attention_dim": 20,
        },
        inputs={
            "hidden_states": random(2, 48, 5, 7),
            "encoder_hidden_states": random(2, 11, 20),
        },
    ),
    "diffusers:ZImageTransformer2DModel": Tiny(
        config={
            "all_patch_size": (2,),
            "all_f_patch_size": (1,),
            "in_channels": 4,
            "dim": 48,
            "n_layers": 2,
            "n_refiner_layers": 2,
            "n_heads": 3,
            "n_kv_heads": 3,
            "cap_feat_dim": 20,
            "axes_dims": [4, 6, 6],
            "axes_lens": [80, 16, 16],
        },
        inputs={
            "x": [random(4, 1, 6, 10), random(4, 1, 6, 10)],
            "t": values([0.25, 0.25]),
            "cap_feats": [random(37, 20), random(7, 20)],
        },
    ),
}

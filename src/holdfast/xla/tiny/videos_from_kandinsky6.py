"""Tiny video transformers, Kandinsky 6 to Wan.

Covers: Kandinsky 6, Latte, LTX, MiniMax-H3, Mochi, Motif, Sana's video and world models, SkyReels
and Wan, each with one call as its pipeline makes it.
"""

from __future__ import annotations

from holdfast.xla.tiny.spec import Tiny, random, values


class Forget:
    """A key and value cache that is written to and keeps nothing: what a reference pass fills."""

    def get(self, layer: int) -> Forget:
        return self

    def store(self, key: object, value: object) -> None:
        return None


LENS = (0.0, 0.0, 0.0, 1.0, 4.0, 4.0, 2.5, 1.5)  # a pose's last row, then fx, fy, cx, cy

WAN = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 4,
    "attention_head_dim": 12,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 20,
    "freq_dim": 16,
    "ffn_dim": 72,
    "num_layers": 2,
    "rope_max_seq_len": 32,
}

TINY: dict[str, Tiny] = {
    "diffusers:Kandinsky6SRTransformer3DModel": Tiny(
        config={
            "in_visual_dim": 4,
            "out_visual_dim": 12,
            "time_dim": 24,
            "patch_size": (1, 1, 1),
            "model_dim": 64,
            "ff_dim": 96,
            "num_visual_blocks": 2,
            "axes_dims": (4, 6, 6),
            "scale_factor": (1.0, 2.0, 2.0),
            "nabla_threshold": 0.8,
            "nabla_window": (1, 1, 1),
            "tile_sizes": ((64, 128),),
        },
        inputs={
            "hidden_states": random(1, 3, 8, 16, 9),
            "timestep": values([637.0]),
        },
        notes={"hidden_states": "flex attention run eagerly ignores the block mask: it is dense"},
    ),
    "diffusers:Kandinsky6Transformer3DModel": Tiny(
        config={
            "in_visual_dim": 4,
            "out_visual_dim": 4,
            "in_text_dim": 20,
            "in_text_dim2": 12,
            "time_dim": 24,
            "patch_size": (1, 2, 2),
            "model_dim": 64,
            "ff_dim": 96,
            "num_text_blocks": 2,
            "num_visual_blocks": 2,
            "axes_dims": (4, 6, 6),
            "visual_cond": True,
            "in_audio_dim": 5,
            "out_audio_dim": 5,
            "model_dim_a": 32,
            "time_dim_a": 20,
            "ff_dim_a": 48,
            "axes_dims_a": (4, 6, 6),
            "audio_freqs_scaling": 0.5,
            "scale_factor": (1.0, 2.0, 2.0),
            "text_token_padding": True,
            "ca_rope": True,
            "cross_gates": True,
            "fix_modulation": True,
            "visual_token_type_num_embeddings": 2,
        },
        inputs={
            "hidden_states": random(2, 3, 6, 10, 9),
            "encoder_hidden_states": random(2, 7, 20),
            "pooled_projections": random(2, 12),
            "timestep": values([637.0, 637.0]),
            "audio_hidden_states": random(2, 11, 5),
            "visual_rope_pos": (values([0, 1, 0]), values([0, 1, 2]), values([0, 1, 2, 3, 4])),
            "encoder_attention_mask": values(
                [
                    [True, True, True, True, True, False, False],
                    [True, True, True, True, True, True, True],
                ]
            ),
            "visual_token_type_ids": values([[0, 0, 1], [0, 0, 1]]),
        },
    ),
    "diffusers:LTX2VideoTransformer3DModel": Tiny(
        config={
            "in_channels": 6,
            "out_channels": 6,
            "patch_size": 1,
            "patch_size_t": 1,
            "num_attention_heads": 4,
            "attention_head_dim": 12,
            "cross_attention_dim": 48,
            "vae_scale_factors": (8, 32, 32),
            "pos_embed_max_pos": 20,
            "base_height": 2048,
            "base_width": 2048,
            "gated_attn": True,
            "cross_attn_mod": True,
            "audio_in_channels": 5,
            "audio_out_channels": 5,
            "audio_num_attention_heads": 4,
            "audio_attention_head_dim": 8,
            "audio_cross_attention_dim": 32,
            "audio_gated_attn": True,
            "audio_cross_attn_mod": True,
            "num_layers": 2,
            "caption_channels": 20,
            "rope_type": "split",
        },
        inputs={
            "hidden_states": random(2, 30, 6),
            "audio_hidden_states": random(2, 11, 5),
            "encoder_hidden_states": random(2, 7, 20),
            "audio_encoder_hidden_states": random(2, 7, 20),
            "timestep": values([637.0, 637.0]),
            "sigma": values([637.0, 637.0]),
            "encoder_attention_mask": values([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]),
            "audio_encoder_attention_mask": values([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]]),
            "num_frames": 2,
            "height": 3,
            "width": 5,
            "fps": 24.0,
            "audio_num_frames": 11,
            "use_cross_timestep": True,
        },
    ),
    "diffusers:LTXVideoTransformer3DModel": Tiny(
        config={
            "in_channels": 6,
            "out_channels": 6,
            "patch_size": 1,
            "patch_size_t": 1,
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "cross_attention_dim": 64,
            "num_layers": 2,
            "caption_channels": 20,
        },
        inputs={
            "hidden_states": random(2, 45, 6),
            "encoder_hidden_states": random(2, 7, 20),
            "timestep": values([637.0, 637.0]),
            "encoder_attention_mask": values(
                [
                    [True, True, True, True, True, False, False],
                    [True, True, True, True, True, True, True],
                ]
            ),
            "num_frames": 3,
            "height": 3,
            "width": 5,
            "rope_interpolation_scale": (0.32, 32, 32),
        },
    ),
    "diffusers:LatteTransformer3DModel": Tiny(
        config={
            "num_attention_heads": 4,
            "attention_head_dim": 12,
            "in_channels": 4,
            "out_channels": 8,
            "num_layers": 2,
            "cross_attention_dim": 48,
            "attention_bias": True,
            "sample_size": 6,
            "patch_size": 2,
            "activation_fn": "gelu-approximate",
            "num_embeds_ada_norm": 1000,
            "norm_type": "ada_norm_single",
            "norm_elementwise_affine": False,
            "norm_eps": 1e-6,
            "caption_channels": 20,
            "video_length": 5,
        },
        inputs={
            "hidden_states": random(2, 4, 5, 6, 6),
            "timestep": values([637, 637]),
            "encoder_hidden_states": random(2, 7, 20),
            "enable_temporal_attentions": True,
        },
    ),
    "diffusers:MiniMaxH3Transformer3DModel": Tiny(
        config={
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "hidden_size": 40,
            "num_layers": 2,
            "num_refiner_layers": 2,
            "ffn_dim": 72,
            "in_channels": 3,
            "audio_in_channels": 5,
            "patch_size": (1, 2, 2),
            "text_dim": 20,
            "freq_dim": 16,
            "time_embed_hidden_dim": 32,
            "time_embed_dim": 24,
            "rope_freq_dim": 2,
        },
        inputs={
            "hidden_states": random(1, 8, 12),
            "audio_hidden_states": random(1, 3, 5),
            "encoder_hidden_states": random(1, 4, 20),
            "timestep": values([0.637, 0.0]),
            "timestep_indices": values([1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            "token_tags": values([1, 1, 1, 1, 0, 0, 2, 2, 2, 0, 0, 0, 0, 0, 0]),
            "position_ids": values(
                [[place, place, place] for place in range(4)]
                + [[4, 0, across] for across in range(2)]
                + [[5 + place, 0, 0] for place in range(3)]
                + [[5 + frame, 0, across] for frame in range(3) for across in range(2)]
            ),
            "video_indices": values([4, 5, 9, 10, 11, 12, 13, 14]),
            "audio_indices": values([6, 7, 8]),
            "text_indices": values([0, 1, 2, 3]),
        },
    ),
    "diffusers:MochiTransformer3DModel": Tiny(
        config={
            "patch_size": 2,
            "num_attention_heads": 4,
            "attention_head_dim": 12,
            "num_layers": 3,
            "pooled_projection_dim": 24,
            "in_channels": 4,
            "out_channels": None,
            "text_embed_dim": 16,
            "time_embed_dim": 20,
            "max_sequence_length": 7,
        },
        inputs={
            "hidden_states": random(2, 4, 3, 6, 10),
            "encoder_hidden_states": random(2, 7, 16),
            "timestep": values([637.0, 637.0]),
            "encoder_attention_mask": values(
                [
                    [True, True, True, True, True, False, False],
                    [True, True, True, False, False, False, False],
                ]
            ),
        },
        notes={
            "encoder_attention_mask": "only the tokens it keeps are attended to: a shape",
        },
        static=("encoder_attention_mask",),
    ),
    "diffusers:MotifVideoTransformer3DModel": Tiny(
        config={
            "in_channels": 9,
            "out_channels": 4,
            "num_attention_heads": 4,
            "attention_head_dim": 12,
            "num_layers": 2,
            "num_single_layers": 4,
            "num_decoder_layers": 2,
            "mlp_ratio": 2.0,
            "patch_size": 2,
            "patch_size_t": 1,
            "text_embed_dim": 20,
            "image_embed_dim": 12,
            "rope_axes_dim": (4, 4, 4),
            "enable_text_cross_attention_dual": True,
            "enable_text_cross_attention_single": True,
        },
        inputs={
            "hidden_states": random(1, 9, 3, 6, 10),
            "timestep": values([637.0]),
            "encoder_hidden_states": random(1, 7, 20),
            "encoder_attention_mask": values([[1, 1, 1, 1, 1, 0, 0]]),
            "image_embeds": random(1, 5, 12),
        },
    ),
    "diffusers:SanaVideoTransformer3DModel": Tiny(
        config={
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 4,
            "attention_head_dim": 12,
            "num_layers": 2,
            "num_cross_attention_heads": 4,
            "cross_attention_head_dim": 12,
            "cross_attention_dim": 48,
            "caption_channels": 20,
            "mlp_ratio": 2.0,
            "sample_size": 6,
            "patch_size": (1, 2, 2),
            "rope_max_seq_len": 32,
        },
        inputs={
            "hidden_states": random(2, 4, 3, 6, 10),
            "encoder_hidden_states": random(2, 7, 20),
            "timestep": values([637.0, 637.0]),
            "encoder_attention_mask": values([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]]),
        },
    ),
    "diffusers:SanaWMLTX2RefinerTransformer3DModel": Tiny(
        config={
            "in_channels": 6,
            "out_channels": 6,
            "patch_size": 1,
            "patch_size_t": 1,
            "num_attention_heads": 4,
            "attention_head_dim": 12,
            "cross_attention_dim": 48,
            "audio_in_channels": 5,
            "audio_out_channels": 5,
            "audio_num_attention_heads": 4,
            "audio_attention_head_dim": 8,
            "audio_cross_attention_dim": 32,
            "num_layers": 2,
            "caption_channels": 20,
            "rope_type": "split",
        },
        inputs={
            "hidden_states": random(1, 45, 6),
            "encoder_hidden_states": random(1, 7, 20),
            "timestep": values([[0.0] * 15 + [637.0] * 30]),
            "video_rotary_emb": (random(1, 4, 45, 6), random(1, 4, 45, 6)),
            "encoder_attention_mask": values([[0, 0, 1, 1, 1, 1, 1]]),
        },
        notes={"kv_cache": "left out: plain attention over the block, no sliding window"},
    ),
    "diffusers:SanaWMTransformer3DModel": Tiny(
        config={
            "in_channels": 6,
            "num_layers": 4,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "patch_size": (1, 1, 1),
            "softmax_every_n": 2,
            "linear_head_dim": 16,
            "chunk_plucker_channels": 6,
            "chunk_plucker_post_attn_blocks": 4,
            "image_size": 96,
            "caption_channels": 20,
            "mlp_ratio": 2.0,
        },
        inputs={
            "hidden_states": random(1, 6, 3, 3, 5),
            "timestep": values([[[0, 637, 637]]]),
            "encoder_hidden_states": random(1, 1, 7, 20),
            "mask": values([[1, 1, 1, 1, 1, 0, 0]]),
            "camera_conditions": values(
                [
                    [
                        [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, *LENS],
                        [0.96, 0.0, 0.28, 0.1, 0.0, 1.0, 0.0, 0.0, -0.28, 0.0, 0.96, 0.2, *LENS],
                        [0.8, 0.0, 0.6, 0.2, 0.0, 1.0, 0.0, -0.1, -0.6, 0.0, 0.8, 0.4, *LENS],
                    ]
                ]
            ),
            "chunk_plucker": random(1, 6, 3, 3, 5),
        },
        notes={"hidden_states": "the softmax blocks attend in bfloat16, whatever the weights are"},
        bound=1e-3,
    ),
    "diffusers:SkyReelsV2Transformer3DModel": Tiny(
        config={
            **WAN,
            "inject_sample_info": True,
            "num_frame_per_block": 2,
        },
        inputs={
            "hidden_states": random(1, 4, 4, 6, 10),
            "timestep": values([[0, 0, 637, 911]]),
            "encoder_hidden_states": random(1, 7, 20),
            "enable_diffusion_forcing": True,
            "fps": [1],
        },
    ),
    "diffusers:WanAnimate2Transformer3DModel": Tiny(
        config={
            "patch_size": (1, 2, 2),
            "text_len": 9,
            "in_dim": 12,
            "dim": 48,
            "ffn_dim": 72,
            "freq_dim": 16,
            "text_dim": 20,
            "out_dim": 4,
            "num_heads": 4,
            "num_layers": 2,
            "use_img_emb": True,
        },
        inputs={
            "hidden_states": [random(4, 3, 6, 10)],
            "timestep": values([637]),
            "encoder_hidden_states": [random(7, 20)],
            "condition_latents": [random(8, 3, 6, 10)],
            "kv_cache": Forget(),
            "kv_cache_mode": "extract",
            "seq_len": 45,
            "encoder_hidden_states_image": random(1, 5, 1280),
            "offset_grid_sizes": values([[3, 3, 5]]),
        },
        notes={
            "kv_cache": "the reference pass, which only writes it; the other needs flex attention",
            "encoder_hidden_states_image": "1280 is written into the class, 1.6 million parameters",
            "offset_grid_sizes": "where rotary positions begin, read as numbers",
        },
        static=("offset_grid_sizes",),
    ),
    "diffusers:WanAnimateTransformer3DModel": Tiny(
        config={
            **WAN,
            "in_channels": 12,
            "latent_channels": 4,
            "num_layers": 4,
            "image_dim": 20,
            "added_kv_proj_dim": 48,
            "motion_encoder_channel_sizes": {"4": 12, "8": 10, "16": 8},
            "motion_encoder_size": 16,
            "motion_style_dim": 14,
            "motion_dim": 6,
            "motion_encoder_dim": 16,
            "face_encoder_hidden_dim": 10,
            "face_encoder_num_heads": 4,
            "inject_face_latents_blocks": 2,
            "motion_encoder_batch_size": 4,
        },
        inputs={
            "hidden_states": random(1, 12, 3, 6, 10),
            "timestep": values([637]),
            "encoder_hidden_states": random(1, 512, 20),
            "encoder_hidden_states_image": random(1, 5, 20),
            "pose_hidden_states": random(1, 4, 2, 6, 10),
            "face_pixel_values": random(1, 3, 5, 16, 16),
        },
        notes={"encoder_hidden_states": "512 text tokens are written into the attention"},
    ),
    "diffusers:WanTransformer3DModel": Tiny(
        config=WAN,
        inputs={
            "hidden_states": random(2, 4, 3, 6, 10),
            "timestep": values([637, 637]),
            "encoder_hidden_states": random(2, 7, 20),
        },
    ),
    "diffusers:WanVACETransformer3DModel": Tiny(
        config={
            **WAN,
            "num_layers": 3,
            "vace_layers": [0, 2],
            "vace_in_channels": 10,
        },
        inputs={
            "hidden_states": random(1, 4, 3, 6, 10),
            "timestep": values([637]),
            "encoder_hidden_states": random(1, 7, 20),
            "control_hidden_states": random(1, 10, 3, 6, 10),
            "control_hidden_states_scale": values([1.0, 0.5]),
        },
    ),
}

"""Tiny diffusers autoencoders of images, video and sound, called through `forward` with the mode of
the posterior (encode and decode in one go) or, where that does not fit, through the method named.
"""

from holdfast.xla.tiny.spec import Draws, Tiny, random, values

TINY: dict[str, Tiny] = {
    "diffusers:AsymmetricAutoencoderKL": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "down_block_types": ("DownEncoderBlock2D",) * 4,
            "down_block_out_channels": (4, 8, 8, 16),
            "layers_per_down_block": 1,
            "up_block_types": ("UpDecoderBlock2D",) * 4,
            # the condition encoder has four steps of its own: channels double up to the last one
            "up_block_out_channels": (4, 8, 16, 16),
            "layers_per_up_block": 1,
            "latent_channels": 4,
            "norm_num_groups": 2,
            "sample_size": 24,
        },
        inputs={
            "sample": random(1, 3, 24, 40),
            "mask": values(
                [[[[float(5 <= x < 21 and y > 6) for x in range(40)] for y in range(24)]]]
            ),
        },
        notes={"mask": "one where the image is to be filled in, as inpainting gives it"},
    ),
    "diffusers:AutoencoderDC": Tiny(
        config={
            "in_channels": 3,
            "latent_channels": 4,
            "attention_head_dim": 8,
            "encoder_block_types": ("ResBlock", "ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (8, 16, 16),
            "decoder_block_out_channels": (8, 16, 16),
            "encoder_layers_per_block": (2, 2, 2),
            "decoder_layers_per_block": (2, 2, 2),
            "encoder_qkv_multiscales": ((), (), (5,)),
            "decoder_qkv_multiscales": ((), (), (5,)),
        },
        inputs={"sample": random(1, 3, 24, 20)},
    ),
    "diffusers:AutoencoderKL": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "down_block_types": ("DownEncoderBlock2D",) * 3,
            "up_block_types": ("UpDecoderBlock2D",) * 3,
            "block_out_channels": (8, 16, 16),
            "layers_per_block": 2,
            "latent_channels": 4,
            "norm_num_groups": 4,
            "sample_size": 24,
        },
        inputs={
            "sample": random(2, 3, 24, 20),
        },
    ),
    "diffusers:AutoencoderKLAllegro": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "down_block_types": ("AllegroDownBlock3D",) * 3,
            "up_block_types": ("AllegroUpBlock3D",) * 3,
            "block_out_channels": (8, 8, 16),
            "temporal_downsample_blocks": (True, True, False),
            "temporal_upsample_blocks": (False, True, True),
            "latent_channels": 4,
            "layers_per_block": 1,
            "norm_num_groups": 4,
            "temporal_compression_ratio": 4,
            "sample_size": 24,
        },
        inputs={"z": random(1, 4, 10, 6, 6)},
        method="tiled_decode",
        notes={
            "z": "two tiles in time (6 latent frames each, 2 shared), one in height and width: "
            "decode and forward refuse until enable_tiling has been called"
        },
    ),
    "diffusers:AutoencoderKLCogVideoX": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "down_block_types": ("CogVideoXDownBlock3D",) * 3,
            "up_block_types": ("CogVideoXUpBlock3D",) * 3,
            "block_out_channels": (8, 8, 16),
            "latent_channels": 4,
            "layers_per_block": 1,
            "norm_num_groups": 4,
            "temporal_compression_ratio": 4,
            "sample_height": 24,
            "sample_width": 40,
        },
        inputs={
            "sample": random(1, 3, 17, 12, 20),
        },
        notes={
            "sample": "17 frames are two chunks each way, the second with the first one's cache"
        },
    ),
    "diffusers:AutoencoderKLCosmos": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 4,
            "encoder_block_out_channels": (8, 8, 16, 16),
            "decode_block_out_channels": (8, 16, 16, 16),
            "attention_resolutions": (4,),
            "resolution": 16,
            "num_layers": 1,
            "patch_size": 4,
            "spatial_compression_ratio": 8,
            "temporal_compression_ratio": 8,
            "latents_mean": None,
            "latents_std": None,
        },
        inputs={
            "sample": random(1, 3, 17, 24, 40),
        },
    ),
    "diffusers:AutoencoderKLFlux2": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "down_block_types": ("DownEncoderBlock2D",) * 3,
            "up_block_types": ("UpDecoderBlock2D",) * 3,
            "block_out_channels": (8, 16, 16),
            "decoder_block_out_channels": (8, 8, 16),
            "layers_per_block": 2,
            "latent_channels": 4,
            "norm_num_groups": 4,
            "sample_size": 24,
            "patch_size": (2, 2),
        },
        inputs={
            "sample": random(1, 3, 24, 40),
        },
    ),
    "diffusers:AutoencoderKLHunyuanImage": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 8,
            "block_out_channels": (32, 32, 32),
            "layers_per_block": 1,
            "spatial_compression_ratio": 4,
            "sample_size": 24,
        },
        inputs={
            "sample": random(1, 3, 24, 20),
        },
    ),
    "diffusers:AutoencoderKLHunyuanImageRefiner": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 4,
            "block_out_channels": (8, 16, 16),
            "layers_per_block": 1,
            "spatial_compression_ratio": 4,
            "temporal_compression_ratio": 2,
        },
        inputs={
            "sample": random(1, 3, 1, 24, 20),
        },
        notes={"sample": "one frame: the refiner takes an image"},
    ),
    "diffusers:AutoencoderKLHunyuanVideo": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 4,
            "down_block_types": ("HunyuanVideoDownBlock3D",) * 3,
            "up_block_types": ("HunyuanVideoUpBlock3D",) * 3,
            "block_out_channels": (8, 8, 16),
            "layers_per_block": 1,
            "norm_num_groups": 4,
            "spatial_compression_ratio": 4,
            "temporal_compression_ratio": 4,
        },
        inputs={
            "sample": random(1, 3, 9, 12, 20),
        },
    ),
    "diffusers:AutoencoderKLHunyuanVideo15": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 4,
            "block_out_channels": (8, 16, 16, 16),
            "layers_per_block": 1,
            "spatial_compression_ratio": 8,
            "temporal_compression_ratio": 4,
        },
        inputs={
            "sample": random(1, 3, 9, 24, 16),
        },
    ),
    "diffusers:AutoencoderKLKVAE": Tiny(
        config={
            "in_channels": 3,
            "channels": 32,
            "num_enc_blocks": 1,
            "num_dec_blocks": 1,
            "z_channels": 4,
            "ch_mult": (1, 1, 1),
            "sample_size": 24,
        },
        inputs={
            "sample": random(1, 3, 24, 20),
        },
    ),
    "diffusers:AutoencoderKLKVAEVideo": Tiny(
        config={
            "ch": 32,
            "ch_mult": (1, 1),
            "num_res_blocks": 1,
            "in_channels": 3,
            "out_ch": 3,
            "z_channels": 4,
            "temporal_compress_times": 2,
        },
        inputs={
            "sample": random(1, 3, 25, 12, 8),
        },
        notes={"sample": "25 frames are two segments, the second with the first one's cache"},
    ),
    "diffusers:AutoencoderKLLTX2Video": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 8,
            "block_out_channels": (16, 16, 16),
            "down_block_types": ("LTX2VideoDownBlock3D",) * 3,
            "decoder_block_out_channels": (8, 16),
            "layers_per_block": (1, 1, 1, 1),
            "decoder_layers_per_block": (1, 1, 1),
            "spatio_temporal_scaling": (True, True, True),
            "decoder_spatio_temporal_scaling": (True, True),
            "decoder_inject_noise": (False, False, False),
            "downsample_type": ("spatial", "temporal", "spatiotemporal"),
            "upsample_type": ("spatiotemporal", "spatiotemporal"),
            "upsample_residual": (True, True),
            "upsample_factor": (2, 2),
            "patch_size": 2,
        },
        inputs={
            "sample": random(1, 3, 9, 24, 16),
        },
    ),
    "diffusers:AutoencoderKLLTXVideo": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "latent_channels": 8,
            "block_out_channels": (8, 16, 16, 16),
            "down_block_types": ("LTXVideo095DownBlock3D",) * 3,
            "decoder_block_out_channels": (8, 16),
            "layers_per_block": (1, 1, 1, 1),
            "decoder_layers_per_block": (1, 1, 1),
            "spatio_temporal_scaling": (True, True, True),
            "decoder_spatio_temporal_scaling": (True, True),
            "decoder_inject_noise": (False, False, False),
            "downsample_type": ("spatial", "temporal", "spatiotemporal"),
            "upsample_residual": (True, True),
            "upsample_factor": (2, 2),
            "timestep_conditioning": True,
            "patch_size": 2,
        },
        inputs={
            "sample": random(1, 3, 9, 24, 16),
            "temb": values([0.05]),
        },
        notes={"temb": "the decode timestep of version 0.9.1 and later"},
    ),
    "diffusers:AutoencoderKLMagvit": Tiny(
        config={
            "in_channels": 3,
            "latent_channels": 4,
            "out_channels": 3,
            "block_out_channels": (8, 8, 16),
            "down_block_types": (
                "SpatialDownBlock3D",
                "SpatialTemporalDownBlock3D",
                "SpatialTemporalDownBlock3D",
            ),
            "up_block_types": (
                "SpatialUpBlock3D",
                "SpatialTemporalUpBlock3D",
                "SpatialTemporalUpBlock3D",
            ),
            "layers_per_block": 1,
            "norm_num_groups": 4,
        },
        inputs={
            "sample": random(1, 3, 5, 12, 20),
        },
        notes={
            "sample": "5 frames are encoded in two chunks and decoded in three, with caches between"
        },
    ),
    "diffusers:AutoencoderKLMochi": Tiny(
        config={
            "in_channels": 15,
            "out_channels": 3,
            # groups of 32 are written into the norms, and heads of 32 into the attention
            "encoder_block_out_channels": (32, 32, 32),
            "decoder_block_out_channels": (32, 32, 32),
            "latent_channels": 4,
            "layers_per_block": (1, 1, 1, 1),
            "temporal_expansions": (2, 3),
            "spatial_expansions": (2, 2),
            "add_attention_block": (False, True, True, True),
            "latents_mean": (-0.1, 0.1, 0.0, 0.2),
            "latents_std": (0.9, 1.1, 1.0, 0.8),
        },
        inputs={
            "sample": random(1, 3, 7, 8, 12),
        },
    ),
    "diffusers:AutoencoderKLQwenImage": Tiny(
        config={
            "base_dim": 8,
            "z_dim": 4,
            "dim_mult": [1, 2, 2],
            "num_res_blocks": 1,
            "attn_scales": [],
            "temperal_downsample": [False, True],
            "input_channels": 3,
            "latents_mean": [-0.7, 0.1, 0.4, -0.2],
            "latents_std": [2.8, 1.4, 2.3, 1.2],
        },
        inputs={
            "sample": random(1, 3, 1, 24, 20),
        },
        notes={"sample": "one frame: the pipelines take images"},
    ),
    "diffusers:AutoencoderKLTemporalDecoder": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "block_out_channels": (32, 32),
            "layers_per_block": 1,
            "latent_channels": 4,
            "sample_size": 24,
        },
        inputs={
            "sample": random(6, 3, 12, 20),
            "num_frames": 3,
        },
        notes={"sample": "two videos of three frames, frames laid along the batch"},
    ),
    "diffusers:AutoencoderKLWan": Tiny(
        config={
            "base_dim": 8,
            "z_dim": 4,
            "dim_mult": [1, 2, 2],
            "num_res_blocks": 1,
            "attn_scales": [],
            "temperal_downsample": [True, True],
            "latents_mean": [-0.7, 0.1, 0.4, -0.2],
            "latents_std": [2.8, 1.4, 2.3, 1.2],
            "in_channels": 3,
            "out_channels": 3,
            "scale_factor_temporal": 4,
            "scale_factor_spatial": 4,
        },
        inputs={
            "sample": random(1, 3, 9, 12, 20),
        },
        notes={
            "sample": "9 frames are three chunks each way, with the convolutions' caches between"
        },
    ),
    "diffusers:AutoencoderOobleck": Tiny(
        config={
            "encoder_hidden_size": 8,
            "downsampling_ratios": [2, 4, 5],
            "channel_multiples": [1, 2, 2],
            "decoder_channels": 8,
            "decoder_input_channels": 4,
            "audio_channels": 2,
            "sampling_rate": 8000,
        },
        inputs={
            "sample": random(1, 2, 520),
        },
    ),
    "diffusers:AutoencoderTiny": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "encoder_block_out_channels": (16, 16, 16),
            "decoder_block_out_channels": (16, 16, 16),
            "latent_channels": 4,
            "num_encoder_blocks": (1, 2, 2),
            "num_decoder_blocks": (2, 2, 1),
        },
        inputs={"sample": random(1, 3, 24, 20)},
        notes={"sample": "forward rounds the latents to bytes: a tie broken the other way shows"},
    ),
    "diffusers:ConsistencyDecoderVAE": Tiny(
        config={
            "latent_channels": 4,
            "sample_size": 24,
            "encoder_block_out_channels": (8, 16, 16),
            "encoder_down_block_types": ("DownEncoderBlock2D",) * 3,
            "encoder_in_channels": 3,
            "encoder_layers_per_block": 1,
            "encoder_norm_num_groups": 4,
            "encoder_out_channels": 4,
            "decoder_block_out_channels": (8, 16, 16),
            "decoder_down_block_types": ("ResnetDownsampleBlock2D",) * 3,
            "decoder_in_channels": 7,
            "decoder_layers_per_block": 1,
            "decoder_norm_num_groups": 4,
            "decoder_num_train_timesteps": 1024,
            "decoder_out_channels": 6,
            "decoder_up_block_types": ("ResnetUpsampleBlock2D",) * 3,
        },
        inputs={"sample": random(1, 3, 24, 20), "generator": Draws()},
        notes={"generator": "the decoder draws noise: with a generator, the same each time"},
    ),
    "diffusers:VQModel": Tiny(
        config={
            "in_channels": 3,
            "out_channels": 3,
            "down_block_types": ("DownEncoderBlock2D",) * 3,
            "up_block_types": ("UpDecoderBlock2D",) * 3,
            "block_out_channels": (8, 16, 16),
            "layers_per_block": 1,
            "latent_channels": 4,
            "sample_size": 24,
            "num_vq_embeddings": 37,
            "norm_num_groups": 4,
            "vq_embed_dim": 4,
        },
        inputs={"sample": random(1, 3, 24, 20)},
        notes={"sample": "forward takes the nearest code: a near tie broken the other way shows"},
    ),
}

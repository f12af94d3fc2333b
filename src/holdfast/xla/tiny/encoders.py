"""Tiny configurations of the text encoders from transformers that diffusers' pipelines use.

Covers: CLIP with and without its projection (one finds the end of the text by its token, the other
by the greatest token, as older checkpoints do) and the T5 and UMT5 encoders with padded prompts.
"""

from __future__ import annotations

from holdfast.xla.tiny.spec import Tiny, values

TINY: dict[str, Tiny] = {
    "transformers:CLIPTextModel": Tiny(
        config={
            "vocab_size": 99,
            "hidden_size": 32,
            "intermediate_size": 72,
            "projection_dim": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 13,
            "hidden_act": "quick_gelu",
            "bos_token_id": 96,
            "eos_token_id": 97,
            "pad_token_id": 98,
        },
        inputs={
            "input_ids": values(
                [
                    [96, 5, 17, 40, 8, 61, 97, 97, 97, 97, 97, 97, 97],
                    [96, 33, 2, 97, 97, 97, 97, 97, 97, 97, 97, 97, 97],
                ]
            ),
            "output_hidden_states": True,
        },
    ),
    "transformers:CLIPTextModelWithProjection": Tiny(
        config={
            "vocab_size": 99,
            "hidden_size": 40,
            "intermediate_size": 88,
            "projection_dim": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 5,
            "max_position_embeddings": 13,
            "hidden_act": "gelu",
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 1,
        },
        inputs={
            "input_ids": values(
                [
                    [97, 5, 17, 40, 8, 61, 98, 0, 0, 0, 0, 0, 0],
                    [97, 33, 2, 98, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                ]
            ),
            "output_hidden_states": True,
        },
    ),
    "transformers:T5EncoderModel": Tiny(
        config={
            "vocab_size": 99,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 56,
            "num_layers": 2,
            "num_heads": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 20,
            "feed_forward_proj": "gated-gelu",
            "is_encoder_decoder": False,
            "use_cache": False,
        },
        inputs={
            "input_ids": values(
                [
                    [15, 72, 9, 31, 64, 22, 50, 1, 0, 0, 0, 0, 0],
                    [48, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                ]
            ),
            "attention_mask": values(
                [
                    [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
                    [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                ]
            ),
        },
    ),
    "transformers:UMT5EncoderModel": Tiny(
        config={
            "vocab_size": 99,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 56,
            "num_layers": 2,
            "num_heads": 3,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 20,
            "feed_forward_proj": "gated-gelu",
            "is_encoder_decoder": False,
            "use_cache": False,
        },
        inputs={
            "input_ids": values(
                [
                    [15, 72, 9, 31, 64, 22, 50, 90, 1, 0, 0],
                    [48, 3, 7, 1, 0, 0, 0, 0, 0, 0, 0],
                ]
            ),
            "attention_mask": values(
                [
                    [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
                    [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
                ]
            ),
        },
    ),
}

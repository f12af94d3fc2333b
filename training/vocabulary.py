"""Small tokenizers for the tiny models, in the classes that the large models use.

Covers: a byte-level BPE for `CLIPTokenizer`, a unigram model for `T5TokenizerFast`.
Leaves to others: what the prompts say (digits).
Promise: every Unicode text becomes tokens; upper and lower case become the same tokens.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path

from digits import COLOURS, draw_wish, phrase
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPTextConfig, CLIPTokenizer, T5TokenizerFast

LENGTH = 32  # tokens of a prompt, for every tokenizer here
START, END = "<|startoftext|>", "<|endoftext|>"
MERGES = 400


def sample_prompts(count: int = 20_000, seed: int = 1, more: Iterable[str] = ()) -> list[str]:
    """Prompts to learn the vocabularies from."""
    rng = random.Random(seed)
    return [phrase(draw_wish(rng), rng) for _ in range(count)] + sorted(COLOURS) + list(more)


def clip_tokenizer(prompts: list[str], pad: str = END) -> CLIPTokenizer:
    """A CLIP tokenizer: 256 bytes, the same bytes at a word's end, learnt merges, two marks.

    `pad` is one of its pieces: SDXL's second tokenizer pads with "!".
    """
    words = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=2 * len(alphabet) + MERGES,
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        min_frequency=200,
        show_progress=False,
    )
    words.train_from_iterator(_without_babble(prompts), trainer)
    merges = [tuple(pair) for pair in _model_of(words)["merges"]]
    pieces = [*alphabet, *(letter + "</w>" for letter in alphabet)]
    pieces += [left + right for left, right in merges] + [START, END]
    vocab = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
    return CLIPTokenizer(vocab=vocab, merges=merges, pad_token=pad, model_max_length=LENGTH)


def clip_config(tokenizer: CLIPTokenizer, layers: int) -> CLIPTextConfig:
    """A CLIP text encoder of width 64 for `tokenizer`."""
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        projection_dim=64,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def t5_tokenizer(prompts: list[str]) -> T5TokenizerFast:
    """A T5 tokenizer: known words whole, other words by letters, other letters as `<unk>`."""
    words = sorted({word for prompt in _without_babble(prompts) for word in _split(prompt)})
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    pieces += [("▁" + word, -6.0) for word in words]
    pieces += [(letter, -8.0) for letter in letters]
    return T5TokenizerFast(
        vocab=pieces,
        extra_ids=0,
        additional_special_tokens=[],
        model_max_length=LENGTH,
        _spm_precompiled_charsmap=lower_case_map(),
    )


def _split(prompt: str) -> list[str]:
    """Words as T5 sees them; a punctuation mark at a word's end stands alone."""
    return [part for word in prompt.lower().split() if (part := word.rstrip(",.!"))]


def _without_babble(prompts: list[str]) -> list[str]:
    """The prompts, with words left out that hardly occur: they are meant to be unknown."""
    counts: dict[str, int] = {}
    for prompt in prompts:
        for word in _split(prompt):
            counts[word] = counts.get(word, 0) + 1
    often = {word for word, count in counts.items() if count >= 20}
    kept = (" ".join(word for word in _split(one) if word in often) for one in prompts)
    return [*kept, *([", . !"] * 1000)]


def lower_case_map() -> bytes:
    """A SentencePiece character map from upper to lower case: the one normalizer T5 may have."""
    from sentencepiece import SentencePieceTrainer
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    capitals = [chr(code) for code in range(0x250) if len(chr(code).lower()) == 1]
    rows = [f"{ord(c):X}\t{ord(c.lower()):X}" for c in capitals if c.lower() != c]
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.tsv"
        rules.write_text("\n".join(rows) + "\n")
        SentencePieceTrainer.train(
            sentence_iterator=iter(["a b c d e f g"] * 100),
            model_prefix=str(Path(folder) / "lower"),
            vocab_size=11,
            normalization_rule_tsv=str(rules),
            minloglevel=9,
        )
        proto = ModelProto.FromString((Path(folder) / "lower.model").read_bytes())
    return proto.normalizer_spec.precompiled_charsmap


def _model_of(tokenizer: Tokenizer) -> dict:
    return json.loads(tokenizer.to_str())["model"]

"""Models at real sizes, with random weights: what a forward pass and a training step cost.

Covers: parts of diffusion models, text encoders, a language model, a convolutional network; each
takes between a few tenths of a second and a few seconds on two cores.
Leaves to others: measuring (`bench_torch_device`).
Promise: every model is third-party code as its users have it, but for ResNet-50 where timm is not
installed; numbers are the same with every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Inputs = dict[str, Any]
Made = tuple[nn.Module, Inputs]
MODELS: dict[str, Callable[[], Made]] = {}


def model(name: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """A decorator: the function below makes the model of this name, the same every time."""

    def decorate(function: Callable[[], Made]) -> Callable[[], Made]:
        def make() -> Made:
            torch.manual_seed(0)
            module, inputs = function()
            return module.eval(), inputs

        MODELS[name] = make
        return function

    return decorate


def result(out: Any) -> torch.Tensor:
    """The tensor that a model is about: what a loss would be made of."""
    for name in ("sample", "logits", "last_hidden_state"):
        if hasattr(out, name):
            return getattr(out, name)
    return out[0] if isinstance(out, tuple) else out


# ---- diffusion


@model("unet")
def unet() -> Made:
    """Stable Diffusion's UNet at 64x64 latents: its first two widths, one layer a block."""
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(
        sample_size=64,
        block_out_channels=(320, 640),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=768,
        attention_head_dim=8,
    )
    return module, {
        "sample": torch.randn(1, 4, 64, 64),
        "timestep": torch.tensor(500),
        "encoder_hidden_states": torch.randn(1, 77, 768),
    }


@model("flux")
def flux() -> Made:
    """FLUX.1's transformer at its width: one block of each kind, 256 + 256 tokens."""
    from diffusers import FluxTransformer2DModel

    module = FluxTransformer2DModel(num_layers=1, num_single_layers=1, guidance_embeds=True)
    places = torch.zeros(256, 3)
    places[:, 1] = torch.arange(256) // 16
    places[:, 2] = torch.arange(256) % 16
    return module, {
        "hidden_states": torch.randn(1, 256, 64),
        "encoder_hidden_states": torch.randn(1, 256, 4096),
        "pooled_projections": torch.randn(1, 768),
        "timestep": torch.tensor([0.5]),
        "img_ids": places,
        "txt_ids": torch.zeros(256, 3),
        "guidance": torch.tensor([3.5]),
    }


@model("wan")
def wan() -> Made:
    """Wan 2.1's transformer at the width of its 1.3B model: two blocks, 768 tokens."""
    from diffusers import WanTransformer3DModel

    module = WanTransformer3DModel(num_layers=2, num_attention_heads=12, ffn_dim=8960)
    return module, {
        "hidden_states": torch.randn(1, 16, 3, 32, 32),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": torch.randn(1, 512, 4096),
    }


class Decoder(nn.Module):
    """The half of an autoencoder that makes pictures."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.post_quant_conv, self.decoder = whole.post_quant_conv, whole.decoder

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.post_quant_conv(latents))


@model("vae decoder")
def vae() -> Made:
    """Stable Diffusion's decoder on 32x32 latents: a picture of 128x128, its last three widths."""
    from diffusers import AutoencoderKL

    whole = AutoencoderKL(
        block_out_channels=(128, 256, 512),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=1,
    )
    return Decoder(whole), {"latents": torch.randn(1, 4, 32, 32)}


# ---- text


@model("clip text")
def clip() -> Made:
    """CLIP's text encoder as Stable Diffusion has it, eight texts."""
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
    )
    return CLIPTextModel(config), {"input_ids": torch.randint(0, 49000, (8, 77))}


@model("t5 encoder")
def t5() -> Made:
    """T5 base's encoder, 512 tokens."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12)
    return T5EncoderModel(config), {"input_ids": torch.randint(0, 32000, (1, 512))}


@model("llama")
def llama() -> Made:
    """Four layers of Llama at a width of 1024, 256 tokens of two texts."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
        use_cache=False,
    )
    return LlamaForCausalLM(config), {"input_ids": torch.randint(0, 32000, (2, 256))}


# ---- pictures


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut, of which the first and last have windows of one."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *_convolved(channels, width, 1, 1),
            nn.ReLU(inplace=True),
            *_convolved(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolved(width, 4 * width, 1, 1),
        )
        same = stride == 1 and channels == 4 * width
        self.short = (
            nn.Identity() if same else nn.Sequential(*_convolved(channels, 4 * width, 1, stride))
        )
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x) + self.short(x))


def _convolved(channels: int, outputs: int, window: int, stride: int) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, outputs, window, stride, window // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


class ResNet50(nn.Module):
    """ResNet-50 as it was published, with the stride in the middle convolution."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        channels = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                blocks.append(Bottleneck(channels, width, stride if number == 0 else 1))
                channels = 4 * width
        self.stem = nn.Sequential(
            *_convolved(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)))


@model("resnet-50")
def resnet() -> Made:
    """Two pictures of 224x224."""
    try:
        import timm
    except (ImportError, RuntimeError):  # torchvision, which timm takes, may be for another torch
        module: nn.Module = ResNet50()
    else:
        module = timm.create_model("resnet50")
    return module, {"x": torch.randn(2, 3, 224, 224)}

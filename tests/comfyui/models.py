"""Tiny models with random weights that ComfyUI takes for real ones, and workflows that use them.

Covers: checkpoints made with ComfyUI's own classes (SD1.5, SD3, Wan 2.1; 4 to 13 million numbers),
their decoders, conditioning without a text encoder, workflows in API form.
Leaves to others: starting ComfyUI (conftest), talking to it (client).
Promise: the same numbers every time; made once and then taken from `.cache/comfyui/models`.

    made = models.make()                                  # once for each machine, in seconds
    models.install(made, base_directory)                  # before or while the server runs
    prompt = models.workflow("sd15", chain=[models.node("HoldfastStreamModel", budget_gb=0.05)])

Conditioning comes from ComfyUI's own node LoadTrainingDataset, which reads `output/<name>`: other
nodes that make one need a text encoder, and those cannot be small.
"""

from __future__ import annotations

import copy
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMFY = ROOT / ".cache" / "comfyui"
MADE = COMFY / "models"
_STAMP = "made-1"  # another number makes all of them anew

Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tiny:
    """A model: its loader with the file, the decoder's name, what an empty latent is made with."""

    loader: str
    name: Node
    vae: str
    latent: str
    length: Node
    tokens: int
    width: int  # of conditioning
    pooled: int | None
    channels: int


def _checkpoint(file: str) -> Node:
    return {"ckpt_name": file}


TINY = {
    "sd15": Tiny(
        "CheckpointLoaderSimple", _checkpoint("tiny-sd15.safetensors"), "taesd",
        "EmptyLatentImage", {"batch_size": 1}, 77, 768, None, 4,
    ),
    "sd3": Tiny(
        "CheckpointLoaderSimple", _checkpoint("tiny-sd3.safetensors"), "taesd3",
        "EmptySD3LatentImage", {"batch_size": 1}, 77, 256, 128, 16,
    ),
    "wan": Tiny(
        "UNETLoader", {"unet_name": "tiny-wan.safetensors", "weight_dtype": "default"},
        "tiny-wan-vae.safetensors", "EmptyHunyuanLatentVideo", {"length": 5, "batch_size": 1},
        16, 4096, None, 16,
    ),
}  # fmt: skip


# ---- making and installing


def make(folder: Path = MADE) -> Path:
    """The folder with all models, made where it is not there yet."""
    if not (folder / _STAMP).exists():
        paths = (COMFY / "site", COMFY / "app", ROOT)
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, str(Path(__file__)), str(folder)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise RuntimeError(f"cannot make the tiny models:\n{done.stderr[-4000:]}")
    return folder


def install(made: Path, base_directory: Path) -> None:
    """Link the models into a ComfyUI's base directory, so that its loaders list them."""
    for file in made.glob("*/**/*"):
        if not file.is_file():
            continue
        where = file.relative_to(made)
        into = "output" if where.parts[0] == "datasets" else "models"
        rest = where.relative_to("datasets") if into == "output" else where
        target = base_directory / into / rest
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(file)


# ---- workflows


def node(class_type: str, **inputs: Any) -> Node:
    """One node of a workflow in API form."""
    return {"class_type": class_type, "inputs": inputs}


def workflow(
    name: str,
    chain: Iterable[Node] = (),
    *,
    steps: int = 2,
    cfg: float = 2.0,
    size: int = 64,
    seed: int = 7,
    save: str = "image",
    prefix: str = "tiny",
) -> dict[str, Node]:
    """A loader, `chain` (each node takes and gives a MODEL first), KSampler, and what is saved.

    Nodes are called loader, chain0…, latent, data (conditioning is its second output), negative,
    sampler, vae, decode and save. `save` is "image" or "latent".
    """
    tiny = TINY[name]
    nodes = {
        "loader": node(tiny.loader, **tiny.name),
        "latent": node(tiny.latent, width=size, height=size, **tiny.length),
        "data": node("LoadTrainingDataset", folder_name=f"tiny-{name}"),
        "negative": node("ConditioningZeroOut", conditioning=["data", 1]),
    }
    model: list[Any] = ["loader", 0]
    for number, link in enumerate(chain):
        key = f"chain{number}"
        nodes[key] = {**link, "inputs": {"model": model, **link["inputs"]}}
        model = [key, 0]
    nodes["sampler"] = node(
        "KSampler", model=model, positive=["data", 1], negative=["negative", 0],
        latent_image=["latent", 0], seed=seed, steps=steps, cfg=cfg, sampler_name="euler",
        scheduler="simple", denoise=1.0,
    )  # fmt: skip
    return nodes | dict(_saving(tiny, save, f"{prefix}-{name}"))


def _saving(tiny: Tiny, save: str, prefix: str) -> Iterator[tuple[str, Node]]:
    if save == "latent":
        yield "save", node("SaveLatent", samples=["sampler", 0], filename_prefix=prefix)
        return
    yield "vae", node("VAELoader", vae_name=tiny.vae)
    yield "decode", node("VAEDecode", samples=["sampler", 0], vae=["vae", 0])
    yield "save", node("SaveImage", images=["decode", 0], filename_prefix=prefix)


def runnable(prompt: dict[str, Node]) -> dict[str, Node]:
    """The same with the tiny model of the tests for a checkpoint: small, two steps, no CLIP."""
    found = copy.deepcopy(prompt)
    kinds = {node["class_type"]: number for number, node in found.items()}
    if "CheckpointLoaderSimple" not in kinds:
        return found
    loader, sampler = kinds["CheckpointLoaderSimple"], kinds["KSampler"]
    tiny = workflow("sd15")
    found[loader]["inputs"] = tiny["loader"]["inputs"]
    instead = {
        (loader, 2): ["vae", 0],
        tuple(found[sampler]["inputs"]["positive"]): ["data", 1],
        tuple(found[sampler]["inputs"]["negative"]): ["negative", 0],
    }
    found = {n: node for n, node in found.items() if node["class_type"] != "CLIPTextEncode"}
    small = {"steps": 2, "width": 64, "height": 64}
    for node in found.values():
        its = node["inputs"]
        its |= {key: value for key, value in small.items() if key in its}
        its |= {k: instead.get(tuple(v), v) for k, v in its.items() if isinstance(v, list)}
    return found | {name: tiny[name] for name in ("data", "negative", "vae")}


# ---- with ComfyUI's classes, in a process of its own


def _networks() -> dict[str, Any]:
    """File -> (network, prefix of its names)."""
    part = importlib.import_module
    part("comfy.options").enable_args_parsing()  # for --cpu; before anything else of ComfyUI
    unet: Any = part("comfy.ldm.modules.diffusionmodules.openaimodel")
    mmdit: Any = part("comfy.ldm.modules.diffusionmodules.mmdit")
    wan: Any = part("comfy.ldm.wan.model")
    wan_vae: Any = part("comfy.ldm.wan.vae")
    taesd: Any = part("comfy.taesd.taesd")
    ops: Any = part("comfy.ops")

    with_ops = {"operations": ops.disable_weight_init, "device": "cpu"}
    sd15 = unet.UNetModel(
        image_size=32, in_channels=4, out_channels=4, model_channels=320, num_res_blocks=[1],
        channel_mult=[1], transformer_depth=[1], transformer_depth_output=[1, 1],
        transformer_depth_middle=1, context_dim=768, num_heads=8, use_spatial_transformer=True,
        legacy=False, **with_ops,
    )  # fmt: skip
    context = {"target": "torch.nn.Linear", "params": {"in_features": 256, "out_features": 128}}
    sd3 = mmdit.OpenAISignatureMMDITWrapper(
        input_size=None, patch_size=2, in_channels=16, out_channels=16, depth=2,
        adm_in_channels=128, context_embedder_config=context, num_patches=1024,
        pos_embed_max_size=32, **with_ops,
    )  # fmt: skip
    tiny_wan = wan.WanModel(dim=256, ffn_dim=512, num_heads=2, num_layers=4, **with_ops)
    small_vae = wan_vae.WanVAE(dim=8, z_dim=16, temperal_downsample=[False, True, True])
    prefix = "model.diffusion_model."
    return {
        "checkpoints/tiny-sd15": (sd15, prefix),
        "checkpoints/tiny-sd3": (sd3, prefix),
        "diffusion_models/tiny-wan": (tiny_wan, ""),
        "vae/tiny-wan-vae": (small_vae, ""),
        "vae_approx/taesd_encoder": (taesd.Encoder(4), ""),
        "vae_approx/taesd_decoder": (taesd.Decoder(4), ""),
        "vae_approx/taesd3_encoder": (taesd.Encoder(16), ""),
        "vae_approx/taesd3_decoder": (taesd.Decoder(16), ""),
    }


def _filled(name: str, tensor: Any, generator: Any) -> Any:
    """Random numbers that keep what goes through a network about as large as it was."""
    import torch

    noise = torch.randn(tuple(tensor.shape), generator=generator)
    if tensor.dim() >= 2 and name.endswith("weight"):
        return noise / tensor[0].numel() ** 0.5
    return noise * 0.02 + (1.0 if name.endswith(("weight", "gamma")) else 0.0)


def _write(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    for file, (network, prefix) in _networks().items():
        generator = torch.Generator().manual_seed(len(file))
        tensors = {
            prefix + name: _filled(name, tensor, generator).half().contiguous()
            for name, tensor in network.state_dict().items()
        }
        target = folder / f"{file}.safetensors"
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, target)
    for name, tiny in TINY.items():
        generator = torch.Generator().manual_seed(tiny.width)
        more = {}
        if tiny.pooled is not None:
            more["pooled_output"] = torch.randn(1, tiny.pooled, generator=generator)
        tokens = torch.randn(1, tiny.tokens, tiny.width, generator=generator)
        latent = {"samples": torch.zeros(1, tiny.channels, 8, 8)}
        target = folder / "datasets" / f"tiny-{name}" / "shard_0000.pkl"
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"latents": [latent], "conditioning": [[[tokens, more]]]}, target)
    (folder / _STAMP).touch()


if __name__ == "__main__":
    _into = Path(sys.argv[1])
    sys.argv[1:] = ["--cpu"]  # ComfyUI reads the command line when it is imported
    _into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_into.parent) as _beside:
        _write(Path(_beside) / "made")
        if not (_into / _STAMP).exists():  # somebody else may have been quicker
            shutil.rmtree(_into, ignore_errors=True)
            (Path(_beside) / "made").rename(_into)

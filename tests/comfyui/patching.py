"""A process with ComfyUI in it: one model, sampled as it is and streamed, in every order.

Run by test_streaming.py; prints what held as JSON, a name and whether it did.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import torch


class Comfy:
    """What is used of ComfyUI, on the CPU."""

    def __init__(self) -> None:
        sys.argv[1:] = ["--cpu"]  # ComfyUI reads the command line when it is imported
        importlib.import_module("comfy.options").enable_args_parsing()
        for name in ("sd", "sample", "lora", "model_management", "model_patcher", "hooks"):
            setattr(self, name, importlib.import_module(f"comfy.{name}"))

    def load(self: Any, file: Path, **options: Any) -> Any:
        """A checkpoint's model."""
        with torch.inference_mode():
            found = self.sd.load_checkpoint_guess_config(
                str(file), output_vae=False, output_clip=False, model_options=options
            )
            return found[0]

    def draw(self: Any, model: Any, seed: int = 7) -> torch.Tensor:
        """The latent of three steps with guidance."""
        with torch.inference_mode():
            latent = torch.zeros(1, 4, 8, 8)
            noise = self.sample.prepare_noise(latent, seed)
            generator = torch.Generator().manual_seed(1)
            text = [[torch.randn(1, 77, 768, generator=generator), {}]]
            none = [[torch.zeros(1, 77, 768), {}]]
            return self.sample.sample(
                model, noise, 3, 2.0, "euler", "simple", text, none, latent,
                seed=seed, disable_pbar=True,
            ).clone()  # fmt: skip

    def stop(self: Any, *_: int) -> None:
        """Progress that somebody stops."""
        raise self.model_management.InterruptProcessingException

    def low_rank(self: Any, model: Any) -> dict[str, Any]:
        """A LoRA for six layers, as ComfyUI's loader reads it."""
        generator = torch.Generator().manual_seed(3)
        weights = model.model.state_dict()
        layers = [k for k in weights if k.endswith(".weight") and weights[k].ndim == 2][:6]
        file = {}
        for key in layers:
            outs, ins = weights[key].shape
            path = key.removesuffix(".weight")
            file[f"{path}.lora_A.weight"] = torch.randn(4, ins, generator=generator)
            file[f"{path}.lora_B.weight"] = torch.randn(outs, 4, generator=generator) * 0.1
        return self.lora.load_lora(file, self.lora.model_lora_keys_unet(model.model, {}))


def patched(model: Any, patches: Any, strength: float) -> Any:
    """As the node Load LoRA does."""
    made = model.clone()
    made.add_patches(patches, strength)
    return made


def held(comfy: Any, plain: Any) -> dict[str, bool]:
    """What was tried, and whether it held."""
    patcher: Any = importlib.import_module("holdfast.nodes.host.patcher")
    equal, found = torch.equal, {}
    budget = plain.model_size() // 3
    draw, stream = comfy.draw, patcher.make_streamed
    wanted = draw(plain)

    first = stream(plain, budget, False)
    found["streamed is equal"] = equal(draw(first), wanted)
    state = plain.model.holdfast_streaming
    found["it streamed"] = 0 < state.held_bytes <= budget
    found["ComfyUI is told what is on the device"] = first.loaded_size() == state.held_bytes
    found["again is equal"] = equal(draw(first), wanted)
    found["again prepares nothing"] = plain.model.holdfast_streaming is state
    other = stream(plain, budget // 2, False)
    found["another budget is equal"] = equal(draw(other), wanted)
    found["another budget prepares nothing"] = plain.model.holdfast_streaming is state
    found["another budget holds"] = 0 < other.loaded_size() <= budget // 2
    found["plain after is equal"] = equal(draw(plain), wanted)
    found["plain after is plain"] = not state.active
    found["streamed after is equal"] = equal(draw(first), wanted)

    patches = comfy.low_rank(plain)
    changed = patched(plain, patches, 0.8)
    lora = draw(changed)
    found["the LoRA changes something"] = len(patches) == 6 and not equal(lora, wanted)
    before, after = stream(changed, budget, False), patched(first, patches, 0.8)
    found["LoRA before is equal"] = equal(draw(before), lora)
    found["LoRA after is equal"] = equal(draw(after), lora)
    found["LoRA after streams"] = plain.model.holdfast_streaming.active
    found["without it is equal"] = equal(draw(first), wanted)
    found["plain with it is equal"] = equal(draw(changed), lora)
    weaker = patched(plain, patches, 0.3)
    found["another strength is equal"] = equal(draw(stream(weaker, budget, False)), draw(weaker))
    found["plain is equal once more"] = equal(draw(plain), wanted)

    draw(first)
    comfy.model_management.unload_all_models()
    found["unloading leaves the device"] = first.loaded_size() == 0
    found["after unloading is equal"] = equal(draw(first), wanted)
    found["partial unloading frees"] = first.partially_unload(torch.device("cpu"), 1) > 0
    found["after partial unloading is equal"] = equal(draw(first), wanted)

    held_bytes = first.loaded_size()
    first.detach(unpatch_all=False)  # as ComfyUI does before another patcher loads the model
    found["others are told what will be free"] = plain.loaded_size() == held_bytes > 0
    found["plain after being told is equal"] = equal(draw(plain), wanted)

    shown, patcher.progress = patcher.progress, lambda: comfy.stop
    try:
        draw(before)
        found["a stop while preparing is heard"] = False
    except comfy.model_management.InterruptProcessingException:
        found["a stop while preparing is heard"] = True
    patcher.progress = shown
    loaded = plain.model.current_weight_patches_uuid
    found["nothing stopped counts as loaded"] = plain.loaded_size() == 0 and loaded is None
    found["plain after a stop is equal"] = equal(draw(plain), wanted)
    found["streamed after a stop is equal"] = equal(draw(before), lora)

    hooked = stream(plain, budget, False)
    hooked.hook_patches = {"a hook": {}}
    found["hooks are ComfyUI's own matter"] = not hooked._can_stream
    return found


def packed(comfy: Any, plain: Any) -> dict[str, bool]:
    """The same for weights in bf16, which cross the link packed."""
    patcher: Any = importlib.import_module("holdfast.nodes.host.patcher")
    streaming: Any = importlib.import_module("holdfast.nodes.residency.streaming")
    streaming.pays = lambda _: True  # as on a GPU
    equal, draw, found = torch.equal, comfy.draw, {}
    wanted, budget = draw(plain), plain.model_size() // 3
    made = patcher.make_streamed(plain, budget, True)
    found["packed is equal"] = equal(draw(made), wanted)
    managed = plain.model.holdfast_streaming.managed
    found["it was packed"] = any(
        stretch.layout is not None for stretch in managed.weights.stretches
    )
    merged = plain.clone()
    merged.add_patches(made.get_key_patches("diffusion_model."), 0.5, 0.5)
    found["packed after reading is equal"] = equal(draw(made), wanted)
    found["merging packed with itself is finite"] = bool(torch.isfinite(draw(merged)).all())
    found["packed after merging is equal"] = equal(draw(made), wanted)
    own = plain.model.diffusion_model.state_dict()  # as a Control-LoRA asks
    found["the network's state is whole"] = all(bool(torch.isfinite(v).all()) for v in own.values())
    found["it streams on"] = plain.model.holdfast_streaming.active
    saved = made.model.state_dict()
    found["its state is whole"] = all(bool(torch.isfinite(v).all()) for v in saved.values())
    changed = patched(made, comfy.low_rank(plain), 0.8)
    found["packed with LoRA is equal"] = equal(
        draw(changed), draw(patched(plain, comfy.low_rank(plain), 0.8))
    )
    return found


def replaced(comfy: Any, plain: Any) -> bool:
    """Whether it holds with a patch of the network's own forward, as some packs have it."""
    stream: Any = importlib.import_module("holdfast.nodes.host.patcher").make_streamed
    wanted, budget = comfy.draw(plain), plain.model_size() // 3
    calls: list[int] = []
    forward = type(plain.model.diffusion_model).forward
    network = plain.model.diffusion_model

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return forward(network, *args, **kwargs)

    made = stream(plain, budget, False)
    made.add_object_patch("diffusion_model.forward", counted)
    same = [torch.equal(comfy.draw(made), wanted) for _ in range(2)]
    count = len(calls)
    back = torch.equal(comfy.draw(stream(plain, budget, False)), wanted)
    return all(same) and count == 6 and back and len(calls) == count


def main(file: Path) -> None:
    """Try it all, then let go of everything: nothing waits for the garbage collector."""
    comfy: Any = Comfy()
    plain = comfy.load(file)
    model, network = weakref.ref(plain.model), weakref.ref(plain.model.diffusion_model)
    found = held(comfy, plain)
    comfy.draw(
        importlib.import_module("holdfast.nodes.host.patcher").make_streamed(plain, None, False)
    )
    gc.disable()
    del plain
    comfy.model_management.cleanup_models()
    found["nothing is left behind"] = model() is None and network() is None
    found |= packed(comfy, comfy.load(file, dtype=torch.bfloat16))
    found["a replaced forward is streamed"] = replaced(comfy, comfy.load(file))
    comfy.model_management.cleanup_models_gc()
    gc.collect()
    found["ComfyUI has no model loaded"] = not comfy.model_management.current_loaded_models
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

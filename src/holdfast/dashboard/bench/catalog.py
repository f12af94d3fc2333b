"""All benchmarks: script, requirements, peers, expected time.

Times and counts are rough: for two CPUs without a GPU (or one GPU, where needed).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.base.errors import NotFound

Need = Literal["cuda", "opencl", "comfyui"]


@dataclass(frozen=True, slots=True)
class Peer:
    """A system measured beside ours: how to detect and install it."""

    name: str
    get: str
    module: str | None = None
    program: str | None = None
    files: tuple[str, ...] = ()  # any of them


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One script of benchmarks/, in a process of its own."""

    name: str
    about: str
    modules: dict[str, str]  # module it imports -> how to install it
    whole_s: float  # about how long it takes
    quick_s: float
    rows: int  # approximate number of rows with all peers
    quick_rows: int
    needs: tuple[Need, ...] = ()
    peers: tuple[Peer, ...] = ()
    on_gpu: tuple[str, ...] = ()  # extra arguments if torch and OpenCL have a GPU

    @property
    def script(self) -> str:
        """The file name of the script."""
        return f"bench_{self.name.replace('-', '_')}.py"

    def seconds(self, quick: bool) -> float:
        """Expected time."""
        return self.quick_s if quick else self.whole_s

    def figures(self, quick: bool) -> int:
        """Expected number of rows."""
        return self.quick_rows if quick else self.rows


RUN = "pip install 'holdfast[run]'"
COMPUTE = {"numpy": "pip install 'holdfast[compute]'"}
TORCH = COMPUTE | {"torch": "pip install 'holdfast[torch]'"}
DIFFUSERS = TORCH | {"diffusers": RUN}
OPENCL = COMPUTE | {"pyopencl": "pip install 'holdfast[opencl]'"}

_TORCH = Peer("torch", TORCH["torch"], module="torch")
_TINYGRAD = Peer("tinygrad", "pip install tinygrad", module="tinygrad")
_COMFYUI = Peer("ComfyUI", "PYTHONPATH=FOLDER of a clone of ComfyUI", module="comfy")

# In execution order: short ones first, those that need a GPU last.
CATALOG: tuple[Benchmark, ...] = (
    Benchmark(
        "topology",
        "how long it takes to know the machine, and how fast its memory and links are",
        COMPUTE,
        whole_s=6,
        quick_s=6,
        rows=10,
        quick_rows=10,
        peers=(
            Peer("lscpu", "apt-get install util-linux", program="lscpu"),
            Peer("lstopo", "apt-get install hwloc-nox", program="lstopo-no-graphics"),
        ),
    ),
    Benchmark(
        "replay",
        "how much memory each allocator takes for what full-size models ask for",
        {},
        whole_s=25,
        quick_s=4,
        rows=54,
        quick_rows=18,
    ),
    Benchmark(
        "quant",
        "integers against floats: products, a quantized layer, what a model takes",
        TORCH,
        whole_s=7,
        quick_s=5,
        rows=21,
        quick_rows=13,
    ),
    Benchmark(
        "dashboard",
        "what it costs a process to be looked at; nobody else does this, so there are no peers",
        TORCH,
        whole_s=130,
        quick_s=12,
        rows=12,
        quick_rows=12,
    ),
    Benchmark(
        "pool",
        "what the memory pool costs and saves, against NumPy, torch and tcmalloc",
        DIFFUSERS,
        whole_s=300,
        quick_s=40,
        rows=60,
        quick_rows=50,
        peers=(
            Peer(
                "tcmalloc",
                "apt-get install libtcmalloc-minimal4",
                files=(
                    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
                    "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
                ),
            ),
        ),
    ),
    Benchmark(
        "compute",
        "the NumPy engine against torch on the CPU: products, convolutions, attention",
        TORCH | {"scipy": COMPUTE["numpy"]},
        whole_s=110,
        quick_s=18,
        rows=99,
        quick_rows=51,
    ),
    Benchmark(
        "svm",
        "shared virtual memory: allocation, round trips to a kernel and back, migration",
        OPENCL,
        whole_s=90,
        quick_s=12,
        rows=49,
        quick_rows=45,
        needs=("opencl",),
    ),
    Benchmark(
        "opencl",
        "the OpenCL engine against NumPy, torch and tinygrad",
        OPENCL,
        whole_s=60,
        quick_s=20,
        rows=50,
        quick_rows=27,
        needs=("opencl",),
        peers=(_TORCH, _TINYGRAD),
        on_gpu=("--large",),
    ),
    Benchmark(
        "loading",
        "how fast weights get from a file into a module, beside safetensors and diffusers",
        DIFFUSERS,
        whole_s=150,
        quick_s=30,
        rows=32,
        quick_rows=12,
    ),
    Benchmark(
        "pipeline",
        "drawing a picture, beside diffusers' own pipelines on the same weights",
        DIFFUSERS,
        whole_s=15,
        quick_s=10,
        rows=19,
        quick_rows=7,
    ),
    Benchmark(
        "torch-device",
        'torch.device("holdfast") beside torch\'s CPU and tinygrad',
        DIFFUSERS,
        whole_s=420,
        quick_s=80,
        rows=137,
        quick_rows=87,
        peers=(_TINYGRAD,),
    ),
    Benchmark(
        "xla",
        "models on XLA beside torch and plain torchax",
        DIFFUSERS
        | {"jax": "pip install 'holdfast[xla]'", "torchax": "pip install 'holdfast[xla]'"},
        whole_s=150,
        quick_s=40,
        rows=22,
        quick_rows=8,
    ),
    Benchmark(
        "cuda-memory",
        "the memory layer on a CUDA device: what it costs, and whether its limits hold",
        DIFFUSERS,
        whole_s=60,
        quick_s=60,
        rows=13,
        quick_rows=13,
        needs=("cuda",),
    ),
    Benchmark(
        "residency",
        "models larger than the device, beside the ways other projects do it",
        DIFFUSERS | {"accelerate": RUN},
        whole_s=1800,
        quick_s=180,
        rows=90,
        quick_rows=12,
        needs=("cuda",),
        peers=(
            _COMFYUI,
            Peer("mmgp", "pip install mmgp", module="mmgp"),
            Peer("aimdo", "pip install comfy-aimdo", module="comfy_aimdo"),
        ),
    ),
    Benchmark(
        "comfyui",
        "ComfyUI with a model that does not fit: its own lowvram beside Stream Model",
        DIFFUSERS,
        whole_s=300,
        quick_s=120,
        rows=21,
        quick_rows=11,
        needs=("cuda", "comfyui"),
    ),
)


def select(names: Sequence[str]) -> tuple[Benchmark, ...]:
    """The benchmarks with these names, in table order; all without names. Raises NotFound."""
    known = {benchmark.name: benchmark for benchmark in CATALOG}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise NotFound(
                f"there is no benchmark {name!r}",
                expected=f"some of {', '.join(known)}",
                hint=f"holdfast bench {near[0]}" if near else "holdfast bench --list",
            )
    return tuple(one for one in CATALOG if not names or one.name in names)

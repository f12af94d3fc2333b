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
    """One script of benchmarks/, in a process of its own; pairs are (whole, quick)."""

    name: str
    about: str
    modules: dict[str, str]  # module it imports -> how to install it
    times_s: tuple[float, float]  # about how long it takes
    rows: tuple[int, int]  # approximate number of rows with all peers
    needs: tuple[Need, ...] = ()
    peers: tuple[Peer, ...] = ()
    on_gpu: tuple[str, ...] = ()  # extra arguments if torch and OpenCL have a GPU

    @property
    def script(self) -> str:
        """The file name of the script."""
        return f"bench_{self.name.replace('-', '_')}.py"

    def seconds(self, quick: bool) -> float:
        """Expected time."""
        return self.times_s[quick]

    def figures(self, quick: bool) -> int:
        """Expected number of rows."""
        return self.rows[quick]


RUN = "pip install 'holdfast[run]'"
COMPUTE = {"numpy": "pip install 'holdfast[compute]'"}
TORCH = COMPUTE | {"torch": "pip install 'holdfast[torch]'"}
DIFFUSERS = TORCH | {"diffusers": RUN}
OPENCL = COMPUTE | {"pyopencl": "pip install 'holdfast[opencl]'"}

_TORCH = Peer("torch", TORCH["torch"], module="torch")
_TINYGRAD = Peer("tinygrad", "pip install tinygrad", module="tinygrad")
_COMFYUI = Peer("ComfyUI", "PYTHONPATH=FOLDER of a clone of ComfyUI", module="comfy")

_TCMALLOC = Peer(
    "tcmalloc",
    "apt-get install libtcmalloc-minimal4",
    files=(
        "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
        "/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4",
    ),
)
_LSCPU = Peer("lscpu", "apt-get install util-linux", program="lscpu")
_LSTOPO = Peer("lstopo", "apt-get install hwloc-nox", program="lstopo-no-graphics")
_MMGP = Peer("mmgp", "pip install mmgp", module="mmgp")
_AIMDO = Peer("aimdo", "pip install comfy-aimdo", module="comfy_aimdo")

# In execution order: short ones first, those that need a GPU last.
# name, what it measures, modules, seconds (whole, quick), rows (whole, quick)
# fmt: off
CATALOG: tuple[Benchmark, ...] = (
    Benchmark("topology",
              "how long it takes to know the machine, and how fast its memory and links are",
              COMPUTE, (6, 6), (10, 10), peers=(_LSCPU, _LSTOPO)),
    Benchmark("replay", "how much memory each allocator takes for what full-size models ask for",
              {}, (25, 4), (54, 18)),
    Benchmark("quant", "integers against floats: products, a quantized layer, what a model takes",
              TORCH, (7, 5), (21, 13)),
    Benchmark("dashboard",
              "what it costs a process to be looked at; nobody else does this, so there are no "
              "peers", TORCH, (130, 12), (12, 12)),
    Benchmark("pool", "what the memory pool costs and saves, against NumPy, torch and tcmalloc",
              DIFFUSERS, (300, 40), (60, 50), peers=(_TCMALLOC,)),
    Benchmark("compute",
              "the NumPy engine against torch on the CPU: products, convolutions, attention",
              TORCH | {"scipy": COMPUTE["numpy"]}, (110, 18), (99, 51)),
    Benchmark("svm",
              "shared virtual memory: allocation, round trips to a kernel and back, migration",
              OPENCL, (90, 12), (49, 45), needs=("opencl",)),
    Benchmark("opencl", "the OpenCL engine against NumPy, torch and tinygrad",
              OPENCL, (60, 20), (50, 27), ("opencl",), (_TORCH, _TINYGRAD), ("--large",)),
    Benchmark("loading",
              "how fast weights get from a file into a module, beside safetensors and diffusers",
              DIFFUSERS, (150, 30), (32, 12)),
    Benchmark("pipeline", "drawing a picture, beside diffusers' own pipelines on the same weights",
              DIFFUSERS, (15, 10), (19, 7)),
    Benchmark("first-picture",
              "from the command to the picture in new processes, beside diffusers",
              DIFFUSERS, (90, 20), (4, 4)),
    Benchmark("torch-device", 'torch.device("holdfast") beside torch\'s CPU and tinygrad',
              DIFFUSERS, (420, 80), (137, 87), peers=(_TINYGRAD,)),
    Benchmark("xla", "models on XLA beside torch and plain torchax",
              DIFFUSERS | dict.fromkeys(("jax", "torchax"), "pip install 'holdfast[xla]'"),
              (150, 40), (22, 8)),
    Benchmark("cuda-memory",
              "the memory layer on a CUDA device: what it costs, and whether its limits hold",
              DIFFUSERS, (60, 60), (13, 13), needs=("cuda",)),
    Benchmark("residency", "models larger than the device, beside the ways other projects do it",
              DIFFUSERS | {"accelerate": RUN}, (1800, 180), (90, 12),
              needs=("cuda",), peers=(_COMFYUI, _MMGP, _AIMDO)),
    Benchmark("comfyui",
              "ComfyUI with a model that does not fit: its own lowvram beside Stream Model",
              DIFFUSERS, (300, 120), (21, 11), needs=("cuda", "comfyui")),
)
# fmt: on


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

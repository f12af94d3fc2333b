#!/bin/sh
# Put pyopencl and tinygrad into an archive, for a machine that can install nothing.
#
#   benchmarks/opencl/bundle.sh [FOLDER]        makes FOLDER/opencl.tgz (default .carry)
#
# VERSION names the Python there (default 3.12). Torch and numpy are expected where it is unpacked. After that:
# PYTHONPATH=src:opencl/site, and OCL_ICD_VENDORS names a folder with an .icd file for the driver's library.
set -eu

python=${PYTHON:-.venv/bin/python}
version=${VERSION:-3.12}
folder=${1:-.carry}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version "$version" --platform manylinux_2_28_x86_64 --platform any --dest "$work/wheels" \
    pyopencl pytools siphash24 platformdirs typing_extensions tinygrad ml_dtypes rich markdown-it-py mdurl pygments \
    pytest pluggy iniconfig packaging hypothesis sortedcontainers expecttest
for wheel in "$work"/wheels/*.whl; do
    "$python" -m zipfile -e "$wheel" "$work/opencl/site"
done
mkdir -p "$folder"
tar -C "$work" -czf "$folder/opencl.tgz" opencl
ls -l "$folder/opencl.tgz"

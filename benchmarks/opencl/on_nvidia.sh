#!/bin/sh
# Run a command with NVIDIA's OpenCL and what the archives of bundle.sh hold (opencl.tgz, and peers.tgz of
# benchmarks/residency/bundle.sh), on a machine where nothing can be installed.
#
#   benchmarks/opencl/on_nvidia.sh python3 benchmarks/bench_opencl.py --large
#
# The driver comes with libnvidia-opencl.so.1 and often without the file that names it to the loader.
set -eu

place=${UNPACKED:-/tmp/holdfast-opencl}
if [ ! -d "$place" ]; then
    mkdir -p "$place/vendors"
    for archive in opencl peers; do
        test ! -f ".carry/$archive.tgz" || tar xzf ".carry/$archive.tgz" -C "$place"
    done
    library=$(ldconfig -p | awk '/libnvidia-opencl.so.1/ { print $NF; exit }')
    test -n "$library" || library=$(find / -name 'libnvidia-opencl.so.1' 2>/dev/null | head -1)
    echo "$library" > "$place/vendors/nvidia.icd"
fi
export OCL_ICD_VENDORS="$place/vendors"
export PYTHONPATH="src:.:$place/opencl/site:$place/peers/site${PYTHONPATH:+:$PYTHONPATH}"
export HOLDFAST_CACHE_DIR="${HOLDFAST_CACHE_DIR:-$place/cache}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
exec "$@"

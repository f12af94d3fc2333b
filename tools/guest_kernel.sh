#!/usr/bin/env bash
# Fetch the kernel that the QEMU guests of the tests boot.
#
# Usage: tools/guest_kernel.sh FOLDER      leaves FOLDER/vmlinuz
#
# Covers: finding Debian's current 6.1 cloud kernel, downloading it, taking the image out.
# Leaves to others: QEMU itself (apt-get install qemu-system-x86), booting (tests/guest/machine.py).
# Promise: a vmlinuz that is there is complete, and is then left alone without asking anyone.
#
# Modules are not unpacked: serial console, initramfs, NUMA, HMAT and PCI are all built into this kernel.
set -euo pipefail

fail() {
    printf 'cannot fetch the guest kernel: %s\n  expected: %s\n  try: %s\n' "$1" "$2" "$3" >&2
    exit 1
}

if [ $# -ne 1 ]; then
    fail "got $# arguments" "the folder to leave vmlinuz in" "tools/guest_kernel.sh .cache/guest"
fi
folder=$1
[ -s "$folder/vmlinuz" ] && exit 0

meta=linux-image-cloud-amd64
own="set GUEST_KERNEL to an x86-64 kernel image you have"

for tool in apt-cache apt-get dpkg-deb tar; do
    command -v "$tool" >/dev/null || fail "there is no $tool here" "a Debian 12 machine" "$own"
done

# The meta package depends on exactly one signed image (the -dbg and -unsigned ones are its neighbours by
# name only), and that is the one Debian holds to be current.
current_package() {
    apt-cache depends "$meta" 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-6\.1\.[0-9]*-[0-9]*-cloud-amd64\)$/\1/p' | head -n 1
}

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
# Inside the folder, so that the last step is a rename on one file system.
work=$(mktemp -d "$folder/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Succeeds with the .deb in $work. As root apt would drop to a user that may not write there, and warn.
download() {
    package=$(current_package)
    [ -n "$package" ] || return 1
    (cd "$work" && apt-get -q -o APT::Sandbox::User=root download "$package") >"$work/log" 2>&1
}

# Lists that are empty, or that name a version the mirror has since replaced, are mended by an update.
if ! download; then
    if [ "$(id -u)" -eq 0 ]; then
        apt-get -q update >"$work/update.log" 2>&1 || cat "$work/update.log" >&2
    fi
    if ! download; then
        [ ! -f "$work/log" ] || cat "$work/log" >&2
        fail "apt could not download ${package:-any package that $meta depends on}" \
            "linux-image-6.1.*-cloud-amd64 in Debian 12's package lists" "apt-get update (as root), or $own"
    fi
fi

# One member of the package, 14 MB: `dpkg -x` would write all the modules too.
dpkg-deb --fsys-tarfile "$work/$package"_*.deb |
    tar -xO "./boot/vmlinuz-${package#linux-image-}" >"$work/vmlinuz" ||
    fail "$package holds no ./boot/vmlinuz-${package#linux-image-}" "a signed Debian image package" "$own"
mv "$work/vmlinuz" "$folder/vmlinuz"
printf 'guest kernel: %s -> %s\n' "$package" "$folder/vmlinuz"

#!/usr/bin/env bash
# Install the Debian packages named as arguments, those that are missing.
# Without root, or without apt-get, it says what to install and goes on: the tests that need it
# then skip with their reason.
set -euo pipefail

missing=()
for package in "$@"; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "set-up: please install ${missing[*]} (on Debian: sudo apt-get install ${missing[*]})"
    exit 0
fi
echo "set-up: Debian packages ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null

#!/usr/bin/env bash
# Installs the Debian 12 packages that building, running and testing need, and a CUDA compiler where there is none. Needs
# root only when a package is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build pkg-config python3 python3-dev python3-venv
  libfmt-dev libcli11-dev nlohmann-json3-dev libre2-dev libeigen3-dev libgtest-dev libopenblas-dev
  miscfiles)

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null)" = "ii " ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  tools/cuda.sh
  exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "tools/install.sh: these packages are missing, and installing them needs root: ${missing[*]}" >&2
  exit 1
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
tools/cuda.sh

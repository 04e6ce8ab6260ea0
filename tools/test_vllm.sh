#!/usr/bin/env bash
# tools/test_vllm.sh [PYTEST ARGUMENTS]: the vLLM plugin against a stub of vLLM's chooser and against vLLM itself, on a CPU.
# Makes its own environment (python/requirements-vllm.txt, 6.3 GB, about 5 minutes) once in ~/.cache/scaledmm, the package anew
# when it has changed, and the checkpoints of `make run` where they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }

requirements=python/requirements-vllm.txt
home=${SCALEDMM_VENV_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/scaledmm}
venv=$home/vllm-$(sha256sum <"$requirements" | cut -c1-12)

say "vLLM in $venv"
if [ ! -e "$venv/.complete" ]; then
  if ! ldconfig -p | grep -q 'libnuma\.so\.1'; then apt-get install -y -qq libnuma1; fi
  rm -rf "$home"/vllm-*  # of other requirements
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$requirements"
  touch "$venv/.complete"
fi

say "the package"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check .

if [ ! -e build/models/fp8-block/config.json ]; then
  say "the checkpoints: make run"
  make run
fi

say "tests"
"$venv/bin/python" -m pytest -q python/tests/with_vllm "$@"

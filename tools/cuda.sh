#!/usr/bin/env bash
# tools/cuda.sh: a CUDA compiler for the module, where there is none: NVIDIA's packages of tools/requirements-cuda.txt in
# .cuda (250 MB). cuBLASLt, half a gigabyte, is not among them: building does not need it, and a machine with a card brings
# its own.
set -euo pipefail
cd "$(dirname "$0")/.."

for nvcc in "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
  [ -x "$nvcc" ] && "$nvcc" --version | grep -qE 'release (1[3-9]|[2-9][0-9])' && exit 0
done
stamp=.cuda/.requirements
wanted=$(sha256sum <tools/requirements-cuda.txt)
[ -e "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

echo "CUDA compiler into .cuda"
python3 -m venv --clear .cuda
.cuda/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tools/requirements-cuda.txt
echo "$wanted" >"$stamp"

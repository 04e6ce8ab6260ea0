#!/usr/bin/env bash
# The main job, after the build: a real model, its four quantized forms, the plan of one, the table, a paragraph.
# Exits with 1 when a quantized model is not as good as it must be.
set -euo pipefail
cd "$(dirname "$0")/.."

scaledmm=build/release/scaledmm
llama=build/release/llama
models=build/models
say() { printf '\n== %s\n' "$*"; }

say "the model: SmolLM2-135M-Instruct as a bf16 checkpoint"
tools/python.sh
.venv/bin/python examples/llama/prepare_model.py --out "$models/bf16"

say "four quantized checkpoints"
# A checkpoint is made anew when the model or the converter is another one. FP8 is calibrated on another text than the
# one that judges, INT8 made from the rotated model: docs/decisions/0001-perplexity-of-the-example.md. One kind of BLAS
# kernel, so that the codes are the same on every machine.
source_id="$(stat -c '%s %Y' "$models/bf16/model.safetensors") $(cat "$scaledmm" "$llama" | sha256sum)"
is_current() { [ "$(cat "$models/$1/.source" 2>/dev/null)" = "$source_id" ] && echo "$models/$1 is up to date"; }
make_current() { echo "$source_id" >"$models/$1/.source"; }
fp8_schemes=()
for scheme in fp8 fp8-channel fp8-block; do is_current "$scheme" || fp8_schemes+=("$scheme"); done
if [ ${#fp8_schemes[@]} -gt 0 ]; then
  OPENBLAS_CORETYPE=Haswell "$llama" calibrate "$models/bf16" --threads 2 --tokens 6144 \
    --out "$models/calibration.safetensors"
  for scheme in "${fp8_schemes[@]}"; do
    rm -rf "${models:?}/$scheme"
    "$scaledmm" convert "$models/bf16" "$models/$scheme" --scheme "$scheme" \
      --calibration "$models/calibration.safetensors"
    make_current "$scheme"
  done
fi
if ! is_current int8; then
  rm -rf "$models/rotated" "$models/int8"
  "$scaledmm" rotate "$models/bf16" "$models/rotated"
  "$scaledmm" convert "$models/rotated" "$models/int8" --scheme int8
  make_current int8
fi

say "the plan of $models/int8: $scaledmm plan $models/int8 --dtype f32"
"$scaledmm" plan "$models/int8" --dtype f32

say "accuracy and speed: $llama report --models $models"
status=0
"$llama" report --models "$models" --json build/report.json || status=$?

say "a paragraph from INT8: $llama generate $models/int8"
"$llama" generate "$models/int8" --max-tokens 120
exit "$status"

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
# A checkpoint is made anew when the model or the converter is another one. All are calibrated on another text than the
# one that judges; INT8 is made from the rotated model and keeps the most sensitive down_proj dense:
# docs/decisions/0001-perplexity-of-the-example.md. One kind of BLAS kernel, so that the codes are the same on every
# machine.
source_id="$(stat -c '%s %Y' "$models/bf16/model.safetensors") $(cat "$scaledmm" "$llama" tools/run.sh | sha256sum)"
outdated=()
for scheme in int8 fp8 fp8-channel fp8-block; do
  if [ "$(cat "$models/$scheme/.source" 2>/dev/null)" = "$source_id" ]; then
    echo "$models/$scheme is up to date"
  else
    outdated+=("$scheme")
  fi
done
calibrate() {
  OPENBLAS_CORETYPE=Haswell "$llama" calibrate "$1" --data "$models/example" --threads 2 --tokens 6144 --out "$2"
}
calibration=$models/calibration.safetensors rotated_calibration=$models/calibration-rotated.safetensors
[ ${#outdated[@]} -eq 0 ] || calibrate "$models/bf16" "$calibration"
for scheme in "${outdated[@]}"; do
  rm -rf "${models:?}/$scheme"
  if [ "$scheme" = int8 ]; then
    rm -rf "$models/rotated"
    "$scaledmm" rotate "$models/bf16" "$models/rotated" --calibration "$calibration"
    calibrate "$models/rotated" "$rotated_calibration"
    "$scaledmm" convert "$models/rotated" "$models/int8" --scheme int8 --asymmetric-inputs \
      --calibration "$rotated_calibration" --ignore 're:model\.layers\.([0-5]|8|9|1[018]|2[0-9])\.mlp\.down_proj'
  else
    "$scaledmm" convert "$models/bf16" "$models/$scheme" --scheme "$scheme" --calibration "$calibration"
  fi
  echo "$source_id" >"$models/$scheme/.source"
done

say "the plan of $models/int8: $scaledmm plan $models/int8 --dtype f32"
"$scaledmm" plan "$models/int8" --dtype f32

say "accuracy and speed: $llama report --models $models"
status=0
"$llama" report --models "$models" --json build/report.json || status=$?

say "a paragraph from INT8: $llama generate $models/int8"
"$llama" generate "$models/int8" --max-tokens 120
exit "$status"

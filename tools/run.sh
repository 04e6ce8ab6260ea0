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
# A checkpoint is made anew when the model or the converter is another one.
source_id="$(stat -c '%s %Y' "$models/bf16/model.safetensors") $(sha256sum <"$scaledmm")"
for scheme in int8 fp8 fp8-channel fp8-block; do
  folder="$models/$scheme"
  if [ "$(cat "$folder/.source" 2>/dev/null)" = "$source_id" ]; then
    echo "$folder is up to date"
  else
    rm -rf "$folder"
    "$scaledmm" convert "$models/bf16" "$folder" --scheme "$scheme"
    echo "$source_id" >"$folder/.source"
  fi
done

say "the plan of $models/int8: $scaledmm plan $models/int8 --dtype f32"
"$scaledmm" plan "$models/int8" --dtype f32

say "accuracy and speed: $llama report --models $models"
status=0
"$llama" report --models "$models" --json build/report.json || status=$?

say "a paragraph from INT8: $llama generate $models/int8"
"$llama" generate "$models/int8" --max-tokens 120
exit "$status"

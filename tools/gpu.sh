#!/usr/bin/env bash
# Builds the CUDA module, its tests and benchmarks, and where there is a card checks and times them, in short tables.
#   tools/gpu.sh               build into build/gpu, then run
#   tools/gpu.sh build         build only; needs no card
#   tools/gpu.sh run [BUILD]   run what was built before, perhaps on another machine
# Figures go to $OUT, or to the build folder.
set -euo pipefail
cd "$(dirname "$0")/.."

build() {
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DSCALEDMM_CUDA=ON -DSCALEDMM_BENCH=ON \
    -DSCALEDMM_EXAMPLES=ON >/dev/null
  cmake --build build/gpu --target scaledmm_cuda scaledmm_cli cuda_module_test cuda_test apply_bench
}

run() {
  local from out status=0
  from=$(realpath "$1")
  out=${OUT:-$from}
  export SCALEDMM_CUDA_MODULE=$from/libscaledmm_cuda.so
  step() { printf '\n== %s\n' "$*"; }
  find_file() {
    for at in "$from/$1" "$from/tests/$1" "$from/bench/$1"; do
      if [ -x "$at" ] && [ -f "$at" ]; then echo "$at" && return; fi
    done
    echo "tools/gpu.sh: no $1 in $from" >&2
    return 1
  }

  step "devices"
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.draw,temperature.gpu --format=csv,noheader
  fi
  "$(find_file scaledmm)" devices | grep -iE 'cuda|sm90|cublaslt'

  step "tests"
  for test in cuda_module_test cuda_test; do
    "$(find_file $test)" --gtest_brief=1 >"$out/$test.log" 2>&1 || status=1
    grep -vE '^\[ +(OK|RUN|SKIPPED) |^Note' "$out/$test.log" | tail -n 30
  done

  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      step "compute-sanitizer $tool"
      compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 3 "$(find_file cuda_test)" --gtest_brief=1 \
        --gtest_filter='*UnpackGives*:*TakesNoRows*:*HonoursStrides*sm90*:*ConfinesNan*:*WriteScales*' \
        >"$out/$tool.log" 2>&1 || status=1
      tail -n 4 "$out/$tool.log"
    done
  fi

  step "quantizers, apply, host cost"
  "$(find_file apply_bench)" all "$out/apply_bench.json" || status=1
  return $status
}

case ${1:-all} in
  build) build ;;
  run) run "${2:-build/gpu}" ;;
  all) build && run build/gpu ;;
  *) sed -n '2,6p' "$0" >&2; exit 2 ;;
esac

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
  local targets=(scaledmm_cuda scaledmm_cli cuda_module_test cuda_test apply_bench)
  # Only where there is a cuBLASLt to link.
  if cmake --build build/gpu --target help | grep -q '^gemm_bench:'; then targets+=(gemm_bench); fi
  cmake --build build/gpu --target "${targets[@]}"
}

run() {
  local from out gemm_bench='' pages=() status=0
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

  gemm_bench=$(find_file gemm_bench) || echo "tools/gpu.sh: it needs cuBLASLt to be built, the GEMMs alone are left out"
  if [ -n "$gemm_bench" ]; then
    step "GEMMs: every plan against exact sums"
    "$gemm_bench" check || status=1
  fi

  step "quantizers, apply, host cost"
  "$(find_file apply_bench)" all "$out/apply_bench.json" || status=1

  if [ -n "$gemm_bench" ]; then
    step "GEMMs beside cuBLASLt"
    "$gemm_bench" table "$out/gemm_bench.json" >"$out/gemm_bench.txt" || status=1
    grep -E '^(fp8|int8) |^  .*(sm90 |cublaslt (fp8|int8) )' "$out/gemm_bench.txt" || true
    pages=("$out/gemm_bench.json")
  fi

  if command -v python3 >/dev/null && python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    step "beside PyTorch"
    python3 bench/gpu/torch_peers.py "$SCALEDMM_CUDA_MODULE" "$out/torch_peers.json" || status=1
    pages+=("$out/torch_peers.json")
  fi
  if [ ${#pages[@]} -gt 0 ] && command -v python3 >/dev/null; then
    python3 bench/gpu/plot.py "$out/gpu.html" "${pages[@]}" || status=1
  fi

  if command -v compute-sanitizer >/dev/null; then
    local small='*UnpackGives*:*TakesNoRows*:*HonoursStrides*sm90*:*ConfinesNan*:*WriteScales*:*OfALaunchOfTheirOwn*'
    for tool in memcheck racecheck; do
      step "compute-sanitizer $tool"
      compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 3 "$(find_file cuda_test)" --gtest_brief=1 \
        --gtest_filter="$small" \
        >"$out/$tool.log" 2>&1 || status=1
      tail -n 4 "$out/$tool.log"
    done
  fi
  return $status
}

case ${1:-all} in
  build) build ;;
  run) run "${2:-build/gpu}" ;;
  all) build && run build/gpu ;;
  *) sed -n '2,6p' "$0" >&2; exit 2 ;;
esac

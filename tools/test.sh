#!/usr/bin/env bash
# Everything that can be tested on this machine: a release build with warnings as errors, and the sanitized one for what
# reads foreign bytes and for the kernels. Fails when a kernel that this machine can run was skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; }

tools/python.sh
export PATH="$PWD/.venv/bin:$PATH"

step "rooms, characters, baseline"
tools/check_rooms.sh

step "release build, warnings are errors"
cmake --preset ci -DSCALEDMM_PYTHON=ON -DPython_EXECUTABLE="$PWD/.venv/bin/python" >/dev/null
cmake --build --preset ci
tools/check_baseline.sh build/ci

step "tests, release"
ctest --preset ci -j "$(nproc)"

step "golden vectors, the model's preparation and the Python package"
python tests/golden/make_golden.py --check
PYTHONPATH=$PWD/build/ci/python python -m pytest -q python/tests

step "tests, address and undefined-behaviour sanitizers"
cmake --preset dev >/dev/null
cmake --build --preset dev
ASAN_OPTIONS=detect_leaks=1 ctest --preset dev -j "$(nproc)"

step "thread sanitizer: the pool and the work dealt to its threads"
cmake --preset tsan >/dev/null
cmake --build --preset tsan --target device_test
build/tsan/tests/device_test --gtest_brief=1

step "a program that uses the installed package"
tools/check_package.sh

step "which kernels were tested"
grep '^kernel ' build/ci/Testing/Temporary/LastTest.log

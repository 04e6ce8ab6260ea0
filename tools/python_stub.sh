#!/usr/bin/env bash
# tools/python_stub.sh BUILD: writes python/scaledmm/_core.pyi from the extension module in BUILD/python, with the nanobind of the
# Python that is first in PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH=${1:?the build folder}/python python -m nanobind.stubgen -q -m scaledmm._core -p python/stub_patterns.txt \
  -o python/scaledmm/_core.pyi

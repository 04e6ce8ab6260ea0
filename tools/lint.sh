#!/usr/bin/env bash
# clang-format and clang-tidy over the tree (Debian's clang-format and clang-tidy 14).
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in clang-format clang-tidy; do
  command -v $tool >/dev/null || { echo "tools/lint.sh: $tool is missing; apt-get install $tool" >&2; exit 1; }
done
tools/check_rooms.sh
git ls-files '*.cpp' '*.hpp' '*.h' | xargs clang-format --dry-run --Werror
cmake --preset ci >/dev/null
git ls-files 'src/*.cpp' 'cli/*.cpp' | grep -v 'kernels/cpu' | xargs -P 2 -n 4 clang-tidy -quiet -p build/ci

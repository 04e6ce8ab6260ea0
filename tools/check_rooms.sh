#!/usr/bin/env bash
# The rules that a compiler does not check: which room may include which, ASCII only, no trailing space, and rounding and
# range constants in src/numerics only.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
complain() { printf '%s\n' "$@" >&2; status=1; }

# may ROOM ALLOWED...: every quoted include of src/ROOM begins with one of ALLOWED.
may() {
  local room=$1 allowed
  shift
  allowed=$(IFS='|'; echo "$*")
  local bad
  bad=$(grep -rnE '^#include "' "src/$room" --include='*.cpp' --include='*.hpp' --include='*.cu' --include='*.cuh' |
    grep -vE "#include \"($allowed)" || true)
  [ -z "$bad" ] || complain "src/$room may include $* only:" "$bad"
}
may core scaledmm/
may device scaledmm/ device/ cuda/module_api.hpp x86_emulated.hpp
may numerics scaledmm/ numerics/
may cuda scaledmm/dtype.hpp numerics/ cuda/
may kernels scaledmm/ numerics/ device/ kernels/ cuda/module_api.hpp
may registry scaledmm/ kernels/kernel_list.hpp kernels/kernels.inc device/environment.hpp registry/
may formats scaledmm/ numerics/ formats/
may capi scaledmm/ capi/

files=$(git ls-files --cached --others --exclude-standard | grep -E '\.(cpp|hpp|h|inc|cu|cuh|cl|py|sh|cmake|md|json|txt)$|Makefile|CMakeLists.txt|\.ci/run' || true)
bad=$(echo "$files" | xargs -r -d '\n' grep -nP '[^\x00-\x7F]' /dev/null | cut -c1-160 || true)
[ -z "$bad" ] || complain "not ASCII:" "$bad"
bad=$(echo "$files" | xargs -r -d '\n' grep -nE '[[:blank:]]+$' /dev/null | cut -c1-160 || true)
[ -z "$bad" ] || complain "trailing space:" "$bad"
bad=$(grep -rnE '\b(448|57344|nearbyint|rint|lrint)f?\b|\b127(\.0f?)?\b' src cli --include='*.cpp' --include='*.hpp' --include='*.cu' --include='*.cuh' |
  grep -v '^src/numerics/' | grep -vE '^[^:]+:[0-9]+:[[:space:]]*//|//.*\b(127|448|57344)\b' || true)
[ -z "$bad" ] || complain "rounding and range constants belong into src/numerics:" "$bad"
[ $status -eq 0 ] && echo "rooms, characters and constants are in order"
exit $status

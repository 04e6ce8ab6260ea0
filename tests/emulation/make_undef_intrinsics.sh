#!/bin/sh
# Writes undef_intrinsics.inc: every name of the emulation that some compiler's <immintrin.h> defines as a macro, at -O0 or -O2.
#   ./make_undef_intrinsics.sh [compiler...]        default: g++ clang++
# The emulation's own names are read from its preprocessed text, with empty stand-ins for the system headers and for the list itself.
set -eu
export LC_ALL=C
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- g++ clang++
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp ./*.hpp "$work"
mkdir "$work/system"
: > "$work/undef_intrinsics.inc"
for header in immintrin.h cstdint cstdio; do : > "$work/system/$header"; done
echo '#include "x86_emulated.hpp"' | g++ -std=c++20 -x c++ -E -P -nostdinc -I "$work/system" -I "$work" - |
  sed 's/inline /\n&/g' | sed -nE '/^inline /s/^[^;{]*[ *](_[a-z]\w*)\(.*/\1/p' | sort -u > "$work/own"

for compiler in "$@"; do
  for level in -O0 -O2; do
    "$compiler" -x c++ -std=c++20 $level -mavx2 -mfma -mf16c -dM -E -include immintrin.h /dev/null
  done
done | sed -nE 's/^#define (_[a-z]\w*).*/\1/p' | sort -u > "$work/macros"

{
  echo '// Made by make_undef_intrinsics.sh: the names that some compiler defines as macros.'
  comm -12 "$work/own" "$work/macros" | sed 's/^/#undef /'
} > undef_intrinsics.inc

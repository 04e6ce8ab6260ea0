#!/usr/bin/env bash
# Disassembles the AMX-FP8 kernel with a tool that knows the instructions, which g++ 12 and binutils 2.40 do not: every
# product must be one of the four, on the tiles that the kernel names. Needs llvm-objdump 20 or newer (Debian: llvm-22);
# says so and passes where there is none.   usage: tools/check_amx_fp8.sh BUILD_FOLDER
set -euo pipefail
build=${1:?usage: tools/check_amx_fp8.sh BUILD_FOLDER}
object=$build/src/kernels/CMakeFiles/scaledmm_kernels.dir/cpu/fp8_w8a8_amxfp8.cpp.o
[ -f "$object" ] || { echo "no $object: build scaledmm_kernels first" >&2; exit 1; }
objdump=${LLVM_OBJDUMP:-$(command -v llvm-objdump-24 llvm-objdump-23 llvm-objdump-22 llvm-objdump-21 llvm-objdump-20 | head -1 || true)}
[ -n "$objdump" ] || { echo "SKIPPED: no llvm-objdump 20 or newer; the AMX-FP8 bytes are checked by kernels_test only"; exit 0; }
# AT&T order: b, a, sums. Codes are in tiles 4 and 5, weights in 6 and 7, and sum 2 * (a - 4) + (b - 6) is theirs.
"$objdump" -d --mattr=+amx-fp8 "$object" | grep -oE 'tdp[a-z0-9]+[[:space:]]+%tmm[0-7], %tmm[0-7], %tmm[0-7]' |
  awk '{ gsub(/[%tm,]/, "", $2); gsub(/[%tm,]/, "", $3); gsub(/[%tm,]/, "", $4); count[$1]++; total++
         if ($2 < 6 || ($3 != 4 && $3 != 5) || $4 != 2 * ($3 - 4) + ($2 - 6)) { print "wrong tiles: " $0; bad = 1 } }
       END { n = split("tdpbf8ps tdphf8ps tdphbf8ps tdpbhf8ps", names, " ")
             for (i = 1; i <= n; i++) { if (!count[names[i]]) { print "no " names[i]; bad = 1 } print names[i] ": " count[names[i]] + 0 }
             if (total != count["tdpbf8ps"] + count["tdphf8ps"] + count["tdphbf8ps"] + count["tdpbhf8ps"]) { print "other products"; bad = 1 }
             exit bad }'

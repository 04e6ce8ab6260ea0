#!/usr/bin/env bash
# check_baseline.sh BUILD: no weak symbol of the library's objects may hold AVX code. The linker keeps one copy of a weak
# function for everybody, and a processor without AVX would run it.
set -euo pipefail
build=$1
status=0
count=0
for object in $(find "$build/src" -name '*.o' ! -path '*cuda*'); do
  count=$((count + 1))
  weak=$(nm -C "$object" | awk '$2 == "W" || $2 == "V" || $2 == "u"' | wc -l)
  [ "$weak" -gt 0 ] || continue
  bad=$(objdump -d --no-show-raw-insn "$object" |
    awk -v weak="$(nm "$object" | awk '$2 == "W" { printf "%s ", $3 }')" '
      BEGIN { n = split(weak, names, " "); for (i = 1; i <= n; ++i) is_weak[names[i]] = 1 }
      /^[0-9a-f]+ <.*>:$/ { name = $2; gsub(/[<>:]/, "", name) }
      (name in is_weak) && $2 ~ /^v[a-z]/ && $2 !~ /^ver[rw]/ { print name; delete is_weak[name] }')
  [ -z "$bad" ] || { printf 'AVX code in weak symbols of %s:\n%s\n' "$object" "$(echo "$bad" | c++filt)" >&2; status=1; }
done
[ "$count" -gt 0 ] || { echo "check_baseline.sh: no objects under $build/src" >&2; exit 1; }
[ $status -eq 0 ] && echo "$count objects hold no AVX code in weak symbols"
exit $status

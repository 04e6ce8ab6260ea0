#!/usr/bin/env bash
# tools/if_time.sh DEADLINE SCRIPT: runs SCRIPT if what `SCRIPT --seconds` says fits before DEADLINE (seconds since 1970), and says
# so when it does not. A script that runs past the deadline all the same is stopped, which is no failure of what it tests.
set -euo pipefail
deadline=$1 script=$2

needed=$("$script" --seconds)
left=$((deadline - $(date +%s)))
if [ "$needed" -gt "$left" ]; then
  printf '\n== NOT RUN: %s takes about %d s here, %d s are left\n' "$script" "$needed" "$left"
  exit 0
fi
printf '\n== %s: about %d s, %d s are left\n' "$script" "$needed" "$left"
status=0
timeout "$left" "$script" || status=$?
if [ "$status" -eq 124 ]; then
  printf '\n== NOT FINISHED: %s was stopped after %d s, when the time was up\n' "$script" "$left"
  exit 0
fi
exit "$status"

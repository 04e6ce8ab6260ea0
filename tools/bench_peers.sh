#!/usr/bin/env bash
# tools/bench_peers.sh [ARGUMENTS of scaledmm bench]: our layers beside those of other libraries, called in turn in one run.
#   tools/bench_peers.sh --scheme int8 --shape 1,4096,4096 --shape 64,4096,4096 --threads 1 --html report.html
# Makes an environment with onnxruntime, OpenVINO and oneDNN (bench/baselines/requirements.txt) once in ~/.cache/scaledmm, and
# takes PyTorch and vLLM from the environments of tools/test_torch.sh and tools/test_vllm.sh where they are. SCALEDMM_PEERS names the
# peers that count, of: onednn onnxruntime openvino torch vllm. SCALEDMM_BINARY is the command, build/release/scaledmm by default.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=bench/baselines/requirements.txt
home=${SCALEDMM_VENV_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/scaledmm}
export SCALEDMM_VENV_HOME=$home
venv=$home/peers-$(sha256sum <"$requirements" | cut -c1-12)
binary=${SCALEDMM_BINARY:-build/release/scaledmm}
wanted=" ${SCALEDMM_PEERS:-onednn onnxruntime openvino torch vllm} "

if [ ! -e "$venv/.complete" ]; then
  echo "peers into $venv" >&2
  rm -rf "$home"/peers-*  # of other requirements
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$requirements"
  touch "$venv/.complete"
fi

onednn=$venv/onednn_peer
if [ bench/baselines/onednn_peer.cpp -nt "$onednn" ]; then
  g++ -std=c++20 -O2 -fopenmp -I"$venv/include" bench/baselines/onednn_peer.cpp -o "$onednn" -L"$venv/lib" -ldnnl \
    -Wl,-rpath,"$venv/lib"
fi

# Commands are recorded as they stand, and run by a shell: no folder of this machine comes into a report.
within() { printf '"$SCALEDMM_VENV_HOME/%s"' "${1#"$home"/}"; }
peers=()
add() {  # NAME COMMAND
  if [[ $wanted == *" $1 "* ]]; then peers+=(--peer "$2"); fi
}
# Threads that wait must sleep: the other side is timed then.
add onednn "OMP_WAIT_POLICY=PASSIVE $(within "$onednn")"
add onnxruntime "$(within "$venv/bin/python") bench/baselines/onnxruntime_cpu.py"
add openvino "$(within "$venv/bin/python") bench/baselines/openvino_cpu.py"
for library in torch vllm; do
  for other in "$home/$library"-*; do
    if [ -e "$other/.complete" ]; then add "$library" "$(within "$other/bin/python") bench/baselines/${library}_cpu.py"; fi
  done
done
exec "$binary" bench "$@" "${peers[@]}"

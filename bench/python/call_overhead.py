"""What a call from Python costs beside the C++ apply: a layer so small that there is nearly nothing else.

    python bench/python/call_overhead.py [build/release/scaledmm]

Prints microseconds (median of batches) for each way to call. With the command's path also the C++ apply alone.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import scaledmm
import scaledmm.torch

N = K = 16


def microseconds(call: Callable[[], object], batches: int = 50, calls: int = 400) -> float:
    times = []
    for _ in range(batches):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append(1e6 * (time.perf_counter() - begin) / calls)
    return statistics.median(times)


def cpp_apply(command: str) -> float:
    arguments = ["bench", "--scheme", "int8", "--shape", f"1,{N},{K}", "--x-dtype", "f32", "--threads", "1", "--json"]
    lines = subprocess.run([command, *arguments], check=True, capture_output=True, text=True).stdout.splitlines()
    row = json.loads(lines[0])
    return float((row[0] if isinstance(row, list) else row)["apply_us"])


def main() -> None:
    scaledmm.set_num_threads(1)
    codes, scale = scaledmm.quantize_weight(np.random.randn(N, K).astype(np.float32), "int8")
    layer = scaledmm.Linear(scaledmm.layer_config("int8", N, K, input_dtype="f32"), codes, scale)
    x, out = np.ones((1, K), np.float32), np.empty((1, N), np.float32)
    tensor, tensor_out = torch.from_numpy(x), torch.from_numpy(out)
    handle = scaledmm.torch.handle(layer)
    module = scaledmm.torch.ScaledMMLinear(torch.randn(N, K))
    dense = torch.nn.Linear(K, N)
    rows: list[tuple[str, float]] = []
    if len(sys.argv) > 1:
        rows.append(("C++ apply (scaledmm bench)", cpp_apply(sys.argv[1])))
    with torch.no_grad():
        rows += [
            ("numpy: layer(x)", microseconds(lambda: layer(x))),
            ("numpy: layer(x, out)", microseconds(lambda: layer(x, out))),
            ("torch: layer(x)", microseconds(lambda: layer(tensor))),
            ("torch: layer(x, out)", microseconds(lambda: layer(tensor, tensor_out))),
            (
                "torch.ops.scaledmm.linear",
                microseconds(lambda: torch.ops.scaledmm.linear(tensor, handle, N, torch.float32)),
            ),
            ("ScaledMMLinear module", microseconds(lambda: module(tensor))),
            ("torch.nn.Linear f32, for comparison", microseconds(lambda: dense(tensor))),
        ]
    for name, value in rows:
        print(f"{name:40} {value:7.2f} us")


if __name__ == "__main__":
    main()

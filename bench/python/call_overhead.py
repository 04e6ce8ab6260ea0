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
GPU_N = 256


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


def on_gpu() -> list[tuple[str, float]]:
    """What a call costs the calling thread on a GPU: kernels so short that launching them takes longer."""
    codes, scale = scaledmm.quantize_weight(torch.randn(GPU_N, GPU_N), "int8")
    layer = scaledmm.Linear(
        scaledmm.layer_config("int8", GPU_N, GPU_N, input_dtype="bf16"), codes, scale, device="cuda"
    )
    x = torch.randn(1, GPU_N, device="cuda").bfloat16()
    out, handle, stream = layer(x), scaledmm.torch.handle(layer), torch.cuda.current_stream().cuda_stream
    codes, scale = scaledmm.quantize_weight(torch.randn(GPU_N, GPU_N), "e4m3fn", scaledmm.GroupShape.PER_TENSOR)
    w, one = codes.cuda().t(), torch.ones((), device="cuda")
    q = x.expand(16, GPU_N).to(torch.float8_e4m3fn)
    dense = torch.nn.Linear(GPU_N, GPU_N, device="cuda", dtype=torch.bfloat16)

    def synchronized(call: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        return microseconds(call)

    return [
        ("CUDA: layer(x)", synchronized(lambda: layer(x))),
        ("CUDA: layer(x, out, stream=...)", synchronized(lambda: layer(x, out, stream=stream))),
        (
            "CUDA: torch.ops.scaledmm.linear",
            synchronized(lambda: torch.ops.scaledmm.linear(x, handle, GPU_N, torch.bfloat16)),
        ),
        (
            "CUDA: torch._scaled_mm, no quantizer, for comparison",
            synchronized(lambda: torch._scaled_mm(q, w, one, one, out_dtype=torch.bfloat16)),
        ),
        ("CUDA: torch.nn.Linear bf16, for comparison", synchronized(lambda: dense(x))),
    ]


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
        if torch.cuda.is_available():
            rows += on_gpu()
    for name, value in rows:
        print(f"{name:54} {value:7.2f} us")


if __name__ == "__main__":
    main()

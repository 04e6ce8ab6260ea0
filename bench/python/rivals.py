"""INT8 and FP8 layers of this package beside the operators that torch, onnxruntime and vLLM have for the same work on
a CPU.

    python bench/python/rivals.py [--shape 4096,4096] [--rows 1,16,128] [--threads 2] [--json FILE]

Needs torch; onnxruntime, onnx and vllm are measured where they are installed, and named where they are not. Every way
runs on the same weights, which rotate through more memory than the last cache holds; its result is checked against the
dense product before it is timed. Prints a Markdown table of microseconds (median).
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import scaledmm

ROTATION_BYTES = 128 << 20
Call = Callable[[torch.Tensor], Any]


class Rival:
    """A way to multiply: prepare(weight f32 [N, K]) gives a call on x."""

    def __init__(self, name: str, prepare: Callable[[torch.Tensor], Call], x_dtype: torch.dtype, tolerance: float):
        self.name, self.prepare, self.x_dtype, self.tolerance = name, prepare, x_dtype, tolerance


def ours(scheme: str, dtype: torch.dtype) -> Callable[[torch.Tensor], Call]:
    def prepare(weight: torch.Tensor) -> Call:
        codes, scale = scaledmm.quantize_weight(weight, "int8" if scheme == "int8" else "e4m3fn")
        return scaledmm.Linear(scaledmm.layer_config(scheme, *weight.shape, input_dtype=dtype), codes, scale)

    return prepare


def dense(dtype: torch.dtype) -> Callable[[torch.Tensor], Call]:
    def prepare(weight: torch.Tensor) -> Call:
        converted = weight.to(dtype)
        return lambda x: torch.nn.functional.linear(x, converted)

    return prepare


def int_mm(weight: torch.Tensor) -> Call:
    """torch._int_mm between our quantizer and an epilogue in torch."""
    codes, scale = scaledmm.quantize_weight(weight, "int8")
    transposed, row = codes.t(), scale.t()

    def call(x: torch.Tensor) -> torch.Tensor:
        q, x_scale, _ = scaledmm.scaled_int8_quant(x)
        return torch._int_mm(q, transposed).float() * x_scale * row

    return call


def scaled_mm(weight: torch.Tensor) -> Call:
    """torch._scaled_mm, rows by channels, after our quantizer."""
    codes, scale = scaledmm.quantize_weight(weight, "e4m3fn")
    transposed, row = codes.t(), scale.t().contiguous()

    def call(x: torch.Tensor) -> torch.Tensor:
        q, x_scale = scaledmm.scaled_fp8_quant(x)
        return torch._scaled_mm(q, transposed, x_scale, row, out_dtype=torch.bfloat16)

    return call


def dynamic_linear(weight: torch.Tensor) -> Call:
    """torch's dynamically quantized linear layer (one scale for the whole x)."""
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    return torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(linear), {torch.nn.Linear}, dtype=torch.qint8)


def onnx_call(node: str, weight: torch.Tensor) -> Call:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    codes, scale = scaledmm.quantize_weight(weight, "int8", scaledmm.GroupShape.PER_TENSOR)
    n, k = weight.shape
    constants = [
        numpy_helper.from_array(np.ascontiguousarray(codes.numpy().T), "w"),
        numpy_helper.from_array(scale.numpy(), "w_scale"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", k])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m", n])
    if node == "DynamicQuantizeMatMul":
        nodes = [helper.make_node(node, ["x", "w", "w_scale"], ["y"], domain="com.microsoft")]
    else:
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            helper.make_node(node, ["q", "w", "s", "w_scale", "z"], ["y"], domain="com.microsoft"),
        ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants), opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def vllm_int8(weight: torch.Tensor) -> Call:
    """vLLM's oneDNN kernel with its own quantizer."""
    import vllm._custom_ops as vllm_ops

    codes, scale = scaledmm.quantize_weight(weight, "int8")
    handler = vllm_ops.create_onednn_scaled_mm(codes.t(), scale, torch.bfloat16, True, False, 32)
    handler.kept = scale  # it reads the scales where they are

    def call(x: torch.Tensor) -> torch.Tensor:
        q, x_scale, _ = vllm_ops.onednn_scaled_int8_quant(x, None, None, True)
        y = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype)
        vllm_ops.onednn_scaled_mm(handler, q, y, x_scale, None, None, None)
        return y

    return call


def vllm_fp8(weight: torch.Tensor) -> Call:
    """vLLM's W8A16 kernel for FP8 in blocks, which its builds for CPUs without AMX lack."""
    import vllm._custom_ops  # noqa: F401, loads the operators

    codes, scale = scaledmm.quantize_weight(weight, "e4m3fn", scaledmm.GroupShape(128, 128))
    packed = torch.ops._C.convert_weight_packed(codes)
    return lambda x: torch.ops._C.fp8_scaled_mm_cpu(x, packed, scale, [128, 128], None, x.dtype, True)


def vllm_fp8_channel(weight: torch.Tensor) -> Call:
    """What vLLM runs FP8 layers per channel on without AMX: sums of codes by torch._scaled_mm, scaled afterwards."""
    codes, scale = scaledmm.quantize_weight(weight, "e4m3fn")
    transposed, row, one = codes.t(), scale.t().contiguous(), torch.ones(1)

    def call(x: torch.Tensor) -> torch.Tensor:
        q, x_scale = scaledmm.scaled_fp8_quant(x)
        sums = torch._scaled_mm(q, transposed, one, one, out_dtype=torch.float32)
        return (sums * x_scale * row).to(x.dtype)

    return call


RIVALS = [
    Rival("scaledmm int8, f32", ours("int8", torch.float32), torch.float32, 0.02),
    Rival("scaledmm int8, bf16", ours("int8", torch.bfloat16), torch.bfloat16, 0.02),
    Rival("scaledmm fp8_w8a16, bf16", ours("fp8_w8a16", torch.bfloat16), torch.bfloat16, 0.05),
    Rival("torch f32", dense(torch.float32), torch.float32, 1e-4),
    Rival("torch bf16", dense(torch.bfloat16), torch.bfloat16, 0.02),
    Rival("torch._int_mm + quantizer + epilogue", int_mm, torch.float32, 0.02),
    Rival("torch dynamic quantized linear", dynamic_linear, torch.float32, 0.05),
    Rival("torch._scaled_mm, rows by channels, + quantizer", scaled_mm, torch.bfloat16, 0.08),
    Rival("onnxruntime MatMulIntegerToFloat", lambda w: onnx_call("MatMulIntegerToFloat", w), torch.float32, 0.05),
    Rival("onnxruntime DynamicQuantizeMatMul", lambda w: onnx_call("DynamicQuantizeMatMul", w), torch.float32, 0.05),
    Rival("vLLM onednn_scaled_mm (INT8), bf16", vllm_int8, torch.bfloat16, 0.02),
    Rival("vLLM ChannelWiseTorchFP8, bf16", vllm_fp8_channel, torch.bfloat16, 0.08),
    Rival("vLLM fp8_scaled_mm_cpu, bf16", vllm_fp8, torch.bfloat16, 0.05),
]


def relative_error(y: torch.Tensor, expected: torch.Tensor) -> float:
    return float((y.float() - expected).norm() / expected.norm())


def microseconds(calls: list[Call], x: torch.Tensor, seconds: float) -> float:
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        call = calls[len(times) % len(calls)]
        begin = time.perf_counter()
        call(x)
        times.append(1e6 * (time.perf_counter() - begin))
    return statistics.median(times)


def measure(
    rival: Rival, weights: list[torch.Tensor], inputs: list[torch.Tensor], seconds: float
) -> dict[int, float] | str:
    """Microseconds by rows, or why there are none."""
    try:
        calls = [rival.prepare(weight) for weight in weights]
        result = {}
        for x in inputs:
            error = relative_error(calls[0](x.to(rival.x_dtype)), x @ weights[0].t())
            if not error < rival.tolerance:
                return f"wrong: relative error {error:.3f} at {x.shape[0]} rows"
            result[x.shape[0]] = microseconds(calls, x.to(rival.x_dtype), seconds)
        return result
    except (ImportError, RuntimeError, AttributeError, NotImplementedError) as error:
        return str(error).strip().splitlines()[0][:90]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="4096,4096", help="N,K")
    parser.add_argument("--rows", default="1,16,128")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each number")
    parser.add_argument("--json")
    options = parser.parse_args()
    n, k = map(int, options.shape.split(","))
    rows = [int(m) for m in options.rows.split(",")]
    torch.set_num_threads(options.threads)
    scaledmm.set_num_threads(options.threads)
    torch.manual_seed(0)
    weights = [torch.randn(n, k) for _ in range(max(1, math.ceil(ROTATION_BYTES / (n * k))))]
    inputs = [torch.randn(m, k) for m in rows]
    machine = f"{scaledmm.device('cpu').description}, {options.threads} threads, torch {torch.__version__}"
    print(f"{n} x {k}, {machine}, microseconds\n")
    print("| | " + " | ".join(f"M = {m}" for m in rows) + " |\n|---|" + "---|" * len(rows))
    report = {}
    with torch.no_grad():
        for rival in RIVALS:
            report[rival.name] = result = measure(rival, weights, inputs, options.seconds)
            cells = (
                [f"{result[m]:.0f}" for m in rows] if isinstance(result, dict) else [result] + [""] * (len(rows) - 1)
            )
            print(f"| {rival.name} | " + " | ".join(cells) + " |", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            about = {"date": time.strftime("%Y-%m-%d"), "machine": machine, "shape": [n, k], "threads": options.threads}
            json.dump(about | {"microseconds": report}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()

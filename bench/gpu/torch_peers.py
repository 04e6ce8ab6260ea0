#!/usr/bin/env python3
"""The rows of design.md 6.1 beside PyTorch, on one card in one run: microseconds of GEMM and of quantize + GEMM.

    torch_peers.py MODULE.so FILE.json [--shape M,N,K]...

The CUDA module is called through its table (src/cuda/module_api.hpp), PyTorch by its operators. Each contender is a
CUDA graph of calls that rotate over more weights than the L2 holds; they take turns in 13 rounds, in random order;
medians. Activations and weights are normal random numbers, quantized; results are compared once before anything is
timed.
"""

import argparse
import ctypes as c
import json
import pathlib
import random
import re
import statistics
import sys

import torch

ROWS = [(1, 4096, 4096), (1, 28672, 4096), (16, 28672, 4096), (16, 8192, 8192), (64, 4096, 14336), (128, 7168, 16384),
        (512, 4096, 14336), (2048, 8192, 8192), (8192, 8192, 8192), (8192, 4096, 7168)]
ROUNDS = 13
ROTATION = 400 << 20
PEAK_OPS, PEAK_BYTES = 1979e12, 4.3e12
MAX_FUSED_ROWS, FUSED_COPIES = 16, 144


class Place(c.Structure):
    _fields_ = [("device", c.c_int), ("stream", c.c_void_p)]


class Rows(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_uint8), ("m", c.c_int64), ("k", c.c_int64), ("stride", c.c_int64)]


class QuantizeInt8(c.Structure):
    _fields_ = [("x", Rows), ("is_static", c.c_bool), ("symmetric", c.c_bool), ("scale", c.c_float),
                ("zero_point", c.c_int32), ("q", c.c_void_p), ("q_columns", c.c_int64), ("q_stride", c.c_int64),
                ("scale_out", c.c_void_p), ("zero_point_out", c.c_void_p)]


class QuantizeFp8(c.Structure):
    _fields_ = [("x", Rows), ("scheme", c.c_uint8), ("dtype", c.c_uint8), ("scale", c.c_float),
                ("upper_bound", c.c_float), ("group", c.c_int64), ("group_offset", c.c_int64), ("ue8m0", c.c_bool),
                ("q", c.c_void_p), ("q_columns", c.c_int64), ("q_stride", c.c_int64), ("scale_out", c.c_void_p),
                ("scale_dtype", c.c_uint8), ("scale_row_stride", c.c_int64), ("scale_column_stride", c.c_int64),
                ("absmax", c.c_void_p), ("counters", c.c_void_p)]


class FusedRows(c.Structure):
    _fields_ = [("x", Rows), ("is_static", c.c_bool), ("symmetric", c.c_bool), ("scale", c.c_float),
                ("zero_point", c.c_int32), ("upper_bound", c.c_float), ("alone", c.c_bool), ("counters", c.c_void_p)]


class Gemm(c.Structure):
    _fields_ = [("weights", c.c_void_p), ("x", c.c_void_p), ("m", c.c_int64), ("x_pitch", c.c_int64),
                ("x_scale", c.c_void_p), ("x_scale_per_token", c.c_bool), ("w_scale", c.c_void_p),
                ("bias", c.c_void_p), ("y", c.c_void_p), ("y_dtype", c.c_uint8), ("y_stride", c.c_int64),
                ("x_zero_point", c.c_void_p), ("x_zero_point_per_token", c.c_bool), ("x_zero_point_any", c.c_bool),
                ("w_column_sum", c.c_void_p), ("fast", c.c_bool), ("fused", c.POINTER(FusedRows)),
                ("x_is_new", c.c_bool)]


class Module:
    """The functions of the module's table, by name; the order is the header's."""

    def __init__(self, path: str) -> None:
        sources = pathlib.Path(__file__).resolve().parents[2]
        header = (sources / "src/cuda/module_api.hpp").read_text()
        names = re.findall(r"\(\*(\w+)\)\(", header[header.index("struct ModuleApi") :])
        dtypes = (sources / "include/scaledmm/dtype.hpp").read_text()
        order = re.findall(r"k(\w+)", re.search(r"enum class DType[^{]*\{(.*?)\}", dtypes, re.S)[1])
        self.dtype = {name: order.index(name) for name in ("F32", "BF16", "Int8", "E4M3FN")}
        library = c.CDLL(path)
        library.scaledmm_cuda_module.restype = c.c_void_p
        table = library.scaledmm_cuda_module()
        version = int(re.search(r"kModuleVersion = (\d+)", header)[1])
        found = c.cast(table, c.POINTER(c.c_uint32))[0]
        if found != version:
            sys.exit(f"{path} has version {found} of the interface, the sources {version}")
        pointers = c.cast(table + 8, c.POINTER(c.c_void_p))
        self.pointers = {name: pointers[i] for i, name in enumerate(names)}
        self.library = library

    def call(self, name: str, *arguments) -> None:
        function = c.CFUNCTYPE(c.c_char_p, *(type(a) if isinstance(a, Place) else c.c_void_p for a in arguments))
        failure = function(self.pointers[name])(*arguments)
        if failure:
            sys.exit(f"{name}: {failure.decode()}")

    def prepare(self, is_int8: bool, codes: torch.Tensor) -> int:
        n, k = codes.shape
        weights = c.c_void_p()
        function = c.CFUNCTYPE(c.c_char_p, c.c_int, c.c_bool, c.c_void_p, c.c_int64, c.c_int64, c.c_int64, c.c_void_p)
        failure = function(self.pointers["prepare_gemm"])(0, is_int8, codes.data_ptr(), n, k, k, c.addressof(weights))
        if failure:
            sys.exit(f"prepare_gemm: {failure.decode()}")
        return weights.value


def here() -> Place:
    return Place(0, torch.cuda.current_stream().cuda_stream)


def normal_codes(rows: int, columns: int, int8: bool) -> torch.Tensor:
    values = torch.randn(rows, columns, device="cuda")
    largest = torch.iinfo(torch.int8).max if int8 else torch.finfo(torch.float8_e4m3fn).max
    values *= largest / values.abs().amax(dim=1, keepdim=True)
    return values.round().to(torch.int8) if int8 else values.to(torch.float8_e4m3fn)


class Row:
    """Operands of one shape and type, and calls on copy `i` of the weights."""

    def __init__(self, module: Module, m: int, n: int, k: int, int8: bool) -> None:
        self.module, self.m, self.n, self.k, self.int8 = module, m, n, k, int8
        copies = max(2, min(40, ROTATION // (n * k) + 1))
        self.w = [normal_codes(n, k, int8) for _ in range(copies)]
        self.prepared = [module.prepare(int8, w) for w in self.w]
        self.x = normal_codes(m, k, int8)
        self.wide = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        self.sx = torch.rand(m, 1, device="cuda") * 0.02 + 0.01
        self.sw = torch.rand(1, n, device="cuda") * 0.02 + 0.01
        self.one = torch.full((), 0.01, device="cuda")
        self.y = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        self.codes = torch.empty(FUSED_COPIES if m == 1 else m, k, device="cuda", dtype=torch.uint8)
        self.scales = torch.empty(self.codes.shape[0], device="cuda")
        self.counters = torch.zeros(2, device="cuda", dtype=torch.int32)

    def rows(self) -> Rows:
        return Rows(self.wide.data_ptr(), self.module.dtype["BF16"], self.m, self.k, self.k)

    def gemm(self, i: int, x, scale, fast: bool = False, fused: FusedRows | None = None) -> None:
        call = Gemm(weights=self.prepared[i], x=x.data_ptr(), m=self.m, x_pitch=self.k, x_scale=scale.data_ptr(),
                    x_scale_per_token=True, w_scale=self.sw.data_ptr(), y=self.y.data_ptr(),
                    y_dtype=self.module.dtype["BF16"], y_stride=self.n, fast=fast,
                    fused=c.pointer(fused) if fused else None)
        self.module.call("gemm", here(), c.addressof(call))

    def apply(self, i: int, launches: int) -> None:
        infinite = float("inf")
        if launches == 1:
            alone = self.m == 1
            fused = FusedRows(x=self.rows(), symmetric=True, scale=1.0, upper_bound=infinite, alone=alone,
                              counters=self.counters.data_ptr())
            self.gemm(i, self.codes, self.scales, fused=fused)
            return
        out = {"q": self.codes.data_ptr(), "q_columns": self.k, "q_stride": self.k, "scale_out": self.scales.data_ptr()}
        if self.int8:
            quantize = QuantizeInt8(x=self.rows(), symmetric=True, scale=1.0, **out)
        else:
            quantize = QuantizeFp8(x=self.rows(), scheme=2, dtype=self.module.dtype["E4M3FN"], scale=1.0,
                                   upper_bound=infinite, scale_dtype=self.module.dtype["F32"], scale_row_stride=1,
                                   scale_column_stride=1, **out)
        self.module.call("quantize_int8" if self.int8 else "quantize_fp8", here(), c.addressof(quantize))
        self.gemm(i, self.codes, self.scales)

    def scaled_mm(self, i: int, sx, sw, fast: bool) -> torch.Tensor:
        return torch._scaled_mm(self.x, self.w[i].t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16,
                                use_fast_accum=fast)


def check(row: Row) -> None:
    row.gemm(0, row.x, row.sx)
    exact = (row.x[:64].float() @ row.w[0].float().t()) * row.sx[:64] * row.sw
    error = (row.y[:64].float() - exact).norm() / exact.norm()
    if not error < 4e-3:
        sys.exit(f"{row.m},{row.n},{row.k}: the result is {error:.1e} away from the exact one")
    if row.m > MAX_FUSED_ROWS:
        return
    row.apply(0, 1)
    fused = row.y.clone()
    row.apply(0, 2)
    if not torch.equal(fused, row.y):
        sys.exit(f"{row.m},{row.n},{row.k}: one launch and two give other bits")


def contenders(row: Row) -> dict:
    name = "int8_w8a8_sm90" if row.int8 else "fp8_w8a8_sm90"
    calls = {f"{name}, with quantization in two launches": lambda i: row.apply(i, 2)}
    if row.m <= MAX_FUSED_ROWS:
        calls[f"{name}, with quantization in one launch"] = lambda i: row.apply(i, 1)
    if row.int8:
        padded = torch.nn.functional.pad(row.x, (0, 0, 0, max(0, 32 - row.m)))  # it refuses 16 rows and fewer
        calls["torch _int_mm"] = lambda i: torch._int_mm(padded, row.w[i].t())
        calls["int8_w8a8_sm90"] = lambda i: row.gemm(i, row.x, row.sx)
        return calls
    calls["torch _scaled_mm, per tensor"] = lambda i: row.scaled_mm(i, row.one, row.one, False)
    calls["torch _scaled_mm, per tensor, fast"] = lambda i: row.scaled_mm(i, row.one, row.one, True)
    calls["torch _scaled_mm, row-wise"] = lambda i: row.scaled_mm(i, row.sx, row.sw, True)
    calls["fp8_w8a8_sm90"] = lambda i: row.gemm(i, row.x, row.sx)
    calls["fp8_w8a8_sm90_fast"] = lambda i: row.gemm(i, row.x, row.sx, fast=True)
    wide = [torch.randn(row.n, row.k, device="cuda", dtype=torch.bfloat16) for _ in range(max(2, len(row.w) // 2))]
    calls["torch bf16"] = lambda i: row.wide @ wide[i % len(wide)].t()
    return calls


def time_in_turn(row: Row, calls: dict) -> dict:
    floor = max(2 * row.m * row.n * row.k / PEAK_OPS, row.n * row.k / PEAK_BYTES)
    count = max(4, min(200, int(2.5e-3 / floor)))
    count = -(-count // len(row.w)) * len(row.w)
    graphs = {}
    for name, call in calls.items():
        call(0)
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for i in range(count):
                call(i % len(row.w))
    times = {name: [] for name in calls}
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    order, shuffle = list(graphs.items()), random.Random(1).shuffle
    for turn in range(-2, ROUNDS):
        shuffle(order)
        for name, graph in order:
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            if turn >= 0:
                times[name].append(start.elapsed_time(stop) * 1e3 / count)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("module")
    parser.add_argument("file")
    parser.add_argument("--shape", action="append", help="instead of the rows of design.md")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    module = Module(arguments.module)
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rounds": ROUNDS, "rows": []}
    for m, n, k in [tuple(map(int, s.split(","))) for s in arguments.shape] if arguments.shape else ROWS:
        floor = max(2e6 * m * n * k / PEAK_OPS, 1e6 * (n * k + m * k + 2 * m * n) / PEAK_BYTES)
        print(f"{m},{n},{k}  floor {floor:.1f}")
        for int8 in (False, True):
            row = Row(module, m, n, k, int8)
            check(row)
            for name, times in time_in_turn(row, contenders(row)).items():
                us, low, high = statistics.median(times), sorted(times)[1], sorted(times)[-2]
                print(f"  {name:52} {us:9.2f} us ({low:.2f}-{high:.2f})", flush=True)
                result["rows"].append({"m": m, "n": n, "k": k, "type": "int8" if int8 else "fp8", "contender": name,
                                       "us": round(us, 3), "p10_us": round(low, 3), "p90_us": round(high, 3),
                                       "floor_us": round(floor, 3)})
            del row
            torch.cuda.empty_cache()
    pathlib.Path(arguments.file).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Writes the golden vectors beside this file: numbers from formulas, independent of the library.

Usage: python make_golden.py [--check]     needs numpy and ml_dtypes
--check writes nothing and fails where a committed file differs.
Numbers are exact fractions, or IEEE f32 arithmetic of numpy; floats are stored as the integers of their bit patterns.
"""

import argparse
import itertools
import json
import pathlib
from fractions import Fraction

import ml_dtypes
import numpy as np

HERE = pathlib.Path(__file__).parent
F32 = np.float32
NAN, INF = float("nan"), float("inf")

# name: exponent bits, mantissa bits, bias, largest code, NaN code written, -0 exists, ml_dtypes type
FP8 = {
    "e4m3fn": (4, 3, 7, 0x7E, 0x7F, True, ml_dtypes.float8_e4m3fn),
    "e4m3fnuz": (4, 3, 8, 0x7F, 0x80, False, ml_dtypes.float8_e4m3fnuz),
    "e5m2": (5, 2, 15, 0x7B, 0x7F, True, ml_dtypes.float8_e5m2),
}
LARGEST = {"e4m3fn": F32(448), "e4m3fnuz": F32(224), "e5m2": F32(57344)}


def bits(value) -> int:
    return int(F32(value).view(np.uint32))


def fp8_value(code: int, name: str) -> float:
    _, mantissa_bits, bias, largest, _, signed_zero, _ = FP8[name]
    magnitude = code & 0x7F
    if not signed_zero and code == 0x80:
        return NAN
    if magnitude > largest:
        return (-INF if code >> 7 else INF) if name == "e5m2" and magnitude == 0x7C else NAN
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    fraction = Fraction(mantissa, 1 << mantissa_bits)
    value = fraction * Fraction(2) ** (1 - bias) if exponent == 0 else (1 + fraction) * Fraction(2) ** (exponent - bias)
    return -float(value) if code >> 7 else float(value)


def to_fp8(value: float, name: str, largest: int | None = None) -> int:
    """The nearest code, ties to the even one, saturated. Searches all magnitudes."""
    _, _, _, top, nan_code, signed_zero, _ = FP8[name]
    top = top if largest is None else largest
    value = float(value)
    if np.isnan(value):
        return nan_code
    negative = np.signbit(value)
    if abs(value) >= fp8_value(top, name):
        code = top
    else:
        exact = Fraction(abs(value))
        distances = [abs(Fraction(fp8_value(c, name)) - exact) for c in range(top + 1)]
        least = min(distances)
        code = min((c for c in range(top + 1) if distances[c] == least), key=lambda c: c & 1)
    if code == 0 and not signed_zero:
        return 0
    return code | (0x80 if negative else 0)


def round_f32(exact: Fraction) -> np.float32:
    """One rounding of an exact number to f32, ties to even; normal range."""
    if exact == 0:
        return F32(0)
    guess = F32(float(exact))
    candidates = [np.nextafter(guess, F32(-INF)), guess, np.nextafter(guess, F32(INF))]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - exact), bits(c) & 1))


def code_tables() -> dict:
    tables = {}
    for name, (*_, dtype) in FP8.items():
        values = [fp8_value(code, name) for code in range(256)]
        theirs = np.arange(256, dtype=np.uint8).view(dtype).astype(F32)
        assert np.array_equal(np.array(values, F32), theirs, equal_nan=True), name
        tables[name] = ["nan" if np.isnan(v) else bits(v) for v in values]
    e8m0 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(F32)
    tables["e8m0"] = ["nan" if code == 255 else bits(2.0 ** (code - 127)) for code in range(256)]
    assert tables["e8m0"][:255] == [bits(v) for v in e8m0[:255]]
    return tables


def rounding_tables() -> dict:
    """For each format: every half way point between neighbours, one f32 step around it, and what lies outside."""
    tables = {}
    for name, (_, _, _, top, _, _, dtype) in FP8.items():
        values = [
            NAN,
            INF,
            -INF,
            0.0,
            -0.0,
            1e-45,
            -1e-45,
            3.4e38,
            -3.4e38,
            447.0,
            463.0,
            464.0,
            465.0,
            672.0,
            57344.0,
            61440.0,
        ]
        for code in range(top):
            middle = F32((fp8_value(code, name) + fp8_value(code + 1, name)) / 2)
            sign = -1 if code % 2 else 1
            values += [sign * middle, -sign * np.nextafter(middle, F32(0)), sign * np.nextafter(middle, F32(INF))]
        table = []
        for value in map(F32, values):
            code = to_fp8(value, name)
            if abs(value) < fp8_value(top, name):
                assert code == int(np.array(value).astype(dtype).view(np.uint8)), (name, value)
            table.append([bits(value), code])
        tables[name] = table
    return tables


def int8_codes(x: np.ndarray, scale, inverse, zero_point, divide: bool) -> list[int]:
    codes = []
    for v in x:
        steps = v / scale if divide else v * inverse
        code = zero_point if np.isnan(steps) else np.clip(np.rint(np.float64(steps)) + zero_point, -128, 127)
        codes.append(int(code))
    return codes


def dynamic_int8(x: np.ndarray, symmetric: bool):
    """Scale, zero point and codes of one row (docs/quantization.md 2)."""
    if symmetric:
        absmax = np.max(np.abs(x))
        if absmax == 0:
            return F32(0), 0, [0] * len(x)
        return absmax / F32(127), 0, int8_codes(x, None, F32(127) / absmax, 0, False)
    low, high = min(np.min(x), F32(0)), max(np.max(x), F32(0))
    if low == high:
        return F32(0), 0, [0] * len(x)
    scale = (high - low) / F32(255)
    zero_point = int(np.clip(np.rint(F32(-128) - low / scale), -128, 127))
    return scale, zero_point, int8_codes(x, None, F32(1) / scale, zero_point, False)


def fp8_codes(x: np.ndarray, scale, name: str, divide: bool) -> list[int]:
    top = 0x7E if name != "e5m2" else 0x7B
    return [to_fp8(v / scale if divide else v * (F32(1) / scale), name, top) for v in x]


def dynamic_fp8(x: np.ndarray, name: str, kind: str, upper_bound=None, ue8m0=False):
    absmax = np.max(np.abs(x))
    largest = LARGEST[name]
    if kind == "token":
        absmax = absmax if upper_bound is None else min(absmax, F32(upper_bound))
        scale = max(absmax / largest, F32(1) / (largest * F32(512)))
    else:
        scale = max(absmax, F32(1e-10)) / largest
        if ue8m0:
            scale = F32(2.0 ** np.ceil(np.log2(np.float64(max(scale, F32(1e-10))))))
    return scale, fp8_codes(x, scale, name, True)


def quantizer_cases() -> list[dict]:
    rng = np.random.default_rng(7)
    cases = []

    def add(kind: str, x: np.ndarray, scale, codes, zero_point=0, **more):
        cases.append(
            {
                "kind": kind,
                "x": [bits(v) for v in x],
                "scale": bits(scale),
                "zero_point": zero_point,
                "q": codes,
                **more,
            }
        )

    rows = [
        (rng.standard_normal(33) * 3).astype(F32),
        (rng.random(64) * 1000 - 300).astype(F32),
        np.full(17, 2.5, F32),
        np.zeros(16, F32),
        (rng.standard_normal(31) * 1e-5).astype(F32),
        (rng.random(40) + 5).astype(ml_dtypes.bfloat16).astype(F32),
    ]
    for x in rows:
        for symmetric in (True, False):
            scale, zero_point, codes = dynamic_int8(x, symmetric)
            add("int8_dynamic", x, scale, codes, zero_point, symmetric=symmetric)
        for scale in (F32(0.1), F32(2.1)):
            add("int8_static", x, scale, int8_codes(x, scale, None, 0, True), symmetric=True)
            for zero_point in (-100, 54):
                codes = int8_codes(x, None, F32(1) / scale, zero_point, False)
                add("int8_static", x, scale, codes, zero_point, symmetric=False)
        for name in ("e4m3fn", "e4m3fnuz"):
            scale, codes = dynamic_fp8(x, name, "token")
            add("fp8_token", x, scale, codes, dtype=name)
            scale, codes = dynamic_fp8(x, name, "group")
            add("fp8_group", x, scale, codes, dtype=name, ue8m0=False)
            add("fp8_static", x, F32(0.03), fp8_codes(x, F32(0.03), name, False), dtype=name)
        scale, codes = dynamic_fp8(x, "e4m3fn", "group", ue8m0=True)
        add("fp8_group", x, scale, codes, dtype="e4m3fn", ue8m0=True)
        scale, codes = dynamic_fp8(x, "e4m3fn", "token", upper_bound=1.5)
        add("fp8_token", x, scale, codes, dtype="e4m3fn", upper_bound=1.5)
        if np.any(x):
            scale = np.max(np.abs(x)) / F32(448)
            add("fp8_tensor", x, scale, fp8_codes(x, scale, "e4m3fn", False), dtype="e4m3fn")
    x = np.array([0.5, 1.5, 2.5, -0.5, NAN, INF, -INF, 1e30, -1e30, 254.5], F32)
    with np.errstate(invalid="ignore"):
        add("int8_static", x, F32(1), int8_codes(x, F32(1), None, 0, True), symmetric=True)
        add("int8_static", x, F32(1), int8_codes(x, None, F32(1), -128, False), -128, symmetric=False)
    return cases


def int8_layer(rng, symmetric: bool, static: bool, bias: bool, block: tuple[int, int] | None = None) -> dict:
    m, n, k = 3, 6, 37
    bn, bk = block or (1, k)
    grid = (-(-n // bn), -(-k // bk))
    x = (rng.standard_normal((m, k)) * 2 + (0 if symmetric else 1)).astype(ml_dtypes.bfloat16).astype(F32)
    w = rng.integers(-128, 128, (n, k))
    sw = (rng.random(grid) * 0.02 + 0.001).astype(F32)
    b = (rng.standard_normal(n)).astype(F32) if bias else None
    sx, zx = F32(0.05), (0 if symmetric else -12)
    y, y_f64 = [], []
    for row in x:
        if static:
            scale, zero_point = sx, zx
            q = int8_codes(row, sx, F32(1) / sx, zx, symmetric)
        else:
            scale, zero_point, q = dynamic_int8(row, symmetric)
        for j in range(n):
            sums = []
            for begin in range(0, k, bk):
                columns = range(begin, min(begin + bk, k))
                sums.append(sum((int(q[i]) - zero_point) * int(w[j, i]) for i in columns))
            scales = [Fraction(float(v)) for v in sw[j // bn]]
            bias_term = Fraction(float(b[j])) if bias else 0
            if block:  # blocks joined in K order by fused multiply-adds, then the activation scale
                total = F32(0)
                for value, weight_scale in zip(sums, scales, strict=True):
                    total = round_f32(Fraction(float(F32(value))) * weight_scale + Fraction(float(total)))
                y.append(round_f32(Fraction(float(total)) * Fraction(float(scale)) + bias_term))
            else:
                t = F32(sums[0]) * scale
                y.append(round_f32(Fraction(float(t)) * scales[0] + bias_term))
            exact = sum(v * s for v, s in zip(sums, scales, strict=True))
            y_f64.append(float(exact * Fraction(float(scale)) + bias_term))
    layer = {"scheme": "int8", "m": m, "n": n, "k": k, "symmetric": symmetric, "static": static}
    layer |= {
        "x": [bits(v) for v in x.flat],
        "w": [int(v) & 0xFF for v in w.flat],
        "sw": [bits(v) for v in sw.flat],
        "grid": list(grid),
    }
    layer |= {"block": list(block or [])}
    layer |= {"bias": [bits(v) for v in b] if bias else [], "y": [bits(v) for v in y], "y_f64": y_f64}
    layer |= {"y_bf16": [int(F32(v).astype(ml_dtypes.bfloat16).view(np.uint16)) for v in y]}
    layer |= {"y_f16": [int(F32(v).astype(np.float16).view(np.uint16)) for v in y]}
    return layer | ({"sx": bits(sx), "zx": zx} if static else {})


def fp8_layer(rng, name: str, activation: str, block: tuple[int, int] | None, offset=(0, 0), bias=True) -> dict:
    """activation: none (W8A16), tensor_static, tensor, token, group."""
    m, n, k = 3, 7, 45
    x = (rng.standard_normal((m, k)) * 3).astype(ml_dtypes.bfloat16).astype(F32)
    w = [c for c in rng.integers(0, 256, 4 * n * k) if np.isfinite(fp8_value(int(c), name))][: n * k]
    w = np.array(w).reshape(n, k)
    bn, bk = block or (1, k)
    grid = (-(-(n + offset[0]) // bn), -(-(k + offset[1]) // bk))
    sw = (rng.random(grid) * 0.02 + 0.001).astype(F32)
    b = rng.standard_normal(n).astype(F32) if bias else None
    qname = "e4m3fnuz" if name == "e4m3fnuz" else "e4m3fn"
    sx_static = F32(0.02)
    sx_tensor = np.max(np.abs(x)) / LARGEST[qname]
    y, magnitude = [], []
    for row in x:
        values, scales = [Fraction(float(v)) for v in row], [Fraction(1)] * k
        parts = [(0, k)]
        if activation == "group":
            edges = [0, *[e for e in range(bk - offset[1], k, bk)], k]
            parts = list(itertools.pairwise(edges))
        for begin, end in parts:
            if activation == "none":
                continue
            part = row[begin:end]
            if activation in ("tensor", "tensor_static"):
                scale = sx_static if activation == "tensor_static" else sx_tensor
                codes = fp8_codes(part, scale, qname, False)
            else:
                scale, codes = dynamic_fp8(part, qname, activation)
            values[begin:end] = [Fraction(fp8_value(c, qname)) for c in codes]
            scales[begin:end] = [Fraction(float(scale))] * (end - begin)
        for j in range(n):
            terms = []
            for i in range(k):
                s = Fraction(float(sw[(j + offset[0]) // bn, (i + offset[1]) // bk]))
                terms.append(values[i] * scales[i] * Fraction(fp8_value(int(w[j, i]), name)) * s)
            y.append(float(sum(terms) + (Fraction(float(b[j])) if bias else 0)))
            magnitude.append(float(sum(map(abs, terms))))
    layer = {
        "scheme": "fp8",
        "m": m,
        "n": n,
        "k": k,
        "dtype": name,
        "activation": activation,
        "block": list(block or []),
    }
    layer |= {"offset": list(offset), "x": [bits(v) for v in x.flat], "w": [int(v) for v in w.flat]}
    layer |= {"sw": [bits(v) for v in sw.flat], "grid": list(grid), "bias": [bits(v) for v in b] if bias else []}
    layer |= {"sx": bits(sx_static)} if activation == "tensor_static" else {}
    return layer | {"y_f64": y, "sum_abs": magnitude}


def layer_cases() -> list[dict]:
    rng = np.random.default_rng(11)
    layers = [int8_layer(rng, s, t, b) for s in (True, False) for t in (True, False) for b in (True, False)]
    layers += [int8_layer(rng, s, False, s, (4, 16)) for s in (True, False)]
    for activation in ("none", "tensor_static", "tensor", "token"):
        layers.append(fp8_layer(rng, "e4m3fn", activation, None, bias=activation != "token"))
    layers.append(fp8_layer(rng, "e4m3fnuz", "token", None))
    layers.append(fp8_layer(rng, "e5m2", "none", None))
    for activation in ("none", "group"):
        layers.append(fp8_layer(rng, "e4m3fn", activation, (4, 16)))
        layers.append(fp8_layer(rng, "e4m3fn", activation, (4, 16), offset=(2, 5), bias=False))
    return layers


def text(data) -> str:
    if isinstance(data, dict):
        data = (
            "{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in data.items()) + "}"
        )
    else:
        data = "[" + ",\n".join(json.dumps(v, separators=(",", ":")) for v in data) + "]"
    return data + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    files = {"fp8_codes": code_tables(), "fp8_rounding": rounding_tables()}
    files |= {"quantizers": quantizer_cases(), "layers": layer_cases()}
    for name, data in files.items():
        path = HERE / f"{name}.json"
        if not check:
            path.write_text(text(data))
        elif path.read_text() != text(data):
            raise SystemExit(f"{path.name} differs from what this script makes")


if __name__ == "__main__":
    main()

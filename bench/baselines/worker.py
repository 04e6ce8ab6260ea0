"""The half of a peer that is the same for every library: JSON lines on standard input and output. See README.md."""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

# Threads of a peer that wait for work must not burn the CPU while the other side is timed. Set before a library loads.
for name, value in {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}.items():
    os.environ.setdefault(name, value)

import numpy as np  # noqa: E402

Call = Callable[[], np.ndarray]  # one multiplication; what it gives is turned into f32 by Way.result


@dataclass
class Layer:
    """The weights: int8 or float8 e4m3fn codes [N, K] as bytes, one f32 scale for each row."""

    scheme: str
    codes: np.ndarray
    scales: np.ndarray

    @property
    def is_int8(self) -> bool:
        return self.codes.dtype == np.int8

    def dense(self) -> np.ndarray:
        """The dequantized weights, f32 [N, K]."""
        values = self.codes.astype(np.float32) if self.is_int8 else E4M3FN[self.codes]
        return values * self.scales[:, None]


def e4m3fn_values() -> np.ndarray:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    magnitude[codes & 127 == 127] = np.nan
    return np.where(codes >= 128, -magnitude, magnitude).astype(np.float32)


E4M3FN = e4m3fn_values()


class Way:
    """One way of a library to multiply. Subclasses prepare weights once, activations for each M, and give the call."""

    name = ""
    what = "apply"  # or "gemm": activations are quantized outside the timed call
    schemes: tuple[str, ...] = ()

    def prepare(self, layer: Layer) -> object:
        """Weights in the library's own form. Every copy is another one in memory."""
        raise NotImplementedError

    def weight_bytes(self, layer: Layer) -> int:
        """Of what prepare() makes: decides how many copies leave the caches."""
        return layer.codes.size

    def activations(self, x: np.ndarray) -> object:
        """f32 [M, K] in the form that the call takes."""
        return x

    def call(self, prepared: object, x: object) -> object:
        """The timed work."""
        raise NotImplementedError

    def result(self, prepared: object, x: object, y: object) -> np.ndarray:
        """What call() gave, as f32 [M, N] or what numpy makes that of."""
        return np.asarray(y)


class Worker:
    """Arguments of the program are parts of names: only ways that hold one of them are offered."""

    def __init__(self, library: str, ways: list[Way], set_threads: Callable[[int], None]):
        wanted = [way for way in ways if len(sys.argv) == 1 or any(part in way.name for part in sys.argv[1:])]
        self.library, self.ways, self.set_threads = library, {way.name: way for way in wanted}, set_threads
        self.way: Way | None = None
        self.copies: list[object] = []
        self.x: object = None
        self.last: tuple[object, object] | None = None
        self.turn = 0

    def hello(self, threads: int) -> dict:
        self.set_threads(threads)
        ways = [{"name": way.name, "what": way.what, "schemes": list(way.schemes)} for way in self.ways.values()]
        return {"library": self.library, "ways": ways}

    def layer(self, way: str, scheme: str, n: int, k: int, codes: str, scales: str, min_bytes: int) -> dict:
        self.copies, self.last, self.x = [], None, None  # the old copies go before the new ones come
        self.way = self.ways[way]
        dtype = np.int8 if scheme == "int8" else np.uint8
        layer = Layer(scheme, np.fromfile(codes, dtype).reshape(n, k), np.fromfile(scales, np.float32))
        count = max(1, math.ceil(min_bytes / self.way.weight_bytes(layer)))
        self.copies = [self.way.prepare(layer) for _ in range(count)]
        return {"copies": count}

    def input(self, m: int, x: str) -> dict:
        self.x = self.way.activations(np.fromfile(x, np.float32).reshape(m, -1))
        return {}

    def once(self) -> float:
        """Microseconds of one call on the next copy."""
        copy = self.copies[self.turn % len(self.copies)]
        self.turn += 1
        begin = time.perf_counter_ns()
        y = self.way.call(copy, self.x)
        end = time.perf_counter_ns()
        self.last = (copy, y)
        return (end - begin) / 1000

    def run(self, calls: int) -> dict:
        self.once()  # wakes threads, fills caches
        return {"us": [self.once() for _ in range(calls)]}

    def output(self, y: str) -> dict:
        copy, result = self.last
        np.ascontiguousarray(self.way.result(copy, self.x, result), np.float32).tofile(y)
        return {}

    def answer(self, line: str) -> dict:
        request = json.loads(line)
        operation = request.pop("op")
        if operation not in ("hello", "layer", "input", "run", "output"):
            return {"error": f"unknown operation {operation}"}
        try:
            return getattr(self, operation)(**request)
        except Exception as error:  # the library's, of any kind: the other side reports it and goes on
            first_line = (str(error).strip().splitlines() or [""])[0]
            return {"error": f"{type(error).__name__}: {first_line}"}


def answers_only() -> tuple[object, object]:
    """The pipes, with standard output turned to standard error: libraries print."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return sys.stdin, pipe


def serve(make: Callable[[], Worker]) -> None:
    """Answers requests until the input ends. A library that cannot be imported answers the first with the reason."""
    requests, answers = answers_only()
    try:
        worker = make()
    except Exception as error:
        requests.readline()
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    for line in requests:
        print(json.dumps(worker.answer(line)), file=answers, flush=True)

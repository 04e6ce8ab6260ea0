"""Which kernel runs each layer of a checkpoint here, and how long a call takes.

python examples/python/plan_checkpoint.py build/models/int8 [--rows 1] [--limit 8]
"""

import argparse
import statistics
import time

import numpy as np

import scaledmm


def median_us(layer: scaledmm.CheckpointLayer, x: np.ndarray, runs: int = 20) -> float:
    """Microseconds of a call, after one that packs the layer."""
    layer(x)
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        layer(x)
        times.append(1e6 * (time.perf_counter() - begin))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--rows", type=int, default=1, help="rows of x")
    parser.add_argument("--limit", type=int, default=8, help="layers to run")
    options = parser.parse_args()

    checkpoint = scaledmm.load(options.checkpoint, dtype="f32")
    print(f"{checkpoint} on {scaledmm.device('cpu').description}, {scaledmm.get_num_threads()} threads")
    random = np.random.default_rng(0)
    for name in list(checkpoint)[: options.limit]:
        record, layer = checkpoint.layer(name), checkpoint[name]
        x = random.standard_normal((options.rows, record.k)).astype(np.float32)
        print(f"{name:45} {record.scheme:16} {layer.linear().kernel:20} {median_us(layer, x):8.1f} us")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Sweeps the block sizes of the CPU kernels: how much of the second-level cache a block of rows may take.

Block sizes follow the cache that the library reads from the machine. SCALEDMM_L2_KB makes it plan for another size,
so a sweep over that variable is a sweep over block sizes. Rounds go over all sizes in turn, because a shared machine
has slow spells; the best and the median of the rounds' medians are printed, and all rows are written as JSON.

    tools/tune_cpu.py build/release/scaledmm --kernel fp8_w8a16_avx2 --scheme fp8_w8a16 --threads 1

int8_w8a8_avx2 has blocks of a fixed size: there is nothing to sweep.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict

SIZES_KB = [128, 256, 512, 1024, 2048, 4096]
SHAPES = ["64,4096,4096", "256,4096,4096", "1024,4096,4096"]


def bench(options: argparse.Namespace, size_kb: int) -> list[dict]:
    command = [options.scaledmm, "bench", "--scheme", options.scheme, "--kernel", options.kernel]
    command += ["--threads", str(options.threads), "--json"]
    for shape in options.shape:
        command += ["--shape", shape]
    environment = {**os.environ, "SCALEDMM_L2_KB": str(size_kb)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"tune_cpu: {' '.join(command)}: {result.stderr.strip()}")
    return [{"l2_kb": size_kb, **json.loads(line)} for line in result.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scaledmm", help="the command to run")
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--scheme", required=True)
    parser.add_argument("--shape", action="append", help="M,N,K; repeatable")
    parser.add_argument("--l2-kb", action="append", type=int, help="a size to try; repeatable")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", help="also write all rows to this JSON file")
    options = parser.parse_args()
    options.shape = options.shape or SHAPES
    sizes = options.l2_kb or SIZES_KB

    rows = []
    for _ in range(options.rounds):
        for size_kb in sizes:
            rows += bench(options, size_kb)

    times = defaultdict(list)
    for row in rows:
        times[row["l2_kb"], f"{row['m']},{row['n']},{row['k']}"].append(row["apply_us"])
    print(f"{'L2 KB':>8}" + "".join(f"{shape:>26}" for shape in options.shape))
    for size_kb in sizes:
        cells = [times[size_kb, shape] for shape in options.shape]
        print(f"{size_kb:>8}" + "".join(f"{min(c):>12.0f} / {statistics.median(c):>8.0f} us" for c in cells))
    if options.output:
        with open(options.output, "w", encoding="ascii") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()

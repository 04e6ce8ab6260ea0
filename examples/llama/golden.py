#!/usr/bin/env python3
"""Write golden.json: what an independent numpy decoder makes of the prepared model.

The C++ decoder is checked against these numbers. They are made from the bf16 weights of DIR/model.safetensors, widened
to float32, with float32 activations (numpy matmul) and no KV cache: every step runs the whole sequence again.
Perplexity is exp of the mean negative log-likelihood over all predicted positions of the evaluation text; windows of
1024 tokens are independent, and in each the positions 1, 2, ... are predicted. The last window is shorter.

Source: Llama as in Hugging Face transformers (rotate-half RoPE, grouped-query attention, SwiGLU, tied head).
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]
WINDOW, GREEDY_TOKENS, PROMPT = 1024, 16, "capital"


def read_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All tensors of a trusted file; BF16 is widened to float32."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        dtype = {"BF16": "<u2", "I32": "<i4", "U8": "u1"}[entry["dtype"]]
        values = np.frombuffer(data[begin:end], dtype=dtype)
        if entry["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def rotate(x: F32, theta: float) -> F32:
    """RoPE on x [heads, T, d]: the pair (i, i + d/2) turns by the angle t * theta^(-2i/d)."""
    half = x.shape[-1] // 2
    angles = np.outer(np.arange(x.shape[1]), theta ** (-np.arange(half) / half))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def softmax(x: F32) -> F32:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Decoder:
    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = read_safetensors(folder / "model.safetensors")

    def linear(self, x: F32, layer: int, name: str) -> F32:
        return x @ self.weights[f"model.layers.{layer}.{name}.weight"].T

    def norm(self, x: F32, name: str) -> F32:
        mean = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean + np.float32(self.config["rms_norm_eps"])) * self.weights[f"model.{name}.weight"]

    def attention(self, x: F32, layer: int) -> F32:
        heads, kv_heads, d = (self.config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        length = len(x)

        def split(name: str, count: int) -> F32:
            y = self.linear(x, layer, f"self_attn.{name}").reshape(length, count, d).swapaxes(0, 1)
            return y if count == heads else np.repeat(y, heads // kv_heads, axis=0)

        q = rotate(split("q_proj", heads), self.config["rope_theta"])
        k = rotate(split("k_proj", kv_heads), self.config["rope_theta"])
        scores = q @ k.swapaxes(1, 2) * np.float32(1 / math.sqrt(d))
        scores += np.triu(np.full((length, length), -np.inf, dtype=np.float32), 1)
        y = softmax(scores) @ split("v_proj", kv_heads)
        return self.linear(y.swapaxes(0, 1).reshape(length, heads * d), layer, "self_attn.o_proj")

    def mlp(self, x: F32, layer: int) -> F32:
        gate = self.linear(x, layer, "mlp.gate_proj")
        return self.linear(gate / (1 + np.exp(-gate)) * self.linear(x, layer, "mlp.up_proj"), layer, "mlp.down_proj")

    def logits(self, tokens: Tokens) -> F32:
        """tokens [T] -> logits [T, vocabulary]."""
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[tokens]
        for layer in range(self.config["num_hidden_layers"]):
            x = x + self.attention(self.norm(x, f"layers.{layer}.input_layernorm"), layer)
            x = x + self.mlp(self.norm(x, f"layers.{layer}.post_attention_layernorm"), layer)
        return self.norm(x, "norm") @ embedding.T


def negative_log_likelihoods(logits: F32, targets: Tokens) -> npt.NDArray[np.float64]:
    top = logits.max(axis=-1)
    total = np.exp(logits - top[:, None]).sum(axis=-1, dtype=np.float64)
    return top + np.log(total) - logits[np.arange(len(targets)), targets]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write golden.json from a float32 numpy decoder.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the folder of prepare_model.py")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("golden.json"), metavar="FILE")
    arguments = parser.parse_args()
    decoder = Decoder(arguments.model)
    example = read_safetensors(arguments.model.parent / "example" / "model.safetensors")

    sequence, margins = example[f"prompt.{PROMPT}"], []
    for _ in range(GREEDY_TOKENS):
        last = decoder.logits(sequence)[-1]
        second, best = np.sort(last)[-2:]
        margins.append(float(best - second))
        sequence = np.append(sequence, np.argmax(last).astype(np.int32))
    prompt, greedy = np.split(sequence, [len(sequence) - GREEDY_TOKENS])

    def text(tokens: Tokens) -> str:
        return b"".join(example["bytes"][slice(*example["offsets"][t : t + 2])].tobytes() for t in tokens).decode()

    windows = []
    for begin in range(0, len(example["tokens"]) - 1, WINDOW):
        window = example["tokens"][begin : begin + WINDOW]
        windows.append(negative_log_likelihoods(decoder.logits(window)[:-1], window[1:]))
        print(f"golden: window {len(windows)}, perplexity {math.exp(windows[-1].mean()):.4f}", file=sys.stderr)
    golden = {
        "greedy_prompt": text(prompt),
        "greedy_prompt_tokens": prompt.tolist(),
        "greedy_tokens": greedy.tolist(),
        "greedy_text": text(greedy),
        "greedy_margins": [round(margin, 4) for margin in margins],  # best logit minus the second
        "perplexity_f32_of_bf16_weights": math.exp(np.concatenate(windows).mean()),
        "tokens": len(example["tokens"]),
        "predicted": sum(map(len, windows)),
        "window": WINDOW,
        "window_mean_nll": [float(window.mean()) for window in windows],
        "date": datetime.date.today().isoformat(),
    }
    arguments.out.write_text(json.dumps(golden, indent=2) + "\n")


if __name__ == "__main__":
    main()

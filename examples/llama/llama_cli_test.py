#!/usr/bin/env python3
"""How the llama example fails, driven from outside: python3 llama_cli_test.py PATH_TO_LLAMA [unittest arguments].

A tiny model of zeros and ones, and example data for it, are written here.
"""

import json
import struct
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import cli_case  # noqa: E402
from cli_case import Case, bf16, read_safetensors, write_safetensors  # noqa: E402

CONFIG = {"model_type": "llama", "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rope_theta": 500.0,
          "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
LAYER = {"self_attn.q_proj": 32, "self_attn.k_proj": 16, "self_attn.v_proj": 16, "self_attn.o_proj": 32,
         "mlp.gate_proj": 32, "mlp.up_proj": 32, "mlp.down_proj": 32}


def i32(values):
    return struct.pack(f"<{len(values)}i", *values)


class Llama(Case):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        self.write_model(CONFIG)
        example = self.folder / "example"
        example.mkdir()
        (example / "config.json").write_text("{}")
        tokens = [i * 7 % 32 for i in range(40)]
        lists = {"tokens": tokens, "calibration": tokens, "prompt.chat": [1, 2], "prompt.capital": [3], "eos": [31],
                 "offsets": list(range(33))}
        tensors = {name: ("I32", [len(values)], i32(values)) for name, values in lists.items()}
        write_safetensors(example / "model.safetensors", tensors | {"bytes": ("U8", [32], b"abcd" * 8)})

    def write_model(self, config):
        self.model.mkdir(exist_ok=True)
        (self.model / "config.json").write_text(json.dumps(config))
        tensors = {"model.embed_tokens.weight": (32, [float(i * 5 % 7 - 3) for i in range(1024)])}
        for name, n in LAYER.items():
            tensors[f"model.layers.0.{name}.weight"] = (n, [float(i % 3 - 1) for i in range(n * 32)])
        tensors = {name: ("BF16", [n, 32], bf16(values)) for name, (n, values) in tensors.items()}
        for name in ("model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"):
            tensors[f"{name}.weight"] = ("BF16", [32], bf16([1.0] * 32))
        write_safetensors(self.model / "model.safetensors", tensors)

    def test_a_sound_model_is_judged(self):
        out, _ = self.succeeds("eval", self.model)
        self.assertRegex(out, r"^perplexity \d+\.\d+ over 39 predicted tokens")

    def test_values_of_the_config_that_no_model_has_are_named(self):
        for key, value in (("rope_theta", 0), ("rope_theta", -1.5), ("rope_theta", "big"), ("rope_theta", 1e300),
                           ("rms_norm_eps", -1e-5), ("rms_norm_eps", [1]), ("hidden_size", 0), ("hidden_size", "32"),
                           ("vocab_size", -3), ("intermediate_size", 32.5), ("num_hidden_layers", 10**12),
                           ("num_attention_heads", True), ("num_key_value_heads", 0), ("max_position_embeddings", {}),
                           ("head_dim", 0), ("tie_word_embeddings", 1), ("hidden_act", 3), ("model_type", "qwen2")):
            self.write_model(CONFIG | {key: value})
            self.fails(1, "eval", self.model, names=["config.json", key, json.dumps(value)[:20]])
        for key in ("hidden_size", "rms_norm_eps", "model_type"):
            self.write_model({k: v for k, v in CONFIG.items() if k != key})
            self.fails(1, "eval", self.model, names=["config.json", f"{key} is missing"])
        (self.model / "config.json").write_text('{"hidden_size": }')
        err, _ = self.fails(1, "eval", self.model, names=["config.json", "byte 17"])
        self.assertNotIn("json.exception", err)

    def test_a_loss_that_is_no_number_is_an_error(self):
        tensors = read_safetensors(self.model / "model.safetensors")
        tensors["model.norm.weight"] = ("BF16", [32], bf16([1.0] * 31 + [float("nan")]))
        write_safetensors(self.model / "model.safetensors", tensors)
        code, out, err = cli_case.run("eval", self.model)
        self.assertEqual((code, out), (1, ""), err)
        self.assertIn(f"{self.model}: the perplexity is nan", err)

    def test_missing_files_exit_with_4(self):
        nothing = self.folder / "nothing"
        self.fails(4, "eval", nothing, "--data", self.folder / "example", names=["nothing"])
        self.fails(4, "eval", self.model, "--data", nothing, names=["nothing"])
        self.fails(4, "eval", self.model, "--compare-top1", nothing, names=["nothing"])
        self.fails(4, "eval", self.model, "--against", nothing, names=["nothing"])
        self.fails(4, "report", "--models", nothing, names=["nothing"])
        (self.folder / "words").write_text("1 2 three")
        self.fails(1, "eval", self.model, "--compare-top1", self.folder / "words", names=["words"])

    def test_outputs_that_cannot_be_written_are_found_first(self):
        for arguments in (["eval", self.model, "--write-top1"], ["calibrate", self.model, "--out"],
                          ["report", "--models", self.folder, "--json"]):
            self.fails(4, *arguments, self.folder / "no" / "file", names=["no/file"])
            self.fails(4, *arguments, self.folder, names=[str(self.folder)])
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["example", "model"])
        (self.folder / "evaluations.json").mkdir()
        self.fails(4, "report", "--models", self.folder, names=["evaluations.json"])
        for arguments in (["eval", self.model, "--write-top1"], ["calibrate", self.model, "--out"]):
            self.fails(2, *arguments, self.model / "config.json", names=["is a file of the model"])
        self.assertEqual(json.loads((self.model / "config.json").read_text()), CONFIG)
        self.succeeds("eval", self.model, "--write-top1", self.folder / "top1")
        self.assertEqual(len((self.folder / "top1").read_text().split()), 39)
        with open("/dev/full", "w") as full:
            done = subprocess.run([cli_case.BINARY, "eval", self.model], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 4, done.stderr)

    def test_wrong_usage_exits_with_2(self):
        for arguments in ([], ["nonsense"], ["eval"], ["eval", self.model, "--window", "1"],
                          ["generate", self.model, "--prompt", "nonsense"], ["eval", self.model, "--threads", "0"]):
            code, _, err = cli_case.run(*arguments)
            self.assertEqual(code, 2, err)
        self.fails(2, "evil", self.model, names=["no subcommand evil"])
        self.fails(2, "generate", self.model, "--seed", "-1", names=["-1"])
        _, _, err = cli_case.run("eval", self.model, "--dense", "fp8")
        self.assertIn("fp8 not in {f32,bf16}", err)
        self.fails(2, "eval", self.model, "--device", "pdp11", names=["pdp11"])
        _, out = self.fails(2, "generate", self.model, "--max-tokens", "63", names=["63", "64 positions"])
        self.assertEqual(out, "")
        self.succeeds("generate", self.model, "--max-tokens", "62", "--dense", "bf16")
        out, _ = self.succeeds("--help")
        self.assertIn("Exit codes", out)


if __name__ == "__main__":
    cli_case.BINARY = sys.argv.pop(1)
    unittest.main()

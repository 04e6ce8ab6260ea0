#!/usr/bin/env python3
"""scaledmm convert: python3 cli_convert_test.py PATH_TO_SCALEDMM [unittest arguments]."""

import json
import resource
import sys
import unittest

import cli_case
from cli_case import (
    Case,
    data8_checkpoint,
    decode,
    dense_checkpoint,
    f32,
    read_safetensors,
    write_checkpoint,
    write_safetensors,
)


class Convert(Case):
    STEP = {"int8": 1 / 127, "fp8": 1 / 16, "fp8-channel": 1 / 16, "fp8-block": 1 / 16}

    def dequantized(self, scheme, tensors, layer):
        dtype, (n, k), data = tensors[f"{layer}.weight"]
        self.assertEqual(dtype, "I8" if scheme == "int8" else "F8_E4M3")
        codes = decode(dtype, data)
        name = "weight_scale_inv" if scheme == "fp8-block" else "weight_scale"
        dtype, shape, data = tensors[f"{layer}.{name}"]
        scales = decode(dtype, data)
        rows, columns = -(-n // 128), -(-k // 128)
        self.assertEqual(shape, {"fp8": [1], "fp8-block": [rows, columns]}.get(scheme, [n, 1]))
        if scheme == "fp8-block":
            return [codes[i] * scales[i // k // 128 * columns + i % k // 128] for i in range(n * k)]
        return [codes[i] * scales[0 if scheme == "fp8" else i // k] for i in range(n * k)]

    def test_every_scheme_reads_back_close_to_the_dense_weights(self):
        source, values = dense_checkpoint(self.folder / "dense")
        for scheme, step in self.STEP.items():
            target = self.folder / scheme
            out, err = self.succeeds("convert", source, target, "--scheme", scheme)
            self.assertEqual(err, "")
            self.assertIn("model.layers.*.mlp.up_proj", out)
            tensors = read_safetensors(target / "model.safetensors")
            self.assertEqual(tensors["model.embed_tokens.weight"][0], "BF16")
            for layer in ("model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"):
                got = self.dequantized(scheme, tensors, layer)
                self.assertLessEqual(max(abs(a - b) for a, b in zip(got, values, strict=True)), step, scheme)
            config = json.loads((target / "config.json").read_text())["quantization_config"]
            method = "fp8" if scheme in ("fp8", "fp8-block") else "compressed-tensors"
            self.assertEqual(config["quant_method"], method)
            self.assertTrue((target / "tokenizer.json").exists())
            self.succeeds("verify", target)
            self.succeeds("plan", target)
            document = self.as_json("run", target)
            self.assertEqual(len(document["layers"]), 2)
        self.assertEqual(len(list(self.folder.iterdir())), 5)

    def test_json_and_options(self):
        source, _ = dense_checkpoint(self.folder / "dense")
        arguments = ["--scheme", "int8", "--scale-dtype", "bf16", "--ignore", "re:.*down_proj$"]
        document = self.as_json("convert", source, self.folder / "out", *arguments)
        self.assertEqual([layer["name"] for layer in document["layers"]], ["model.layers.0.mlp.up_proj"])
        tensors = read_safetensors(self.folder / "out" / "model.safetensors")
        self.assertEqual(tensors["model.layers.0.mlp.up_proj.weight_scale"][0], "BF16")
        self.assertEqual(tensors["model.layers.0.mlp.down_proj.weight"][0], "BF16")

    def test_a_word_for_layers_is_taken_where_there_is_a_checkpoint_of_them(self):
        source, _ = dense_checkpoint(self.folder / "dense")
        for word, scheme in (("fp8_w8a8", "fp8-channel"), ("fp8_w8a8_block", "fp8-block")):
            for name, folder in ((word, "a"), (scheme, "b")):
                document = self.as_json("convert", source, self.folder / f"{scheme}-{folder}", "--scheme", name)
                self.assertEqual(document["scheme"], scheme)
            for file in ("config.json", "model.safetensors"):
                got, expected = ((self.folder / f"{scheme}-{folder}" / file).read_bytes() for folder in "ab")
                self.assertEqual(got, expected)
        for word in ("fp8_w8a16", "int8_block", "int4"):
            self.fails(2, "convert", source, self.folder / "out", "--scheme", word, names=[word, "fp8-channel"])

    def test_outputs_below_the_least_normal_number_are_judged_by_its_steps(self):
        values = [((i * 37) % 7 - 3) * 2.0**-133 for i in range(160 * 144)]
        for dtype in ("bfloat16", "float16", "float32"):
            tensors = {"layer.weight": ("F32", [160, 144], f32(values))}
            source = write_checkpoint(self.folder / dtype, None, tensors, dtype=dtype)
            for scheme in self.STEP:
                target = self.folder / f"{dtype}-{scheme}"
                self.succeeds("convert", source, target, "--scheme", scheme)
                (layer,) = self.as_json("run", target)["layers"]
                self.assertTrue(layer["ok"], layer)

    def test_a_calibration_that_names_no_model_is_taken_with_a_note(self):
        source, _ = dense_checkpoint(self.folder / "dense")
        grams = {}
        for layer, k in (("up_proj", 144), ("down_proj", 160)):
            identity = [float(i // k == i % k) for i in range(k * k)]
            grams[f"model.layers.0.mlp.{layer}.gram"] = ("F32", [k, k], f32(identity))
        write_safetensors(self.folder / "unknown", grams)
        arguments = ["convert", source, self.folder / "out", "--scheme", "int8", "--calibration"]
        _, err = self.succeeds(*arguments, self.folder / "unknown")
        self.assertIn("does not say which model", err)
        write_safetensors(self.folder / "other", grams, {"scaledmm.model": "0123456789abcdef"})
        arguments[2] = self.folder / "none"
        self.fails(2, *arguments, self.folder / "other", names=["another model", "0123456789abcdef"])
        self.assertFalse((self.folder / "none").exists())

    def test_what_is_not_copied_is_named(self):
        source, _ = dense_checkpoint(self.folder / "dense")
        for name in ("1_Pooling/config.json", "original/consolidated.00.pth"):
            (source / name).parent.mkdir()
            (source / name).write_text("{}")
        _, err = self.succeeds("convert", source, self.folder / "a", "--scheme", "int8")
        self.assertEqual(err, f"scaledmm: {source}: not copied: original/\n")
        self.assertEqual((self.folder / "a" / "1_Pooling" / "config.json").read_text(), "{}")
        code, out, err = cli_case.run("convert", source, self.folder / "b", "--scheme", "int8", "--json")
        self.assertEqual(code, 0, err)
        self.assertEqual(json.loads(out)["warnings"], [f"{source}: not copied: original/"])

    def test_a_part_of_a_fused_group_that_stays_dense_is_named(self):
        tensors = {f"model.layers.{i}.mlp.{part}.weight": ("F32", [16, 32], f32([0.5] * 512))
                   for i in range(3) for part in ("gate_proj", "up_proj")}
        source = write_checkpoint(self.folder / "dense", None, tensors)
        arguments = ["convert", source, self.folder / "out", "--scheme", "fp8", "--ignore", "re:.*[01].*gate_proj$"]
        _, err = self.succeeds(*arguments)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertIn('gate_proj of "model.layers.0.mlp" is dense and up_proj is quantized (and 1 group like it)', err)
        self.assertIn("vLLM", err)
        out, _ = self.succeeds("inspect", self.folder / "out")
        self.assertIn("warning: gate_proj of", out)

    def test_a_destination_that_cannot_be_made_is_found_first(self):
        source, _ = dense_checkpoint(self.folder / "dense")
        late = ["--calibration", self.folder / "nothing"]
        self.fails(4, "convert", source, "/proc/out", "--scheme", "int8", *late, names=["/proc/out"])
        self.fails(4, "rotate", source, "/proc/out", *late, names=["/proc/out"])
        self.fails(2, "convert", source, "", "--scheme", "int8", names=["destination", "empty"])

    def test_failures_leave_nothing_behind(self):
        source, _ = dense_checkpoint(self.folder / "dense")
        (self.folder / "there").mkdir()
        self.fails(2, "convert", source, self.folder / "there", "--scheme", "int8", names=["there"])
        self.fails((1, 4), "convert", self.folder / "nothing", self.folder / "out", "--scheme", "int8")
        self.fails(2, "convert", source, self.folder / "out", "--scheme", "int8", "--ignore", "nonsense",
                   names=["nonsense"])

        def small_disk():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        self.fails(4, "convert", source, self.folder / "out", "--scheme", "int8", preexec_fn=small_disk)
        tensors = read_safetensors(source / "model.safetensors")
        dtype, shape, data = tensors["model.layers.0.mlp.up_proj.weight"]
        tensors["model.layers.0.mlp.up_proj.weight"] = (dtype, shape, b"\xc0\x7f" + data[2:])
        write_safetensors(source / "model.safetensors", tensors)
        self.fails(1, "convert", source, self.folder / "out", "--scheme", "int8",
                   names=["model.safetensors", "model.layers.0.mlp.up_proj.weight"])
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["dense", "there"])

    def test_seeds_of_a_rotation_are_whole_numbers(self):
        source = self.folder / "dense"
        for seed in ("-1", "99999999999999999999999", "1.5", "x"):
            self.fails(2, "rotate", source, self.folder / "rotated", f"--seed={seed}", names=["no number from 0"])

    def test_a_quantized_source_is_refused(self):
        self.fails(3, "convert", data8_checkpoint(self.folder / "c"), self.folder / "out", "--scheme", "fp8",
                   names=["compressed-tensors"])


if __name__ == "__main__":
    cli_case.BINARY = sys.argv.pop(1)
    unittest.main()

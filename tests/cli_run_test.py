#!/usr/bin/env python3
"""scaledmm run on the collected cases, whose right answers are exact, and on scales that no layer can have:
python3 cli_run_test.py PATH_TO_SCALEDMM [unittest arguments].
"""

import json
import math
import resource
import sys
import unittest

import cli_case
from cli_case import (
    Case,
    bf16,
    compressed_tensors,
    data8_checkpoint,
    data8_x,
    dataf_block_checkpoint,
    dataf_x,
    f16,
    f32,
    write_checkpoint,
    write_safetensors,
)


class Run(Case):
    LAYER = "model.layers.0.mlp.up_proj"

    def test_int8_gives_the_exact_values_on_every_kernel(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        known = {(0, 0): 152935, (0, 1): 60610, (1, 0): 148875, (2, 3): 11822.5, (7, 95): -5611.875,
                 (16, 17): -3570, (33, 48): -64640, (64, 31): -6466.875, (256, 95): -7800}
        x = ("F32", [257, 320], f32(data8_x(257, 320)))
        (layer,) = self.as_json("plan", checkpoint, "--dtype", "f32")["layers"]
        results = []
        for kernel in [c["kernel"] for c in layer["candidates"] if c["ok"]]:
            dtype, shape, y = self.multiply(checkpoint, self.LAYER, x, "--kernel", kernel)
            self.assertEqual((dtype, shape), ("F32", [257, 96]))
            for (m, n), value in known.items():
                self.assertEqual(y[m * 96 + n], value, (kernel, m, n))
            results.append(y)
        self.assertTrue(results)
        self.assertTrue(all(y == results[0] for y in results))
        self.assertEqual(self.multiply(checkpoint, self.LAYER, x)[2], results[0])

    def test_fp8_blocks_give_the_exact_values(self):
        checkpoint = dataf_block_checkpoint(self.folder / "c")
        known = {(0, 0): 16.625, (0, 1): 8.375, (0, 128): -12.625, (1, 0): 14, (1, 255): 11.5, (2, 77): 49,
                 (3, 130): -32.5, (16, 200): 5.8125}
        dtype, shape, y = self.multiply(checkpoint, "layer", ("BF16", [17, 384], bf16(dataf_x(17, 384))),
                                        "--out-dtype", "f32")
        self.assertEqual((dtype, shape), ("F32", [17, 256]))
        for (m, n), value in known.items():
            self.assertEqual(y[m * 256 + n], value, (m, n))
        self.assertEqual(sum(y), -20.375)

    def test_types_and_ranks_of_x(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        values = data8_x(6, 320)
        expected = self.multiply(checkpoint, self.LAYER, ("F32", [6, 320], f32(values)))[2]
        for dtype, pack in (("BF16", bf16), ("F16", f16)):
            got, shape, y = self.multiply(checkpoint, self.LAYER, (dtype, [2, 3, 320], pack(values)))
            self.assertEqual((got, shape), (dtype, [2, 3, 96]))
            for a, b in zip(y, expected, strict=True):
                if abs(b) < 65504:
                    self.assertAlmostEqual(a, b, delta=abs(b) * 2**-8)
            flag = ("--out-dtype", "f32")
            self.assertEqual(self.multiply(checkpoint, self.LAYER, (dtype, [6, 320], pack(values)), *flag)[2], expected)
        dtype, shape, y = self.multiply(checkpoint, self.LAYER, ("F32", [320], f32(values[:320])), "--threads", "1")
        self.assertEqual((shape, y), ([96], expected[:96]))
        self.assertEqual(self.multiply(checkpoint, self.LAYER, ("F32", [0, 320], b""))[1:], ([0, 96], []))

    def test_a_gpu_gives_the_values_of_the_cpu_or_its_reason(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        backends = {backend["kind"]: backend for backend in self.as_json("devices")["backends"]}
        x = ("F32", [5, 320], f32(data8_x(5, 320)))
        if backends["cuda"]["available"]:
            expected = self.multiply(checkpoint, self.LAYER, x)
            self.assertEqual(self.multiply(checkpoint, self.LAYER, x, "--device", "cuda"), expected)
        else:
            self.fails(5, "run", checkpoint, "--device", "cuda", names=[backends["cuda"]["detail"]])
        self.fails(2, "run", checkpoint, "--device", "sm90", names=["a description"])

    def test_the_selected_kernel_is_named_on_standard_error(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        write_safetensors(self.folder / "x", {"x": ("BF16", [1, 320], bf16(data8_x(1, 320)))})
        files = ["--input", self.folder / "x", "--output", self.folder / "y"]
        _, err = self.succeeds("run", checkpoint, "--layer", self.LAYER, *files)
        (layer,) = self.as_json("plan", checkpoint)["layers"]
        self.assertIn(layer["selected"], err)

    def test_wrong_input(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        good = self.folder / "x.safetensors"
        write_safetensors(good, {"x": ("F32", [2, 320], f32(data8_x(2, 320)))})

        def files(name):
            return ["--input", self.folder / name, "--output", self.folder / "y.safetensors"]

        write_safetensors(self.folder / "k", {"x": ("F32", [2, 300], f32([0.0] * 600))})
        self.fails(3, "run", checkpoint, "--layer", self.LAYER, *files("k"), names=["300", "320", self.LAYER])
        write_safetensors(self.folder / "i", {"x": ("I8", [1, 320], bytes(320))})
        self.fails(3, "run", checkpoint, "--layer", self.LAYER, *files("i"), names=["I8", "BF16"])
        write_safetensors(self.folder / "z", {"z": ("F32", [1, 320], f32([0.0] * 320))})
        self.fails(3, "run", checkpoint, "--layer", self.LAYER, *files("z"), names=['it has: "z")'])
        write_safetensors(self.folder / "z", {f"z{i}": ("F32", [0], b"") for i in range(1000)})
        self.fails(3, "run", checkpoint, "--layer", self.LAYER, *files("z"), names=['"z0", ', "and 990 more"])
        write_safetensors(self.folder / "s", {"x": ("F32", [], f32([0.0]))})
        self.fails(3, "run", checkpoint, "--layer", self.LAYER, *files("s"), names=["x"])
        self.fails(4, "run", checkpoint, "--layer", self.LAYER, *files("missing"), names=["missing"])
        (self.folder / "broken").write_bytes(good.read_bytes()[:-1])
        self.fails(1, "run", checkpoint, "--layer", self.LAYER, *files("broken"), names=["broken"])
        self.fails(2, "run", checkpoint, "--layer", "model.layers.0.mlp.up_prj", *files("x.safetensors"),
                   names=["up_prj", self.LAYER])
        self.fails(3, "run", checkpoint, "--layer", "lm_head", *files("x.safetensors"), names=["lm_head", "dense"])
        self.fails(2, "run", checkpoint, "--layer", self.LAYER, *files("x.safetensors"), "--kernel", "nonsense")
        self.fails(3, "run", checkpoint, "--layer", self.LAYER, *files("x.safetensors"), "--kernel", "fp8_w8a16_avx2",
                   names=["fp8_w8a16_avx2", "reference"])
        self.assertFalse((self.folder / "y.safetensors").exists())

    def test_output_that_cannot_be_written_leaves_nothing(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        write_safetensors(self.folder / "x", {"x": ("F32", [64, 320], f32(data8_x(64, 320)))})
        arguments = ["run", checkpoint, "--layer", self.LAYER, "--input", self.folder / "x", "--output"]
        self.fails(4, *arguments, self.folder / "no" / "y", names=["y"])
        self.fails(4, *arguments, "/dev/full", names=["/dev/full", "not a regular file"])
        for read in (self.folder / "x", checkpoint / "model.safetensors", checkpoint / "config.json"):
            before = read.read_bytes()
            self.fails(2, *arguments, read, names=[read.name, "is read"])
            self.assertEqual(read.read_bytes(), before)
        self.fails(4, *arguments, self.folder / ("y" * 300), names=["too long"])
        (self.folder / "loop").symlink_to("loop")
        self.fails(4, *arguments, self.folder / "loop", names=["loop", "follow the link"])
        self.assertTrue((self.folder / "loop").is_symlink())
        (self.folder / "link").symlink_to("later")  # to a file that is not there yet
        self.succeeds(*arguments, self.folder / "link")
        self.assertTrue((self.folder / "link").is_symlink())
        self.assertTrue((self.folder / "later").is_file())
        (self.folder / "out").mkdir()
        (self.folder / "out" / "y").write_text("old")

        def small_disk():
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        self.fails(4, *arguments, self.folder / "out" / "y", names=["y"], preexec_fn=small_disk)
        self.assertEqual([(p.name, p.read_text()) for p in (self.folder / "out").iterdir()], [("y", "old")])

    def test_all_layers_are_checked_without_an_input(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        out, _ = self.succeeds("run", checkpoint)
        self.assertIn(self.LAYER, out)
        (layer,) = self.as_json("run", checkpoint)["layers"]
        self.assertTrue(layer["ok"])
        self.assertGreater(layer["relative_error"], 0)
        (layer,) = self.as_json("run", dataf_block_checkpoint(self.folder / "f"))["layers"]
        self.assertTrue(layer["ok"])


class Scales(Case):
    """PB-19: scales that are missing, unset or not numbers."""

    def checkpoint(self, name, scale=None, input_scale=None, dynamic=True, code=0x38):
        tensors = {}
        if scale is not None:
            tensors["layer.weight_scale"] = ("F32", [1], f32([scale]))
        if input_scale is not None:
            tensors["layer.input_scale"] = ("F32", [1], f32([input_scale]))
        tensors["layer.weight"] = ("F8_E4M3", [128, 128], bytes([code]) * (128 * 128))
        config = {"quant_method": "fp8", "activation_scheme": "dynamic" if dynamic else "static"}
        return write_checkpoint(self.folder / name, config, tensors)

    def refused(self, checkpoint, name):
        write_safetensors(self.folder / "x", {"x": ("BF16", [1, 128], bf16([1.0] * 128))})
        files = ["--input", self.folder / "x", "--output", self.folder / "y"]
        self.fails((1, 3), "run", checkpoint, "--layer", "layer", *files, names=["model.safetensors", name])
        self.fails((1, 3), "verify", checkpoint, names=["model.safetensors", name])
        self.assertFalse((self.folder / "y").exists())

    def test_missing_weight_scale(self):
        self.refused(self.checkpoint("a"), "layer.weight")

    def test_missing_input_scale(self):
        self.refused(self.checkpoint("b", scale=1.0, dynamic=False), "input_scale")

    def test_input_scale_of_zero(self):
        self.refused(self.checkpoint("c", scale=1.0, input_scale=0.0, dynamic=False), "layer.input_scale")

    def test_weight_scales_that_are_not_numbers(self):
        for i, value in enumerate((math.nan, math.inf, -3.4028e38)):
            self.refused(self.checkpoint(f"d{i}", scale=value), "layer.weight_scale")

    def test_a_scale_without_a_quantized_layer_is_noticed(self):
        tensors = {
            "lm_head.weight_scale": ("F32", [4, 1], f32([1.0] * 4)),
            "layer.weight_scale": ("F32", [4, 1], f32([1.0] * 4)),
            "lm_head.weight": ("BF16", [4, 4], bf16([1.0] * 16)),
            "layer.weight": ("I8", [4, 4], bytes(16)),
        }
        checkpoint = write_checkpoint(self.folder / "f", compressed_tensors("int"), tensors)
        out, _ = self.succeeds("inspect", checkpoint)
        self.assertIn("lm_head.weight_scale", out)

    def test_verify_finds_nan_codes(self):
        checkpoint = self.checkpoint("n", scale=1.0, code=0x7F)
        err, out = self.fails(1, "verify", checkpoint, "--json", names=["model.safetensors", "layer.weight"])
        document = json.loads(out)
        self.assertFalse(document["sound"])
        self.assertIn("layer.weight", document["problems"][0])

    def test_verify_finds_weights_that_their_dtype_cannot_hold(self):
        checkpoint = self.checkpoint("o", scale=1e38, code=0x48)  # 4
        self.fails(1, "verify", checkpoint, names=["layer.weight_scale", "too large for bf16"])
        self.refused(checkpoint, "layer.weight_scale")

    def test_verify_passes_what_is_sound(self):
        document = self.as_json("verify", self.checkpoint("s", scale=1.0))
        self.assertTrue(document["sound"])
        self.assertEqual(document["problems"], [])


if __name__ == "__main__":
    cli_case.BINARY = sys.argv.pop(1)
    unittest.main()

#!/usr/bin/env python3
"""The scaledmm command, driven as a user would: python3 cli_test.py PATH_TO_SCALEDMM [unittest arguments].

Names PB-... are cases of public bug reports that the project collects.
"""

import json
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

import cli_case
from cli_case import Case, data8_checkpoint, f32, run, write_checkpoint, write_safetensors


class Usage(Case):
    COMMANDS = ("devices", "inspect", "verify", "plan", "explain", "convert", "pack", "run", "bench")

    def test_help_of_every_command_has_an_example(self):
        out, _ = self.succeeds("--help")
        for command in self.COMMANDS:
            self.assertIn(command, out)
            text, _ = self.succeeds(command, "--help")
            self.assertRegex(text, r"Examples?:\n +scaledmm " + command)

    def test_version(self):
        out, err = self.succeeds("--version")
        self.assertRegex(out, r"^scaledmm \d+\.\d+\.\d+\n$")
        self.assertEqual(err, "")

    def test_wrong_usage_exits_with_2(self):
        for arguments in ([], ["nonsense"], ["plan"], ["devices", "--nonsense"], ["convert", "a", "b"]):
            self.fails(2, *arguments)
        self.fails(2, "convert", "a", "b", "--scheme", "int4", names=["int4"])
        self.fails(2, "explain", "--scheme", "int8", "--shape", "12", names=["N,K"])
        self.fails(2, "explain", "--scheme", "int8", "--shape", "12,0", names=["N,K"])
        self.fails(2, "bench", "--scheme", "int8", "--shape", "1,2,3x", names=["M,N,K"])
        self.fails(2, "run", "a", "--input", "x")

    def test_an_unknown_subcommand_is_named(self):
        code, _, error = run("plann", "model")
        self.assertEqual(code, 2)
        self.assertIn("no subcommand plann", error)

    def test_a_file_that_is_cut_while_it_is_read_is_an_error_of_reading(self):
        # The kernel's signal for a page of a mapped file that is not there any more.
        command = [cli_case.BINARY, "bench", "--scheme", "int8", "--shape", "64,4096,4096", "--threads", "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while not self.catches(process.pid, signal.SIGBUS):
                time.sleep(0.01)
            process.send_signal(signal.SIGBUS)
            _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 4)
        self.assertIn("became shorter", error)

    @staticmethod
    def catches(pid, number):
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text()).group(1)
        return int(caught, 16) >> (number - 1) & 1

    def test_with_json_an_error_is_an_object_too(self):
        for arguments in (["plan"], ["explain", "--scheme", "int4", "--shape", "4,4"], ["devices", "--nonsense"]):
            _, out = self.fails_as_json(2, *arguments)
            self.assertEqual(out, "")
        self.fails_as_json(2, "explain", "--scheme", "int8", "--shape", "12", names=["N,K"])
        _, out = self.fails_as_json(4, "plan", self.folder / "nothing", names=["nothing"])
        self.assertEqual(out, "")
        checkpoint = data8_checkpoint(self.folder / "c", layer='a "name"\x1b[2J')
        (checkpoint / "config.json").write_text("{")
        text, _ = self.fails_as_json(1, "verify", checkpoint, names=["config.json"])
        self.assertIn("invalid JSON", text)
        # What was asked for goes to standard output all the same.
        forced = ["--shape", "64,64", "--kernel", "fp8_w8a16_avx2"]
        text, out = self.fails_as_json(3, "explain", "--scheme", "int8", *forced)
        self.assertIn("reference", text)
        self.assertIsNone(json.loads(out)["layers"][0]["selected"])

    def test_layers_and_checkpoints_share_their_schemes(self):
        shape = ["--shape", "64,256", "--device", "cpu:avx2"]
        layers = {}
        for word in ("int8", "int8_block", "fp8", "fp8_w8a8", "fp8-channel", "fp8_w8a8_block", "fp8-block", "fp8_w8a16",
                     "fp8_w8a16_block"):
            (layers[word],) = self.as_json("explain", "--scheme", word, *shape)["layers"]
        self.assertEqual(layers["fp8-channel"], layers["fp8_w8a8"])
        self.assertEqual(layers["fp8-block"], layers["fp8_w8a8_block"])
        self.assertIn("per tensor", layers["fp8"]["name"])
        self.assertIn("per channel", layers["fp8_w8a8"]["name"])
        self.fails(2, "explain", "--scheme", "fp8-tensor", *shape, names=["fp8-tensor", "fp8_w8a8_block"])

    def test_a_missing_file_exits_with_4(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        nothing = self.folder / "nothing"
        for command in ("inspect", "verify", "plan", "run"):
            self.fails(4, command, nothing, names=["nothing"])
        for arguments in (["convert", nothing, self.folder / "o", "--scheme", "int8"],
                          ["rotate", nothing, self.folder / "o"],
                          ["pack", nothing, "--output", self.folder / "p"], ["pack", checkpoint, "--check", nothing],
                          ["run", checkpoint, "--packed", nothing], ["bench", "--report", nothing, "--html", "h.html"],
                          ["convert", checkpoint, self.folder / "o", "--scheme", "int8", "--calibration", nothing]):
            self.fails(4, *arguments, names=["nothing"])
        weights = checkpoint / "model.safetensors"
        index = {"weight_map": {"lm_head.weight": "nothing.safetensors"}}
        weights.unlink()
        self.fails(4, "verify", checkpoint, names=["no weights"])
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
        self.fails(4, "verify", checkpoint, names=["nothing.safetensors"])
        (checkpoint / "model.safetensors.index.json").unlink()
        weights.mkdir()
        self.fails(4, "verify", checkpoint, names=["model.safetensors", "not a regular file"])
        weights.rmdir()
        weights.symlink_to(weights)
        self.fails(4, "verify", checkpoint, names=["model.safetensors"])

    def test_an_empty_word_is_no_folder(self):
        for command in ("inspect", "verify", "plan", "run"):
            self.fails(2, command, "", names=["checkpoint", "empty"])
        self.fails(2, "bench", "--output", "", names=["--output", "empty"])

    def test_a_full_standard_output_exits_with_4(self):
        for argument in ("devices", "--help", "--version"):
            with open("/dev/full", "w") as full:
                done = subprocess.run([cli_case.BINARY, argument], stdout=full, stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 4, done.stderr)

    def test_devices(self):
        document = self.as_json("devices")
        self.assertEqual(document["backends"][0]["kind"], "cpu")
        kernels = {kernel["name"]: kernel for kernel in document["kernels"]}
        self.assertTrue(kernels["reference"]["supported"])
        for kernel in kernels.values():
            self.assertEqual(kernel["supported"], kernel["reason"] == "", kernel)
        out, _ = self.succeeds("devices")
        self.assertIn("reference", out)


class Plan(Case):
    def test_json_has_exactly_the_fixed_fields(self):
        document = self.as_json("plan", data8_checkpoint(self.folder / "c"))
        self.assertEqual(list(document), ["device", "layers"])
        (layer,) = document["layers"]
        self.assertEqual(
            list(layer), ["name", "scheme", "n", "k", "selected", "candidates", "warnings"]
        )
        self.assertEqual(layer["name"], "model.layers.0.mlp.up_proj")
        self.assertEqual((layer["scheme"], layer["n"], layer["k"]), ("int8", 96, 320))
        for candidate in layer["candidates"]:
            self.assertEqual(list(candidate), ["kernel", "upstream", "computes", "ok", "reason"])
            self.assertIn(candidate["computes"], ("w8a8", "w8a16"))
            self.assertEqual(candidate["ok"], candidate["reason"] == "", candidate)
        able = [c["kernel"] for c in layer["candidates"] if c["ok"]]
        self.assertEqual(layer["selected"], able[0])
        self.assertEqual(able[-1], "reference")

    def test_json_leaves_the_checkpoints_warnings_to_standard_error(self):
        stray = {"nobodys.weight_scale": ("F32", [1], f32([1.0]))}
        out, err = self.succeeds("plan", data8_checkpoint(self.folder / "c", more=stray), "--json")
        self.assertEqual(list(json.loads(out)), ["device", "layers"])
        self.assertRegex(err, "scaledmm: .*nobodys.weight_scale.* is not used")

    def test_text_names_the_layer_the_kernel_and_the_reasons(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        out, err = self.succeeds("plan", checkpoint)
        self.assertEqual(err, "")
        (layer,) = self.as_json("plan", checkpoint)["layers"]
        self.assertIn("model.layers.*.mlp.up_proj", out)
        self.assertIn(layer["selected"], out)
        for candidate in layer["candidates"]:
            self.assertIn(candidate["reason"], out)

    def test_plans_for_another_device(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        chosen = {}
        for device in ("cpu:scalar", "cpu:avx2", "cpu:avx512vnni", "sm90", "sm89"):
            (layer,) = self.as_json("plan", checkpoint, "--device", device)["layers"]
            chosen[device] = layer["selected"]
        self.assertEqual(chosen["cpu:scalar"], "reference")
        self.assertEqual(chosen["cpu:avx2"], "int8_w8a8_avx2")
        self.assertEqual(chosen["cpu:avx512vnni"], "int8_w8a8_avx512vnni")
        self.assertEqual(chosen["sm90"], "int8_w8a8_sm90")
        self.assertEqual(chosen["sm89"], "cublaslt_int8")
        self.fails(2, "plan", checkpoint, "--device", "cpu:pdp11", names=["cpu:pdp11"])

    def test_a_forced_kernel_runs_or_gives_its_reason(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        (layer,) = self.as_json("plan", checkpoint, "--kernel", "reference")["layers"]
        self.assertEqual(layer["selected"], "reference")
        # PB-21 (d)
        err, _ = self.fails(3, "plan", checkpoint, "--kernel", "fp8_w8a16_avx2", names=["fp8_w8a16_avx2", "reference"])
        (layer,) = json.loads(run("plan", checkpoint, "--kernel", "fp8_w8a16_avx2", "--json")[1])["layers"]
        self.assertIsNone(layer["selected"])
        (forced,) = [c for c in layer["candidates"] if c["kernel"] == "fp8_w8a16_avx2"]
        self.assertFalse(forced["ok"])
        self.assertIn(forced["reason"], err)
        self.fails(2, "plan", checkpoint, "--kernel", "nonsense", names=["nonsense", "reference"])

    def test_the_environment_forces_and_the_option_wins(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        forced = {"SCALEDMM_FORCE_KERNEL": "reference"}
        (layer,) = self.as_json("plan", checkpoint, env=forced)["layers"]
        self.assertEqual(layer["selected"], "reference")
        (layer,) = self.as_json("plan", checkpoint, "--device", "cpu:avx2", "--kernel", "int8_w8a8_avx2", env=forced)[
            "layers"
        ]
        self.assertEqual(layer["selected"], "int8_w8a8_avx2")

    def test_broken_folders(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        file = checkpoint / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-3])
        for command in ("plan", "inspect", "verify"):
            self.fails(1, command, checkpoint, names=["model.safetensors"])
        self.fails((1, 4), "plan", self.folder / "nothing", names=["nothing"])
        (checkpoint / "config.json").write_text("{")
        self.fails(1, "plan", checkpoint, names=["config.json"])

    def test_an_unknown_method_exits_with_3(self):
        tensors = {"layer.weight": ("I8", [2, 2], b"abcd")}
        checkpoint = write_checkpoint(self.folder / "c", {"quant_method": "gptq"}, tensors)
        self.fails(3, "plan", checkpoint, names=["gptq"])

    def test_a_name_cannot_drive_the_terminal(self):
        layer = "evil\x1b[2Jname\nsecond line"
        checkpoint = data8_checkpoint(self.folder / "c", layer=layer)
        for command in ("plan", "inspect", "verify"):
            _, out, err = run(command, checkpoint)
            self.assertNotIn("\x1b", out + err)
        write_safetensors(checkpoint / "model.safetensors", {f"{layer}.weight": ("I8", [2, 2], b"abcd")})
        err, _ = self.fails((1, 3), "plan", checkpoint)
        self.assertNotIn("\x1b", err)

    def test_a_name_cannot_pass_for_another_line(self):
        layer = "evil\r\n\u009b2Jname\nwarning: all is well"
        checkpoint = data8_checkpoint(self.folder / "c", layer=layer)
        for command in ("plan", "inspect", "run"):
            out, _ = self.succeeds(command, checkpoint)
            (line,) = [line for line in out.splitlines() if "evil" in line and "because" not in line]
            self.assertIn("evil\\x0d\\n\\x9b2Jname\\nwarning: all is well", line)
            self.assertFalse(any(line.startswith("warning") for line in out.splitlines()), out)
        self.fails(3, "plan", checkpoint, "--kernel", "fp8_w8a16_avx2", names=["\\nwarning: all is well: kernel"])

    def test_inspect(self):
        document = self.as_json("inspect", data8_checkpoint(self.folder / "c"))
        layers = {layer["name"]: layer for layer in document["layers"]}
        self.assertTrue(layers["model.layers.0.mlp.up_proj"]["quantized"])
        self.assertEqual(layers["model.layers.0.mlp.up_proj"]["weight"]["dtype"], "I8")
        self.assertFalse(layers["lm_head"]["quantized"])
        out, _ = self.succeeds("inspect", self.folder / "c")
        self.assertIn("lm_head", out)

    def test_explain(self):
        document = self.as_json("explain", "--scheme", "int8", "--shape", "64,64", "--device", "cpu:avx2")
        self.assertEqual(document["layers"][0]["selected"], "int8_w8a8_avx2")
        for scheme in ("int8_block", "fp8_w8a16", "fp8_w8a8", "fp8_w8a16_block", "fp8_w8a8_block"):
            out, _ = self.succeeds("explain", "--scheme", scheme, "--shape", "64,256")
            self.assertIn("reference", out)
        self.fails(3, "explain", "--scheme", "int8", "--shape", "64,64", "--kernel", "fp8_w8a16_avx2", names=["reference"])
        self.fails(2, "explain", "--scheme", "fp8_w8a8", "--shape", "64,64", "--asymmetric")


class Bench(Case):
    FIELDS = ["kernel", "scheme", "m", "n", "k", "threads", "cold", "gemm_us", "apply_us", "p10_us", "p90_us", "tops",
              "gb_per_s", "share_of_floor"]

    def rows(self, *arguments):
        out, err = self.succeeds("bench", *arguments, "--json")
        self.assertEqual(err, "")
        return [json.loads(line) for line in out.splitlines()]

    def test_rows_have_exactly_the_fixed_fields(self):
        rows = self.rows("--scheme", "int8", "--shape", "1,64,96", "--shape", "5,64,96", "--threads", "1")
        self.assertEqual([row["m"] for row in rows], [1, 5])
        for row in rows:
            self.assertEqual(list(row), self.FIELDS)
            self.assertEqual((row["scheme"], row["n"], row["k"], row["threads"], row["cold"]), ("int8", 64, 96, 1, False))
            self.assertLessEqual(row["p10_us"], row["apply_us"])
            self.assertLessEqual(row["apply_us"], row["p90_us"])
            self.assertGreater(row["gemm_us"], 0)
            self.assertAlmostEqual(row["tops"], 2 * row["m"] * 64 * 96 / row["apply_us"] * 1e-6)

    def test_every_scheme_is_timed_after_its_check(self):
        for scheme in ("int8", "int8_block", "fp8_w8a16", "fp8_w8a8", "fp8_w8a16_block", "fp8_w8a8_block"):
            for dtype in ("f32", "bf16", "f16"):
                (row,) = self.rows("--scheme", scheme, "--shape", "3,200,144", "--x-dtype", dtype)
                if "w8a16" in scheme:
                    self.assertIsNone(row["gemm_us"])

    def test_kernels_can_be_forced(self):
        (row,) = self.rows("--scheme", "fp8_w8a16", "--shape", "2,32,32", "--kernel", "reference")
        self.assertEqual(row["kernel"], "reference")
        self.fails(3, "bench", "--scheme", "int8", "--shape", "2,32,32", "--kernel", "fp8_w8a16_avx2", names=["reference"])
        self.fails(2, "bench", "--scheme", "int8", "--shape", "2,32,32", "--kernel", "nonsense")

    def test_an_output_that_cannot_be_written_is_found_before_the_first_row(self):
        shape = ["--scheme", "int8", "--shape", "1,8,8", "--json"]
        for option in ("--output", "--html"):
            for file in ("/proc/nothing", "/dev/full", self.folder, self.folder / "no" / "file"):
                _, out = self.fails(4, "bench", *shape, option, file, names=[str(file)])
                self.assertEqual(out, "")
        same = self.folder / "same"
        self.fails(2, "bench", *shape, "--output", same, "--html", f"{self.folder}/./same", names=["the same file"])
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_shapes_that_no_memory_holds_are_refused(self):
        for shape in ("2147483648,2147483648,1", "1,2147483648,2147483648"):
            _, out = self.fails(3, "bench", "--scheme", "int8", "--shape", shape, names=[shape, "GB"])
            self.assertEqual(out, "")

    def test_rows_go_to_a_file_too(self):
        file = self.folder / "rows.json"
        out, _ = self.succeeds("bench", "--scheme", "int8", "--shape", "1,64,64", "--output", file)
        self.assertIn("int8", out)
        document = json.loads(file.read_text())
        self.assertEqual(list(document["rows"][0]), self.FIELDS)
        self.assertGreaterEqual(document["peak_int8_ops"], 0)


if __name__ == "__main__":
    cli_case.BINARY = sys.argv.pop(1)
    unittest.main()

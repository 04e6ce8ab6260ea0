#!/usr/bin/env python3
"""The scaledmm command, driven as a user would: python3 cli_test.py PATH_TO_SCALEDMM [unittest arguments].

Checkpoints are made here from bytes and JSON, and outputs are read back the same way, so that nothing of the library's
own reader and writer is taken on trust. Names PB-... are cases of public bug reports that the project collects.
"""

import json
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BINARY = ""
WIDTH = {"F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1, "I32": 4}


def run(*arguments, **options):
    """Runs the command; gives exit code, standard output, standard error."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SCALEDMM_")}
    environment.update(options.pop("env", {}))
    done = subprocess.run(
        [BINARY, *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=300, **options
    )
    return done.returncode, done.stdout, done.stderr


def f32(values):
    return struct.pack(f"<{len(values)}f", *values)


def bf16(values):
    """Values that bf16 holds exactly."""
    halves = [struct.unpack("<I", struct.pack("<f", v))[0] for v in values]
    assert all(h & 0xFFFF == 0 for h in halves)
    return struct.pack(f"<{len(halves)}H", *(h >> 16 for h in halves))


def f16(values):
    return struct.pack(f"<{len(values)}e", *values)


def e4m3_value(code):
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return math.nan
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))


E4M3 = {e4m3_value(code): code for code in range(255) if code not in (0x7F, 0x80)}


def e4m3(values):
    """Values that e4m3 holds exactly."""
    return bytes(E4M3[v] for v in values)


def decode(dtype, data):
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    if dtype == "BF16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        return [struct.unpack("<f", struct.pack("<I", h << 16))[0] for h in halves]
    if dtype == "I8":
        return list(struct.unpack(f"<{len(data)}b", data))
    return [e4m3_value(code) for code in data]


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes), written in the given order."""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        assert len(data) == math.prod(shape) * WIDTH[dtype], name
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def read_safetensors(path):
    raw = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    data = raw[8 + length :]
    return {n: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for n, e in header.items()}


def write_checkpoint(folder, quantization, tensors, dtype="bfloat16"):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["Toy"], "torch_dtype": dtype}
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def compressed_tensors(kind, dynamic=True, ignore=("lm_head",)):
    activations = {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": dynamic}
    activations["strategy"] = "token" if dynamic else "tensor"
    weights = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "channel", "dynamic": False}
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations},
        },
    }


# DATA-8 and DATA-F of the collected cases: every right answer is exact.
def data8_x(rows, k):
    return [float((11 * m + 7 * i) % 255 - 127) for m in range(rows) for i in range(k)]


def data8_checkpoint(folder, n=96, k=320, layer="model.layers.0.mlp.up_proj"):
    codes = bytes(((5 * r + 3 * i) % 255 - 127) & 0xFF for r in range(n) for i in range(k))
    tensors = {
        f"{layer}.weight_scale": ("F32", [n, 1], f32([2.0 ** -(r % 4) for r in range(n)])),
        f"{layer}.weight": ("I8", [n, k], codes),
        "lm_head.weight": ("BF16", [4, k], bf16([0.0] * (4 * k))),
    }
    return write_checkpoint(folder, compressed_tensors("int"), tensors)


def dataf_x(rows, k):
    t = (-7, -3.5, -2, -1, 0, 1, 2, 3.5, 7)
    return [t[(5 * m + 2 * i) % 9] * 2.0 ** (m % 4) for m in range(rows) for i in range(k)]


def dataf_codes(n, k):
    return e4m3([float((3 * r + 4 * i) % 7 - 3) for r in range(n) for i in range(k)])


def dataf_block_checkpoint(folder, n=256, k=384):
    rows, columns = -(-n // 128), -(-k // 128)
    scales = f32([2.0 ** -(r + c) for r in range(rows) for c in range(columns)])
    tensors = {
        "layer.weight_scale_inv": ("F32", [rows, columns], scales),
        "layer.weight": ("F8_E4M3", [n, k], dataf_codes(n, k)),
    }
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return write_checkpoint(folder, config, tensors)


def dense_checkpoint(folder, n=160, k=144):
    values = [((i * 37) % 127 - 63) * 2.0 ** -(6 + i // k % 5) for i in range(n * k)]
    tensors = {
        "model.layers.0.mlp.up_proj.weight": ("BF16", [n, k], bf16(values)),
        "model.layers.0.mlp.down_proj.weight": ("BF16", [k, n], bf16(values)),
        "model.layers.0.input_layernorm.weight": ("BF16", [k], bf16([1.0] * k)),
        "model.embed_tokens.weight": ("BF16", [8, k], bf16([0.5] * (8 * k))),
    }
    write_checkpoint(folder, None, tensors)
    (Path(folder) / "tokenizer.json").write_text("{}")
    return Path(folder), values


class Case(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = Path(self._folder.name)

    def fails(self, code, *arguments, names=(), **options):
        """One line on standard error, with every name in it; the exit code."""
        got, out, err = run(*arguments, **options)
        self.assertIn(got, code if isinstance(code, tuple) else (code,), err)
        self.assertEqual(len(err.strip().splitlines()), 1, err)
        for name in names:
            self.assertIn(name, err)
        self.assertNotIn("internal error", err)
        return err, out

    def succeeds(self, *arguments, **options):
        code, out, err = run(*arguments, **options)
        self.assertEqual(code, 0, err)
        return out, err

    def as_json(self, *arguments, **options):
        out, err = self.succeeds(*arguments, "--json", **options)
        self.assertEqual(err, "")
        return json.loads(out)

    def multiply(self, checkpoint, layer, x, *arguments):
        """x: (dtype, shape, bytes). Gives y's dtype, shape and values."""
        write_safetensors(self.folder / "x.safetensors", {"x": x})
        files = ["--input", self.folder / "x.safetensors", "--output", self.folder / "y.safetensors"]
        out, err = self.succeeds("run", checkpoint, "--layer", layer, *files, *arguments)
        self.assertEqual(out, "")
        if "--kernel" not in arguments:
            self.assertRegex(err, r"\w+_\w+|reference")
        tensors = read_safetensors(self.folder / "y.safetensors")
        self.assertEqual(list(tensors), ["y"])
        dtype, shape, data = tensors["y"]
        return dtype, shape, decode(dtype, data)


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

    def test_a_full_standard_output_exits_with_4(self):
        for argument in ("devices", "--help", "--version"):
            with open("/dev/full", "w") as full:
                done = subprocess.run([BINARY, argument], stdout=full, stderr=subprocess.PIPE, text=True)
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
            for a, b in zip(y, expected):
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
        self.fails(3, "run", checkpoint, "--layer", self.LAYER, *files("z"), names=["z"])
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

    def test_verify_passes_what_is_sound(self):
        document = self.as_json("verify", self.checkpoint("s", scale=1.0))
        self.assertTrue(document["sound"])
        self.assertEqual(document["problems"], [])


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
                self.assertLessEqual(max(abs(a - b) for a, b in zip(got, values)), step, scheme)
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

    def test_a_quantized_source_is_refused(self):
        self.fails(3, "convert", data8_checkpoint(self.folder / "c"), self.folder / "out", "--scheme", "fp8",
                   names=["compressed-tensors"])


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

    def test_rows_go_to_a_file_too(self):
        file = self.folder / "rows.json"
        out, _ = self.succeeds("bench", "--scheme", "int8", "--shape", "1,64,64", "--output", file)
        self.assertIn("int8", out)
        document = json.loads(file.read_text())
        self.assertEqual(list(document["rows"][0]), self.FIELDS)
        self.assertGreaterEqual(document["peak_int8_ops"], 0)


if __name__ == "__main__":
    BINARY = sys.argv.pop(1)
    unittest.main()

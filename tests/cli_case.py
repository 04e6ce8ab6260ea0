"""What the tests of the scaledmm command share: calls of it, files made from bytes and JSON, and those read back.

Nothing of the library's own reader and writer is taken on trust. A test file sets BINARY and runs unittest's main.
"""

import json
import math
import os
import struct
import subprocess
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


def write_safetensors(path, tensors, metadata=None):
    """tensors: name -> (dtype, shape, bytes), written in the given order."""
    header, offset = {} if metadata is None else {"__metadata__": metadata}, 0
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


def data8_checkpoint(folder, n=96, k=320, layer="model.layers.0.mlp.up_proj", more=None):
    codes = bytes(((5 * r + 3 * i) % 255 - 127) & 0xFF for r in range(n) for i in range(k))
    tensors = {
        f"{layer}.weight_scale": ("F32", [n, 1], f32([2.0 ** -(r % 4) for r in range(n)])),
        f"{layer}.weight": ("I8", [n, k], codes),
        "lm_head.weight": ("BF16", [4, k], bf16([0.0] * (4 * k))),
        **(more or {}),
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

    def fails_as_json(self, code, *arguments, names=(), **options):
        """The same with --json: the line is an object. Gives its text and standard output."""
        err, out = self.fails(code, *arguments, "--json", names=names, **options)
        document = json.loads(err)
        self.assertEqual(list(document), ["error", "exit_code"])
        self.assertEqual(document["exit_code"], code)
        return document["error"], out

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

"""Checkpoint folders through Python: a small one is written here, as compressed-tensors and as fp8."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import scaledmm

N, K = 32, 64
Q, V, HEAD = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj", "lm_head"


def write_safetensors(path, tensors):
    """tensors: name -> (container's dtype, array)."""
    header, offset, data = {}, 0, b""
    for name, (dtype, array) in tensors.items():
        blob = array.tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        data += blob
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture(name="folder")
def make_folder(tmp_path):
    random = np.random.default_rng(0)
    tensors = {}
    for i, name in enumerate((Q, V)):
        codes, scale = scaledmm.quantize_weight(random.standard_normal((N, K)).astype(np.float32) * (i + 1), "int8")
        tensors[f"{name}.weight"] = ("I8", codes)
        tensors[f"{name}.weight_scale"] = ("F32", scale)
    tensors[f"{Q}.bias"] = ("BF16", random.standard_normal(N).astype(ml_dtypes.bfloat16))
    tensors[f"{HEAD}.weight"] = ("BF16", random.standard_normal((8, K)).astype(ml_dtypes.bfloat16))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    config = {
        "dtype": "bfloat16",
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "ignore": ["lm_head"],
            "config_groups": {"group_0": group},
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def inputs(dtype=np.float32):
    return np.random.default_rng(5).standard_normal((3, K)).astype(dtype)


def test_three_lines_run_a_layer(folder):
    layer = scaledmm.load(folder)[Q]
    y = layer(inputs())
    assert (y.shape, y.dtype) == ((3, N), np.float32)


def test_a_layer_takes_the_dtype_of_its_input(folder):
    layer = scaledmm.load(folder)[Q]
    x = inputs(ml_dtypes.bfloat16)
    assert layer(x).dtype == ml_dtypes.bfloat16
    assert np.array_equal(layer(x.astype(np.float32)).astype(ml_dtypes.bfloat16), layer(x))
    assert layer.linear().input_dtype == "bf16"
    assert layer.linear("f32") is layer.linear(np.float32)
    fixed = scaledmm.load(folder, dtype="f16", out_dtype="f32")[Q]
    assert fixed(inputs(np.float16)).dtype == np.float32
    with pytest.raises(ValueError, match="x is f32, the layer takes f16"):
        fixed(inputs())


def test_a_checkpoint_is_a_mapping_of_its_quantized_layers(folder):
    checkpoint = scaledmm.load(folder)
    assert list(checkpoint) == [Q, V]
    assert (len(checkpoint), Q in checkpoint, HEAD in checkpoint) == (2, True, False)
    assert [layer.name for layer in checkpoint.layers] == [HEAD, Q, V]
    assert checkpoint.layer(Q).config.weight_shape == (N, K)
    assert (checkpoint.layer(Q).scheme, checkpoint.layer(HEAD).config) == ("int8", None)
    assert checkpoint.model_dtype == "bf16"
    assert checkpoint.verify() == []
    assert checkpoint[Q].explain().kernel == checkpoint[Q].linear().kernel
    assert "2 quantized layers" in repr(checkpoint)
    with pytest.raises(scaledmm.UnsupportedError, match="lm_head is dense"):
        checkpoint[HEAD]
    with pytest.raises(scaledmm.CheckpointError, match="nearest.*q_proj"):
        checkpoint["q_proj"]


def test_fused_layers_stand_side_by_side(folder):
    checkpoint = scaledmm.load(folder)
    x = inputs()
    assert np.array_equal(checkpoint.fused([Q, V])(x), np.concatenate([checkpoint[Q](x), checkpoint[V](x)], 1))


def test_tensors_are_mapped_and_outlive_the_checkpoint(folder):
    checkpoint = scaledmm.load(folder)
    tensor = checkpoint.tensor(f"{Q}.weight")
    assert (tensor.dtype, tensor.shape, tensor.read_only) == ("int8", (N, K), True)
    assert tensor.data_ptr == checkpoint.tensor(f"{Q}.weight").data_ptr
    expected = checkpoint[Q].linear().unpack().numpy()
    del checkpoint
    assert np.array_equal(tensor.numpy(), expected)
    stored = {t.name: t for t in scaledmm.load(folder).tensors}[f"{Q}.bias"]
    assert (stored.stored_dtype, stored.dtype, stored.shape, stored.nbytes) == ("BF16", "bf16", (N,), 2 * N)


def test_a_chosen_kernel_runs_every_layer(folder):
    layer = scaledmm.load(folder, kernel="reference")[Q]
    assert layer.linear().kernel == "reference"
    assert np.array_equal(layer(inputs()), scaledmm.load(folder)[Q](inputs()))


def test_broken_folders_are_named(folder, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        scaledmm.load(tmp_path / "nowhere")
    (folder / "model.safetensors").write_bytes(b"\x09\0\0\0\0\0\0\0{broken}}")
    with pytest.raises(scaledmm.CheckpointError, match="model.safetensors"):
        scaledmm.load(folder)


def test_the_example_plans_and_times_a_folder(folder):
    example = Path(__file__).parents[2] / "examples/python/plan_checkpoint.py"
    run = subprocess.run([sys.executable, str(example), str(folder)], check=True, capture_output=True, text=True)
    assert [line.split()[0] for line in run.stdout.splitlines()[1:]] == [Q, V]

"""The operators: their fake kernels, compilation, gradients."""

import subprocess
import sys

import pytest
import torch
from torch.library import opcheck

import scaledmm
import scaledmm.torch as scaledmm_torch

ops = torch.ops.scaledmm


@pytest.fixture(name="layer")
def make_layer():
    torch.manual_seed(0)
    codes, scale = scaledmm.quantize_weight(torch.randn(32, 64), "int8")
    return scaledmm.Linear(scaledmm.layer_config("int8", 32, 64, input_dtype="f32"), codes, scale, bias=torch.randn(32))


def test_operators_pass_opcheck(layer):
    x, handle = torch.randn(3, 2, 64), scaledmm_torch.handle(layer)
    opcheck(ops.linear.default, (x, handle, 32, torch.float32))
    opcheck(ops.scaled_int8_quant.default, (x,))
    opcheck(ops.scaled_int8_azp_quant.default, (x,))
    for group in ((-1, -1), (1, -1), (1, 24)):
        opcheck(ops.scaled_fp8_quant.default, (x, *group))
    q, scale = ops.scaled_int8_quant(x)
    opcheck(ops.linear_quantized.default, (q, scale, None, handle, 32, torch.float32))
    assert torch.equal(ops.linear_quantized(q, scale, None, handle, 32, torch.float32), layer(x))
    assert torch.equal(scaledmm_torch.linear(x, layer), layer(x))


def test_a_model_compiles_as_one_graph_for_every_batch():
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Linear(96, 16)).eval()
    scaledmm_torch.quantize_model_(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (4, 7, 1, 33):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)


def test_a_graph_serves_another_layer_of_the_same_shape(layer):
    """A layer is an input of the graph: nothing of the first one is compiled into it."""

    @torch.compile(fullgraph=True)
    def call(x, handle):
        return ops.linear(x, handle, 32, torch.float32) * 2

    codes, scale = scaledmm.quantize_weight(torch.randn(32, 64), "int8")
    other = scaledmm.Linear(layer.config, codes, scale)
    x = torch.randn(2, 64)
    for each in (layer, other):
        assert torch.equal(call(x, scaledmm_torch.handle(each)), each(x) * 2)


def test_an_exported_program_runs_in_another_process(layer, tmp_path):
    class Model(torch.nn.Module):
        def forward(self, x, handle):
            return ops.linear(x, handle, 32, torch.float32)

    rows = torch.export.Dim("rows", min=1, max=64)
    x = torch.randn(3, 64)
    program = torch.export.export(Model(), (x, scaledmm_torch.handle(layer)), dynamic_shapes=({0: rows}, None))
    torch.export.save(program, tmp_path / "layer.pt2")
    script = f"""
import torch, scaledmm, scaledmm.torch
program = torch.export.load({str(tmp_path / "layer.pt2")!r}).module()
codes, scale = scaledmm.quantize_weight(torch.ones(32, 64), "int8")
layer = scaledmm.Linear(scaledmm.layer_config("int8", 32, 64, input_dtype="f32"), codes, scale)
x = torch.randn(5, 64)
assert torch.equal(program(x, scaledmm.torch.handle(layer)), layer(x))
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_gradients_are_refused_in_the_backward_pass(layer):
    x = torch.randn(2, 64, requires_grad=True)
    y = scaledmm_torch.linear(x, layer)
    assert torch.equal(y, layer(x.detach()))
    with pytest.raises(RuntimeError, match="they have no gradient"):
        y.sum().backward()

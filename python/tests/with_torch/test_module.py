"""ScaledMMLinear and quantize_model_ on small models; a real one in test_model.py."""

import copy
import pickle

import pytest
import torch
from torch import nn

from scaledmm import UnsupportedError
from scaledmm.torch import ScaledMMLinear, quantize_model_

SCHEMES = ["int8", "fp8_w8a8", "fp8_w8a16", "int8_block", "fp8_w8a8_block", "fp8_w8a16_block"]


class Tied(nn.Module):
    """What language models look like: an embedding whose weight the head shares."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 64)
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64, bias=False)
        self.again = self.up
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        hidden = self.embed(tokens)
        hidden = hidden + self.down(torch.relu(self.up(hidden) + self.again(hidden)))
        return self.head(hidden)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantized_layer_stands_in_for_a_dense_one(scheme):
    torch.manual_seed(0)
    dense = nn.Linear(256, 96)
    layer = ScaledMMLinear.from_linear(dense, scheme)
    x = torch.randn(2, 7, 256)
    with torch.no_grad():
        expected, y = dense(x), layer(x)
    assert torch.nn.functional.cosine_similarity(y.flatten(), expected.flatten(), dim=0) > 0.998
    assert scheme in repr(layer)
    assert layer.linear.kernel in repr(layer)


def test_replacing_leaves_shared_weights_and_names_what_it_did():
    model = Tied().eval()
    dense = copy.deepcopy(model)
    replaced = quantize_model_(model, "fp8_w8a16")
    assert [layer.name for layer in replaced] == ["up", "down", "again"]
    assert model.again is model.up
    assert type(model.head) is nn.Linear
    tokens = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        cosine = torch.nn.functional.cosine_similarity(model(tokens).flatten(), dense(tokens).flatten(), dim=0)
    assert cosine > 0.999
    assert [layer.name for layer in quantize_model_(Tied(), skip=[".*down"])] == ["up", "again"]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_state_dict_loads_into_another_quantized_model(scheme):
    model, other = Tied().eval(), Tied().eval()
    for parameter in other.parameters():
        nn.init.normal_(parameter, std=0.02)
    quantize_model_(model, scheme)
    quantize_model_(other, scheme)
    state = model.state_dict()
    assert state["up.weight_scale"].dtype == torch.float32
    assert other.load_state_dict(state) == ([], [])
    tokens = torch.arange(20)
    with torch.no_grad():
        assert torch.equal(other(tokens), model(tokens))
    assert {key: value.dtype for key, value in other.state_dict().items()} == {k: v.dtype for k, v in state.items()}


def test_the_dense_model_s_state_dict_loads_and_is_quantized():
    model, other = Tied().eval(), Tied().eval()
    dense = copy.deepcopy(model.state_dict())
    for parameter in other.parameters():
        nn.init.normal_(parameter, std=0.02)
    quantize_model_(model)
    quantize_model_(other)
    assert other.load_state_dict(dense) == ([], [])
    tokens = torch.arange(20)
    with torch.no_grad():
        assert torch.equal(other(tokens), model(tokens))


def test_a_wrong_state_dict_is_an_error_and_changes_nothing():
    layer = ScaledMMLinear(torch.randn(8, 16), torch.zeros(8))
    x = torch.randn(2, 16)
    before = layer(x)
    with pytest.raises(RuntimeError, match=r"weight has shape \[9, 16\], expected \[8, 16\]"):
        layer.load_state_dict({"weight": torch.randn(9, 16), "bias": torch.zeros(8)})
    with pytest.raises(RuntimeError, match="weight_scale"):
        layer.load_state_dict({"weight": torch.zeros(8, 16, dtype=torch.int8), "bias": torch.zeros(8)})
    assert torch.equal(layer(x), before)


def test_a_quantized_model_can_be_copied_and_pickled():
    model = Tied().eval()
    quantize_model_(model, "int8_block", block=(32, 32))
    tokens = torch.arange(20)
    with torch.no_grad():
        expected = model(tokens)
        assert torch.equal(copy.deepcopy(model)(tokens), expected)
        assert torch.equal(pickle.loads(pickle.dumps(model))(tokens), expected)


def test_what_cannot_run_says_why():
    with pytest.raises(UnsupportedError, match="int8_w8a8_avx2 was forced"):
        ScaledMMLinear(torch.randn(8, 16), scheme="fp8_w8a16", kernel="int8_w8a8_avx2")
    with pytest.raises(ValueError, match="must be finite"):
        ScaledMMLinear(torch.full((8, 16), torch.nan))

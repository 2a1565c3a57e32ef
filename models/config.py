"""`ModelConfig`: the geometry and the mathematics of one model, whatever file it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError
from .rope import RopeConfig

__all__ = ["CHECKPOINT_DTYPES", "ConfigError", "ModelConfig"]

CHECKPOINT_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class ModelConfig:
    """One decoder-only model with RMSNorm, rotary attention and a SwiGLU MLP.

    Refuses impossible geometry on construction, naming the field, its value and the rule.
    """

    family: str  # "llama", "qwen2" or "mistral"
    name: str  # for people: folder, file or repository name
    vocab_size: int  # V
    hidden_size: int
    intermediate_size: int
    num_layers: int  # L
    num_heads: int  # H
    num_kv_heads: int  # K
    head_dim: int  # D
    rms_norm_eps: float
    max_positions: int  # tokens; longest context the checkpoint was made for
    rope: RopeConfig
    tie_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    windows: tuple[int, ...]  # [L] newest tokens a row sees, its own included; -1 = all
    bos_id: int | None
    eos_ids: tuple[int, ...]  # every id that ends a generation
    checkpoint_dtype: str  # dtype the weights are stored in
    notes: tuple[str, ...] = ()  # keys that were seen and have no effect, by name

    def __post_init__(self) -> None:
        problems = self.problems()
        if problems:
            raise ConfigError("; ".join(problems))

    def problems(self) -> list[str]:
        """Return every rule that the values break, as text; empty for a sound configuration."""
        sizes = {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "max_positions": self.max_positions,
        }
        found = [f"{k} is {v}; allowed is at least 1" for k, v in sizes.items() if v < 1]
        if found:
            return found
        if self.num_heads % self.num_kv_heads:
            found.append(
                f"num_key_value_heads is {self.num_kv_heads}; it must divide num_attention_heads, "
                f"{self.num_heads}"
            )
        if self.head_dim % 2:
            found.append(f"head_dim is {self.head_dim}; rotary embedding needs an even number")
        if self.rope.dim != self.head_dim:
            found.append(
                f"rotary dimensions are {self.rope.dim}; allowed is head_dim, {self.head_dim} "
                "(partial rotation is not supported)"
            )
        if not 0.0 < self.rms_norm_eps < 1.0:
            found.append(f"rms_norm_eps is {self.rms_norm_eps}; allowed is between 0 and 1")
        if self.checkpoint_dtype not in CHECKPOINT_DTYPES:
            allowed = ", ".join(CHECKPOINT_DTYPES)
            found.append(f"torch_dtype is {self.checkpoint_dtype!r}; allowed are {allowed}")
        return found + self._window_problems() + self._token_problems()

    def _window_problems(self) -> list[str]:
        if len(self.windows) != self.num_layers:
            return [f"{len(self.windows)} attention windows for {self.num_layers} layers"]
        wrong = sorted({w for w in self.windows if w != -1 and w < 1})
        return [f"sliding_window is {w}; allowed is at least 1, or -1 for none" for w in wrong]

    def _token_problems(self) -> list[str]:
        ids = {f"eos_token_id {i}": i for i in self.eos_ids}
        if self.bos_id is not None:
            ids[f"bos_token_id {self.bos_id}"] = self.bos_id
        return [
            f"{text} is outside the vocabulary; allowed is 0 to {self.vocab_size - 1}"
            for text, token in ids.items()
            if not 0 <= token < self.vocab_size
        ]

    @classmethod
    def from_hf(
        cls,
        values: Mapping[str, Any],
        generation: Mapping[str, Any] | None = None,
        name: str = "",
    ) -> ModelConfig:
        """Read a Hugging Face `config.json`, and the end tokens of `generation_config.json`.

        Raises ConfigError for any key that changes the mathematics in a way not supported.
        """
        from .hf_config import read_hf_config

        return read_hf_config(values, generation, name)

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        frequency_factors: tuple[float, ...] = (),
        name: str = "",
    ) -> ModelConfig:
        """Read GGUF metadata; `shapes` are the file's tensors (GGUF names, row-major shapes).

        `frequency_factors` is the content of tensor `rope_freqs.weight`, empty where absent.
        Raises ConfigError as `from_hf` does.
        """
        from .gguf_config import read_gguf_config

        return read_gguf_config(metadata, shapes, frequency_factors, name)

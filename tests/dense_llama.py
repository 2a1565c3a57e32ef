"""An independent LLaMA: one sequence, whole matrices, a full mask, float64, numpy alone.

No paging, no packing, no operator of the product: what graphs and engines are compared with.
Plain rotary embedding only (no scaling).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pagedom.models.config import ModelConfig


def dense_logits(
    config: ModelConfig, weights: Mapping[str, np.ndarray], ids: list[int]
) -> np.ndarray:
    """Return the logits [len(ids), V] of one sequence; weights by canonical name."""
    model = _Dense(config, weights)
    embedding = weights["model.embed_tokens.weight"].astype(np.float64)
    x = embedding[ids]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        x = x + model.attention(model.norm(x, f"{prefix}.input_layernorm"), layer)
        x = x + model.mlp(model.norm(x, f"{prefix}.post_attention_layernorm"), prefix)
    head = weights.get("lm_head.weight", embedding)
    return model.norm(x, "model.norm") @ head.astype(np.float64).T


@dataclass(frozen=True)
class _Dense:
    config: ModelConfig
    weights: Mapping[str, np.ndarray]

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        y = x @ self.weights[f"{name}.weight"].astype(np.float64).T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        size = np.sqrt((x**2).mean(-1, keepdims=True) + self.config.rms_norm_eps)
        return x / size * self.weights[f"{name}.weight"]

    def rotate(self, x: np.ndarray) -> np.ndarray:
        """Turn [n, heads * D] by position, pairs as complex numbers; returns [n, heads, D]."""
        half = self.config.head_dim // 2
        x = x.reshape(len(x), -1, 2 * half)
        frequency = self.config.rope.theta ** (-np.arange(half) / half)
        turn = np.exp(1j * np.outer(np.arange(len(x)), frequency))[:, None]
        spun = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([spun.real, spun.imag], axis=-1)

    def attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        config, prefix, count = self.config, f"model.layers.{layer}.self_attn", len(x)
        q, k, v = (self.linear(x, f"{prefix}.{name}_proj") for name in "qkv")
        repeat = config.num_heads // config.num_kv_heads
        k = np.repeat(self.rotate(k), repeat, axis=1)
        v = np.repeat(v.reshape(count, -1, config.head_dim), repeat, axis=1)
        scores = np.einsum("ihd,jhd->hij", self.rotate(q), k) / np.sqrt(config.head_dim)
        age = np.arange(count)[:, None] - np.arange(count)[None]
        hidden = age < 0
        if config.windows[layer] > 0:
            hidden |= age >= config.windows[layer]
        weights = np.exp(np.where(hidden, -np.inf, scores))
        mixed = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v)
        return self.linear(mixed.reshape(count, -1), f"{prefix}.o_proj")

    def mlp(self, x: np.ndarray, prefix: str) -> np.ndarray:
        gate, up = (self.linear(x, f"{prefix}.mlp.{name}_proj") for name in ("gate", "up"))
        return self.linear(gate / (1 + np.exp(-gate)) * up, f"{prefix}.mlp.down_proj")

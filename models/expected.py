"""The tensors a configuration needs: canonical names and shapes."""

from __future__ import annotations

from .config import ModelConfig

EMBEDDINGS = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every tensor that the decoder reads, in the order of the graph.

    `lm_head.weight` is absent under tied embeddings: the embedding matrix is the head.
    """
    found: dict[str, tuple[int, ...]] = {EMBEDDINGS: (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        found.update(_layer(config, f"model.layers.{layer}."))
    found["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_embeddings:
        found[LM_HEAD] = (config.vocab_size, config.hidden_size)
    return found


def _layer(config: ModelConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows = config.num_heads * config.head_dim
    kv_rows = config.num_kv_heads * config.head_dim
    found: dict[str, tuple[int, ...]] = {prefix + "input_layernorm.weight": (hidden,)}
    matrices = (
        ("self_attn.q_proj", q_rows, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv_rows, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv_rows, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, q_rows, config.o_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    )
    for name, rows, columns, has_bias in matrices:
        found[f"{prefix}{name}.weight"] = (rows, columns)
        if has_bias:
            found[f"{prefix}{name}.bias"] = (rows,)
    found[prefix + "post_attention_layernorm.weight"] = (hidden,)
    return found

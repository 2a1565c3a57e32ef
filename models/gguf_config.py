"""GGUF metadata to `ModelConfig`.

Key names are those of ggml's gguf.md and of `gguf.constants`. Keys of the architecture that change
the mathematics are neutral or refused, as in `hf_config`; other unknown ones become notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .config import ModelConfig
from .config_keys import MAX_LAYERS, KeyReader, shown
from .errors import ConfigError
from .families import FAMILIES, Family, families_by_arch, family_by_type
from .rope import RopeConfig, yarn_mscale

# key below "<arch>." -> values that leave the mathematics as it is.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "use_parallel_residual": (False,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "attention.scale": (0,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.causal": (True,),
    "attention.layer_norm_epsilon": (),
    "attention.q_lora_rank": (0,),
    "attention.kv_lora_rank": (0,),
    "rope.dimension_sections": (),
    "rope.scaling.yarn_log_multiplier": (0,),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "interleave_moe_layer_step": (0,),
}

_HARMLESS = frozenset({"tensor_data_layout", "rope.scaling.finetuned"})
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_config(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    frequency_factors: tuple[float, ...],
    name: str,
) -> ModelConfig:
    """Read one model's metadata; raises ConfigError naming key, value and what is allowed."""
    arch = _arch(metadata, shapes)
    own = {k.removeprefix(arch + "."): v for k, v in metadata.items() if k.startswith(arch + ".")}
    keys = KeyReader(own, f"GGUF metadata {arch}")
    _refuse_unsupported(keys)
    num_layers = keys.integer("block_count", maximum=MAX_LAYERS)
    num_heads = _same_everywhere(keys, "attention.head_count", None)
    head_dim = _head_dim(keys, num_heads)
    window = keys.integer("attention.sliding_window", None, minimum=0) or -1
    family = _family(arch, window)
    vocab_size = _vocab_size(keys, metadata, shapes)
    fields: dict[str, Any] = {
        "family": family.model_type,
        "name": name or str(metadata.get("general.name") or arch),
        "vocab_size": vocab_size,
        "hidden_size": keys.integer("embedding_length"),
        "intermediate_size": _same_everywhere(keys, "feed_forward_length", None),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": _same_everywhere(keys, "attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": _decimal(keys.number("attention.layer_norm_rms_epsilon")),
        "max_positions": keys.integer("context_length"),
        "rope": _rope(keys, head_dim, frequency_factors),
        "tie_embeddings": "output.weight" not in shapes,
        "qkv_bias": _has_bias(family, shapes),
        "o_bias": "blk.0.attn_output.bias" in shapes,
        "mlp_bias": "blk.0.ffn_down.bias" in shapes,
        "windows": (window,) * num_layers,
        "bos_id": _token_id(metadata, "bos_token_id"),
        "eos_ids": _eos_ids(metadata),
        "checkpoint_dtype": "float32",  # the checkpoint knows better; see `open_checkpoint`
    }
    notes = keys.notes + [
        f"{keys.source}: {key} is {shown(own[key])}; not known here, it has no effect"
        for key in keys.unread()
        if key not in _HARMLESS
    ]
    return ModelConfig(**fields, notes=tuple(notes))


def _arch(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str:
    allowed = ", ".join(dict.fromkeys(f.gguf_arch for f in FAMILIES))
    arch = metadata.get("general.architecture")
    if not families_by_arch(arch):
        given = "is missing" if arch is None else f"is {shown(arch)}"
        raise ConfigError(f"GGUF metadata: general.architecture {given}; allowed are {allowed}")
    if metadata.get("split.count", 1) not in (0, 1):
        raise ConfigError(
            f"GGUF metadata: split.count is {metadata['split.count']}; one file is due. Join the "
            "parts first (llama.cpp: gguf-split --merge)"
        )
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise ConfigError(f"GGUF metadata: general.type is {shown(kind)}; allowed is 'model'")
    if "token_embd.weight" not in shapes:
        what = f"{len(shapes)} tensors but no token_embd.weight" if shapes else "no tensors"
        raise ConfigError(
            f"GGUF file: has {what}; it is a vocabulary or a part, not a language model"
        )
    return str(arch)


def _refuse_unsupported(keys: KeyReader) -> None:
    found = keys.refusals(_NEUTRAL)
    if found:
        raise ConfigError("\n".join(found))


def _family(arch: str, window: int) -> Family:
    # llama.cpp stores Mistral as "llama"; the window is what tells them apart.
    mistral = family_by_type("mistral")
    if window != -1 and mistral is not None and mistral.gguf_arch == arch:
        return mistral
    return families_by_arch(arch)[0]


def _same_everywhere(keys: KeyReader, key: str, default: int | None) -> int:
    value = keys.take(key, default)
    if isinstance(value, list):  # one number a layer
        if not value or len(set(value)) != 1:
            raise keys.error(key, value, "layers of different size are not supported")
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise keys.error(key, value, "it is required: an integer of at least 1")
    return value


def _head_dim(keys: KeyReader, num_heads: int) -> int:
    hidden_size = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", None)
    if head_dim is None:
        if hidden_size % num_heads:
            rule = f"without attention.key_length it must be a multiple of {num_heads} heads"
            raise keys.error("embedding_length", hidden_size, rule)
        head_dim = hidden_size // num_heads
    value_dim = keys.integer("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise keys.error("attention.value_length", value_dim, f"allowed is the key's, {head_dim}")
    rotated = keys.integer("rope.dimension_count", head_dim)
    if rotated != head_dim:
        rule = f"allowed is the head's size, {head_dim} (partial rotation is not supported)"
        raise keys.error("rope.dimension_count", rotated, rule)
    return int(head_dim)


def _vocab_size(
    keys: KeyReader, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> int:
    rows = shapes["token_embd.weight"][0] if shapes["token_embd.weight"] else 0
    tokens = metadata.get("tokenizer.ggml.tokens")
    declared = keys.integer("vocab_size", rows)
    if declared != rows:
        raise keys.error("vocab_size", declared, f"token_embd.weight has {rows} rows")
    if isinstance(tokens, list) and len(tokens) > rows:
        raise keys.error(
            "vocab_size", rows, f"tokenizer.ggml.tokens has more entries: {len(tokens)}"
        )
    return rows


def _rope(keys: KeyReader, dim: int, factors: tuple[float, ...]) -> RopeConfig:
    theta = _decimal(keys.number("rope.freq_base", 10000.0, above=1.0))
    kind = keys.take("rope.scaling.type", "none")
    old_linear = keys.number("rope.scale_linear", 1.0)
    factor = _decimal(keys.number("rope.scaling.factor", old_linear))
    original = keys.integer("rope.scaling.original_context_length", keys.take("context_length"))
    attn = keys.number("rope.scaling.attn_factor", 1.0)
    fast = keys.number("rope.scaling.yarn_beta_fast", 32.0)
    slow = keys.number("rope.scaling.yarn_beta_slow", 1.0)
    if kind not in ("none", "linear", "yarn"):
        raise keys.error("rope.scaling.type", kind, "allowed are none, linear, yarn")
    if kind == "none" and old_linear != 1.0:
        kind = "linear"  # files from before the key rope.scaling.type
    if factors:
        # Llama 3.1 and later: the converter bakes its rule into one divisor a frequency.
        if kind != "none":
            raise keys.error("rope.scaling.type", kind, "it contradicts tensor rope_freqs.weight")
        return RopeConfig(kind="factors", theta=theta, dim=dim, frequency_factors=factors)
    if kind == "none":
        return RopeConfig(theta=theta, dim=dim)
    if kind == "linear":
        return RopeConfig(kind="linear", theta=theta, dim=dim, factor=factor)
    return RopeConfig(
        kind="yarn",
        theta=theta,
        dim=dim,
        factor=factor,
        original_max_positions=original,
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=attn * yarn_mscale(factor),
    )


def _decimal(value: float) -> float:
    # Metadata floats are float32: 1e-5 comes as 9.99999975e-06. The shortest decimal that is the
    # same float32 is what the checkpoint's config.json said.
    return float(str(np.float32(value)))


def _has_bias(family: Family, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    if family.gguf_qkv_bias is not None:
        return family.gguf_qkv_bias
    return "blk.0.attn_q.bias" in shapes


def _token_id(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(
            f"GGUF metadata: tokenizer.ggml.{key} is {shown(value)}; an integer is due"
        )
    return value


def _eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    found = [_token_id(metadata, key) for key in _END_KEYS]
    return tuple(dict.fromkeys(i for i in found if i is not None))

"""Hugging Face `config.json` to `ModelConfig`.

Every key is in one of four groups: read here or by the family; *neutral* (it changes the
mathematics, so only the value that changes nothing is allowed); *harmless* (training,
bookkeeping, sampling defaults); or unknown, which becomes a note with the key's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import ModelConfig
from .config_keys import MAX_LAYERS, KeyReader, shown
from .errors import ConfigError
from .families import FAMILIES, Family, family_by_type
from .rope import RopeConfig

# key -> values that leave the mathematics of a LLaMA-style decoder as it is.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # softcaps, clips, multipliers
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "clip_qkv": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "lm_head_multiplier": (1,),
    "embedding_multiplier": (1,),
    "attention_multiplier": (),
    "residual_multiplier": (1,),
    "scale_emb": (1,),
    "scale_depth": (),
    "dim_model_base": (),
    "mup_denominator": (1,),
    # norms
    "qk_layernorm": (False,),
    "use_qk_norm": (False,),
    "qk_norm": (False,),
    "q_norm": (False,),
    "k_norm": (False,),
    "layer_norm_eps": (),
    "layer_norm_epsilon": (),
    "use_parallel_residual": (False,),
    "parallel_attn": (False,),
    # positions
    "rope_interleaved": (False,),
    "interleaved_rope": (False,),
    "use_mrope": (False,),
    "partial_rotary_factor": (1,),
    "rotary_pct": (1,),
    "rotary_dim": (),
    "rope_ratio": (1,),
    "rope_local_base_freq": (),
    "no_rope_layers": ([],),
    "no_rope_layer_interval": (0,),
    "alibi": (False,),
    "attn_temperature_tuning": (False, 0),
    # projections
    "pretraining_tp": (1,),
    "use_bias": (False,),
    "bias": (False,),
    "qkv_bias": (False,),
    "o_bias": (False,),
    "lm_head_bias": (False,),
    # experts, extra heads, adapters
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "n_routed_experts": (0,),
    "num_experts_per_tok": (0,),
    "moe_intermediate_size": (0,),
    "num_nextn_predict_layers": (0,),
    "kv_lora_rank": (0,),
    "q_lora_rank": (0,),
    "cross_attention_layers": ([],),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({},),
    # weights that are not what they seem
    "quantization_config": ({},),
    "compression_config": ({},),
    "text_config": (),
    "vision_config": (),
    "attention_chunk_size": (),
    "attention_value_scale": (1,),
    "hidden_act_param": (),
}

# fmt: off
_HARMLESS = frozenset(
    [
        "_name_or_path", "_commit_hash", "_attn_implementation", "_attn_implementation_autoset",
        "transformers_version", "tokenizer_class", "prefix", "name_or_path", "problem_type",
        "finetuning_task", "task_specific_params", "id2label", "label2id", "torchscript",
        "return_dict", "use_cache", "use_bfloat16", "tf_legacy_loss", "output_attentions",
        "output_hidden_states", "output_scores", "is_decoder", "return_dict_in_generate",
        "gradient_checkpointing", "chunk_size_feed_forward", "cross_attention_hidden_size",
        "initializer_range", "initializer_factor", "attention_dropout", "attn_pdrop",
        "embd_pdrop", "resid_pdrop", "resid_dropout", "hidden_dropout", "embedding_dropout",
        "dropout", "classifier_dropout", "pad_token_id", "unk_token_id", "sep_token_id",
        "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "do_sample",
        "temperature", "top_k", "top_p", "typical_p", "num_beams", "num_beam_groups",
        "num_return_sequences", "diversity_penalty", "repetition_penalty", "length_penalty",
        "encoder_no_repeat_ngram_size", "no_repeat_ngram_size", "bad_words_ids",
        "suppress_tokens", "begin_suppress_tokens", "remove_invalid_values",
        "exponential_decay_length_penalty", "early_stopping", "min_length", "max_length",
        "is_llama_config", "transformers.js_config",
    ]
)
# fmt: on

_DTYPE_KEYS = ("dtype", "torch_dtype")  # the new spelling first


def read_hf_config(
    values: Mapping[str, Any], generation: Mapping[str, Any] | None, name: str
) -> ModelConfig:
    """Read one configuration; raises ConfigError naming file, key, value and what is allowed."""
    keys = KeyReader(values, "config.json")
    family = _family(keys)
    _refuse_unsupported(keys)
    num_layers = keys.integer("num_hidden_layers", maximum=MAX_LAYERS)
    num_heads = keys.integer("num_attention_heads")
    hidden_size = keys.integer("hidden_size")
    head_dim = _head_dim(keys, hidden_size, num_heads)
    max_positions = keys.integer("max_position_embeddings")
    traits = family.traits(keys, num_layers)
    bos_id, eos_ids = _token_ids(keys, family, generation)
    fields: dict[str, Any] = {
        "family": family.model_type,
        "name": name or str(values.get("_name_or_path") or family.model_type),
        "vocab_size": keys.integer("vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": keys.integer("intermediate_size"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": _num_kv_heads(keys, family, num_heads),
        "head_dim": head_dim,
        "rms_norm_eps": keys.number("rms_norm_eps", 1e-6),  # the default of all three families
        "max_positions": max_positions,
        "rope": _rope(keys, head_dim, max_positions),
        "tie_embeddings": keys.flag("tie_word_embeddings", False),
        "qkv_bias": traits.qkv_bias,
        "o_bias": traits.o_bias,
        "mlp_bias": traits.mlp_bias,
        "windows": traits.windows,
        "bos_id": bos_id,
        "eos_ids": eos_ids,
        "checkpoint_dtype": _dtype(keys),
    }
    notes = keys.notes + [
        f"config.json: {key} is {shown(values[key])}; not known here, it has no effect"
        for key in keys.unread()
        if key not in _HARMLESS and values[key] is not None
    ]
    return ModelConfig(**fields, notes=tuple(notes))


def _family(keys: KeyReader) -> Family:
    allowed = ", ".join(f.model_type for f in FAMILIES)
    model_type = keys.take("model_type")
    architectures = keys.take("architectures", [])
    if model_type is None:
        hint = f" (architectures is {shown(architectures)})" if architectures else ""
        raise keys.error("model_type", None, f"allowed are {allowed}{hint}")
    family = family_by_type(model_type)
    if family is None:
        raise keys.error("model_type", model_type, f"allowed are {allowed}")
    if not isinstance(architectures, list):
        raise keys.error("architectures", architectures, "allowed is a list of class names")
    if architectures and not any(a in family.architectures for a in architectures):
        rule = f"for model_type {model_type} allowed is {', '.join(family.architectures)}"
        raise keys.error("architectures", architectures, rule)
    return family


def _refuse_unsupported(keys: KeyReader) -> None:
    found = keys.refusals(_NEUTRAL)
    for key in ("hidden_act", "hidden_activation"):
        value = keys.take(key, "silu")
        if value not in ("silu", "swish"):  # two names of one function
            found.append(str(keys.error(key, value, "not supported, allowed is 'silu'")))
    if found:
        raise ConfigError("\n".join(found))


def _head_dim(keys: KeyReader, hidden_size: int, num_heads: int) -> int:
    head_dim = keys.integer("head_dim", None)
    if head_dim is not None:
        return int(head_dim)  # Mistral Nemo: 128 where hidden_size / heads is 160
    if hidden_size % num_heads:
        rule = f"without head_dim it must be a multiple of num_attention_heads, {num_heads}"
        raise keys.error("hidden_size", hidden_size, rule)
    return hidden_size // num_heads


def _num_kv_heads(keys: KeyReader, family: Family, num_heads: int) -> int:
    key = "num_key_value_heads"
    if not keys.has(key) and not family.kv_heads_optional:
        # The library's own default is the number of its first checkpoint (32 or 8), which is
        # right by accident only.
        raise keys.error(key, None, f"it is required for model_type {family.model_type}")
    return int(keys.integer(key, num_heads))


def _rope(keys: KeyReader, head_dim: int, max_positions: int) -> RopeConfig:
    theta = keys.number("rope_theta", 10000.0, above=1.0)
    old, new = keys.take("rope_scaling"), keys.take("rope_parameters")
    for key, value in (("rope_scaling", old), ("rope_parameters", new)):
        if value is not None and not isinstance(value, Mapping):
            raise keys.error(key, value, "allowed is an object or null")
    if new and any(isinstance(v, Mapping) for v in new.values()):
        raise keys.error("rope_parameters", new, "one rule for all layers is supported")
    ropes = [
        RopeConfig.from_hf(value, theta, head_dim, max_positions) for value in (old, new) if value
    ]
    if len(ropes) == 2 and ropes[0] != ropes[1]:
        raise keys.error("rope_scaling", old, f"it contradicts rope_parameters, {shown(new)}")
    if keys.has("rope_theta") and any(r.theta != theta for r in ropes):
        raise keys.error("rope_theta", theta, f"it contradicts rope_parameters, {shown(new)}")
    return ropes[0] if ropes else RopeConfig(theta=theta, dim=head_dim)


def _token_ids(
    keys: KeyReader, family: Family, generation: Mapping[str, Any] | None
) -> tuple[int | None, tuple[int, ...]]:
    own_bos = _id_list(keys, "bos_token_id")
    own_eos = _id_list(keys, "eos_token_id")
    more = KeyReader(generation or {}, "generation_config.json")
    other_bos, other_eos = _id_list(more, "bos_token_id"), _id_list(more, "eos_token_id")
    if not keys.has("bos_token_id") and not other_bos and family.default_bos is not None:
        own_bos = (family.default_bos,)
    eos = tuple(dict.fromkeys(own_eos + other_eos))  # stop at the ids of both files
    if not keys.has("eos_token_id") and not eos:
        eos = family.default_eos
    if not eos:
        keys.notes.append("no eos_token_id: a generation ends at max_tokens or a stop string only")
    bos = own_bos or other_bos
    return (bos[0] if bos else None), eos


def _id_list(keys: KeyReader, key: str) -> tuple[int, ...]:
    value = keys.take(key, [])
    ids = value if isinstance(value, list) else [value]
    if any(isinstance(i, bool) or not isinstance(i, int) for i in ids):
        raise keys.error(key, value, "allowed is an integer or a list of integers")
    return tuple(ids)


def _dtype(keys: KeyReader) -> str:
    found = [str(keys.take(k)) for k in _DTYPE_KEYS if keys.take(k) is not None]
    return found[0].removeprefix("torch.") if found else "float32"

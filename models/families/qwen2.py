"""Qwen 1.5, Qwen 2 and Qwen 2.5: LLaMA with biases on q, k and v.

Source of the rules: `Qwen2Config` and `modeling_qwen2.py` of transformers. The biases are part of
the architecture: no key switches them. A window is in force only with `use_sliding_window`,
and only for layers from `max_window_layers` on.
"""

from __future__ import annotations

from ..config_keys import KeyReader
from .family import Family, Traits, full_windows, layer_windows, refuse_true


def _traits(keys: KeyReader, num_layers: int) -> Traits:
    if not keys.flag("attention_bias", True):
        keys.notes.append(
            "config.json: attention_bias is false; model_type qwen2 always has q, k and v biases"
        )
    refuse_true(keys, "mlp_bias", "qwen2")
    return Traits(qkv_bias=True, o_bias=False, mlp_bias=False, windows=_windows(keys, num_layers))


def _windows(keys: KeyReader, num_layers: int) -> tuple[int, ...]:
    window = keys.integer("sliding_window", None)
    first = keys.integer("max_window_layers", None, minimum=0)
    if not keys.flag("use_sliding_window", False):
        return layer_windows(keys, num_layers, -1, "full_attention")
    if window is None:
        raise keys.error("sliding_window", None, "use_sliding_window is true and needs it")
    if keys.take("layer_types") is not None:
        return layer_windows(keys, num_layers, window, "full_attention")
    if first is None:
        raise keys.error("max_window_layers", None, "use_sliding_window is true and needs it")
    return tuple(
        window if layer >= first else full for layer, full in enumerate(full_windows(num_layers))
    )


QWEN2 = Family(
    model_type="qwen2",
    architectures=("Qwen2ForCausalLM",),
    gguf_arch="qwen2",
    gguf_permuted=False,
    gguf_qkv_bias=True,
    kv_heads_optional=False,
    default_bos=None,
    default_eos=(),
    traits=_traits,
)

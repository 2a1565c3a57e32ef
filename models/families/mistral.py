"""Mistral 7B v0.1 to v0.3 and Nemo: LLaMA without biases, with an attention window.

Source of the rules: `MistralConfig` and `modeling_mistral.py` of transformers, where an absent
`sliding_window` is 4096 and null means none. `sliding_window_size` is MLC's name of the key.
"""

from __future__ import annotations

from ..config_keys import KeyReader
from .family import Family, Traits, layer_windows, refuse_true

_DEFAULT_WINDOW = 4096


def _traits(keys: KeyReader, num_layers: int) -> Traits:
    refuse_true(keys, "attention_bias", "mistral")
    refuse_true(keys, "mlp_bias", "mistral")
    window = _window(keys)
    default = "full_attention" if window == -1 else "sliding_attention"
    return Traits(
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        windows=layer_windows(keys, num_layers, window, default),
    )


def _window(keys: KeyReader) -> int:
    window = keys.integer("sliding_window", None)
    alias = keys.integer("sliding_window_size", None)
    if window is not None and alias is not None and window != alias:
        raise keys.error("sliding_window_size", alias, f"it contradicts sliding_window, {window}")
    if not keys.flag("use_sliding_window", True):
        return -1
    if window is None and alias is None:
        if keys.has("sliding_window"):
            return -1
        keys.notes.append(
            f"config.json: sliding_window is absent; {_DEFAULT_WINDOW} is taken, the default of "
            "model_type mistral (write null for no window)"
        )
        return _DEFAULT_WINDOW
    return int(alias if window is None else window)


MISTRAL = Family(
    model_type="mistral",
    architectures=("MistralForCausalLM",),
    gguf_arch="llama",  # llama.cpp stores Mistral as llama, q and k permuted in the same way
    gguf_permuted=True,
    gguf_qkv_bias=None,
    kv_heads_optional=False,
    default_bos=1,
    default_eos=(2,),
    traits=_traits,
)

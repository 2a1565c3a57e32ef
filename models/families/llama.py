"""LLaMA 1 to 3.2 and its many namesakes (SmolLM, TinyLlama, Yi, CodeLlama).

Source of the rules: `LlamaConfig` and `modeling_llama.py` of transformers; llama.cpp's converter
for the row order of q and k.
"""

from __future__ import annotations

from ..config_keys import KeyReader
from .family import Family, Traits, full_windows, layer_windows


def _traits(keys: KeyReader, num_layers: int) -> Traits:
    attention_bias = keys.flag("attention_bias", False)  # q, k, v and o alike
    _refuse_window(keys, num_layers)
    return Traits(
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=keys.flag("mlp_bias", False),
        windows=full_windows(num_layers),
    )


def _refuse_window(keys: KeyReader, num_layers: int) -> None:
    switched_off = keys.take("use_sliding_window") is False
    keys.take("max_window_layers")
    for key in ("sliding_window", "sliding_window_size"):
        window = keys.take(key)
        if window is not None and not switched_off:
            rule = "model_type llama has no window; allowed is null (a model with one is mistral)"
            raise keys.error(key, window, rule)
    if keys.flag("use_sliding_window", False):
        raise keys.error("use_sliding_window", True, "model_type llama has no window")
    layer_windows(keys, num_layers, -1, "full_attention")


LLAMA = Family(
    model_type="llama",
    architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
    gguf_arch="llama",
    gguf_permuted=True,
    gguf_qkv_bias=None,
    kv_heads_optional=True,
    default_bos=1,
    default_eos=(2,),
    traits=_traits,
)

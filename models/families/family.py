"""What a model family is: the few facts in which LLaMA-style decoders differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config_keys import KeyReader


@dataclass(frozen=True)
class Traits:
    """What a family reads from its own configuration keys."""

    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    windows: tuple[int, ...]  # [L] attention window of each layer; -1 = all


@dataclass(frozen=True)
class Family:
    """One family: its names in both file formats, its defaults, and its reader of traits."""

    model_type: str  # key model_type of config.json
    architectures: tuple[str, ...]  # allowed entries of key architectures
    gguf_arch: str  # GGUF key general.architecture
    gguf_permuted: bool  # GGUF keeps q/k rows interleaved, Hugging Face in two halves
    gguf_qkv_bias: bool | None  # None: the file's tensors tell
    kv_heads_optional: bool  # num_key_value_heads may be absent: as many as query heads
    default_bos: int | None  # of the Hugging Face configuration class
    default_eos: tuple[int, ...]
    traits: Callable[[KeyReader, int], Traits]


def full_windows(num_layers: int) -> tuple[int, ...]:
    """Return the windows of a model whose layers all see everything."""
    return (-1,) * num_layers


def layer_windows(keys: KeyReader, num_layers: int, window: int, default: str) -> tuple[int, ...]:
    """Read `layer_types`; `window` is that of sliding layers, -1 where there is none.

    `default` is the type of every layer when the key is absent. Raises ConfigError for an
    unknown type, a wrong number of layers, or a sliding layer without a window.
    """
    types = keys.take("layer_types")
    if types is None:
        types = [default] * num_layers
    if not isinstance(types, list) or len(types) != num_layers:
        raise keys.error(
            "layer_types", types, f"allowed is one type for each of {num_layers} layers"
        )
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise keys.error("layer_types", kind, "allowed are full_attention, sliding_attention")
    if window == -1 and "sliding_attention" in types:
        raise keys.error("layer_types", types, "sliding_attention needs a sliding_window in force")
    return tuple(window if kind == "sliding_attention" else -1 for kind in types)


def refuse_true(keys: KeyReader, key: str, model_type: str) -> None:
    """Raise ConfigError where a flag that the family does not have is switched on."""
    if keys.flag(key, False):
        raise keys.error(key, True, f"model_type {model_type} has no such bias; allowed is false")

"""Rotary position embeddings: every supported scaling rule, computed from its formula.

Sources of the rules: RoFormer (default), position interpolation (linear), the Hugging Face
`modeling_rope_utils` conventions (dynamic NTK, llama3), the YaRN paper, section 3 (yarn), and
llama.cpp's per-frequency divisors (factors, tensor `rope_freqs.weight` of a GGUF).

`dynamic` changes the base with the length of the running sequence. Our tables are compiled once
for a fixed `max_seq_len`, so the base is the one that belongs to a sequence of that length: it
is unchanged while `max_seq_len` stays inside the original context, and rescaled for all
positions beyond it. Keys that are already in a cache are thereby always consistent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .config_keys import KeyReader
from .errors import ConfigError

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "factors")
_HF_KINDS = KINDS[:5]
_HARMLESS = frozenset({"finetuned"})  # written by the first YaRN checkpoints, read by nobody


@dataclass(frozen=True)
class RopeConfig:
    """One rotary embedding: kind, base, number of rotated dimensions and the kind's numbers."""

    kind: str = "default"
    theta: float = 10000.0
    dim: int = 64  # rotated dimensions of a head; always the whole head here
    factor: float = 1.0  # context extension factor
    original_max_positions: int = 0  # context before the extension; 0 = no extension
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None = from factor and mscale
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn: round the correction range outwards to whole dimensions
    frequency_factors: tuple[float, ...] = ()  # factors: divisor of each frequency [dim / 2]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"rope kind is {self.kind!r}; allowed are {', '.join(KINDS)}")
        if self.dim < 2 or self.dim % 2:
            raise ConfigError(f"head_dim is {self.dim}; rotary embedding needs an even number")
        if not self.theta > 1.0:
            raise ConfigError(f"rope_theta is {self.theta}; allowed is a number above 1")
        if not (math.isfinite(self.factor) and self.factor >= 1.0):
            raise ConfigError(f"rope factor is {self.factor}; allowed is a number of at least 1")
        if self.kind in ("dynamic", "llama3", "yarn") and self.original_max_positions < 1:
            raise ConfigError(f"rope kind {self.kind} needs original_max_position_embeddings")
        if self.kind == "dynamic" and self.dim < 4:
            raise ConfigError(f"rope dim is {self.dim}; kind dynamic needs at least 4")
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ConfigError(
                f"rope low_freq_factor is {self.low_freq_factor} and high_freq_factor is "
                f"{self.high_freq_factor}; allowed is 0 < low < high"
            )
        if self.kind == "yarn" and not 0 < self.beta_slow <= self.beta_fast:
            raise ConfigError(
                f"rope beta_slow is {self.beta_slow} and beta_fast is {self.beta_fast}; "
                "allowed is 0 < beta_slow <= beta_fast"
            )
        if self.kind == "factors":
            self._check_factors()

    def _check_factors(self) -> None:
        if len(self.frequency_factors) != self.dim // 2:
            raise ConfigError(
                f"rope_freqs.weight has {len(self.frequency_factors)} numbers; allowed is half "
                f"the rotated dimensions, {self.dim // 2}"
            )
        wrong = [f for f in self.frequency_factors if not (math.isfinite(f) and f > 0)]
        if wrong:
            raise ConfigError(f"rope_freqs.weight holds {wrong[0]}; allowed are numbers above 0")

    @classmethod
    def from_hf(
        cls, scaling: Mapping[str, Any] | None, theta: float, dim: int, max_positions: int
    ) -> RopeConfig:
        """Read a `rope_scaling` / `rope_parameters` object; `type` means `rope_type`.

        Raises ConfigError for an unknown type or key: neither is ever "no scaling".
        """
        if not scaling:
            return cls(theta=theta, dim=dim)
        keys = KeyReader(scaling, "config.json rope_scaling")
        kind = _hf_kind(keys)
        theta = keys.number("rope_theta", theta)
        if keys.number("partial_rotary_factor", 1.0) != 1.0:
            raise keys.error(
                "partial_rotary_factor",
                scaling["partial_rotary_factor"],
                "allowed is 1: the rotation covers the whole head",
            )
        values: dict[str, Any] = {"kind": kind, "theta": theta, "dim": dim}
        if kind != "default":
            values["factor"] = keys.number("factor")
            # The old form of llama3 and yarn puts the pre-training context beside the factor;
            # where it is absent, Hugging Face takes max_position_embeddings.
            original = keys.integer("original_max_position_embeddings", max_positions)
            if kind == "dynamic" and original != max_positions:
                # Hugging Face reads max_position_embeddings here and nothing else.
                rule = f"rope_type dynamic takes max_position_embeddings ({max_positions}) for it"
                raise keys.error("original_max_position_embeddings", original, rule)
            values["original_max_positions"] = original
        if kind == "llama3":
            keys.integer("original_max_position_embeddings")
            values["low_freq_factor"] = keys.number("low_freq_factor")
            values["high_freq_factor"] = keys.number("high_freq_factor")
        if kind == "yarn":
            values.update(_yarn_values(keys))
        _refuse_unread(keys, kind)
        return cls(**values)


def _hf_kind(keys: KeyReader) -> str:
    new, old = keys.take("rope_type"), keys.take("type")
    if new is not None and old is not None and new != old:
        raise keys.error("type", old, f"it contradicts rope_type, which is {new!r}")
    kind = new if new is not None else old
    if kind is None:
        if set(keys.unread()) <= {"rope_theta", "partial_rotary_factor"}:
            return "default"  # rope_parameters that carry the base alone
        raise keys.error("rope_type", None, f"allowed are {', '.join(_HF_KINDS)}")
    if kind not in _HF_KINDS:
        raise keys.error("rope_type", kind, f"allowed are {', '.join(_HF_KINDS)}")
    return str(kind)


def _yarn_values(keys: KeyReader) -> dict[str, Any]:
    return {
        "beta_fast": keys.number("beta_fast", 32.0),
        "beta_slow": keys.number("beta_slow", 1.0),
        "attention_factor": keys.number("attention_factor", None),
        "mscale": keys.number("mscale", None),
        "mscale_all_dim": keys.number("mscale_all_dim", None),
        "truncate": keys.flag("truncate", True),
    }


def _refuse_unread(keys: KeyReader, kind: str) -> None:
    # A number that belongs to another kind is as suspicious as an unknown one; the original
    # context is written beside every kind by some tools and changes nothing for the others.
    extra = [k for k in keys.unread() if k not in _HARMLESS]
    extra = [
        k for k in extra if k != "original_max_position_embeddings" and keys.take(k) is not None
    ]
    if kind == "default":
        extra = [k for k in extra if not (k == "factor" and keys.take(k) == 1.0)]
    if extra:
        raise keys.error(extra[0], keys.take(extra[0]), f"rope_type {kind} has no such key")


def inverse_frequencies(rope: RopeConfig, max_seq_len: int) -> np.ndarray:
    """Return the angle per position of each rotated pair, float64 [D/2], in radians."""
    exponents = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    if rope.kind == "dynamic" and max_seq_len > rope.original_max_positions:
        stretch = rope.factor * max_seq_len / rope.original_max_positions - (rope.factor - 1)
        theta = rope.theta * stretch ** (rope.dim / (rope.dim - 2))
        return np.asarray(np.power(theta, -exponents))
    base: np.ndarray = np.power(rope.theta, -exponents)
    if rope.kind == "linear":
        return np.asarray(base / rope.factor)
    if rope.kind == "llama3":
        return _llama3(rope, base)
    if rope.kind == "yarn":
        return _yarn(rope, base)
    if rope.kind == "factors":
        return np.asarray(base / np.asarray(rope.frequency_factors, np.float64))
    return base


def _llama3(rope: RopeConfig, base: np.ndarray) -> np.ndarray:
    # Wavelengths beyond context/low are interpolated, those inside context/high are kept, and
    # the band between is a linear blend in (context / wavelength).
    turns = rope.original_max_positions * base / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = np.clip((turns - rope.low_freq_factor) / span, 0.0, 1.0)
    return np.asarray(base * keep + base / rope.factor * (1.0 - keep))


def _yarn(rope: RopeConfig, base: np.ndarray) -> np.ndarray:
    low = _yarn_dimension(rope, rope.beta_fast)
    high = _yarn_dimension(rope, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # the rule's own guard against a division by zero
    ramp = np.clip((np.arange(rope.dim // 2) - low) / (high - low), 0.0, 1.0)
    return np.asarray(base / rope.factor * ramp + base * (1.0 - ramp))


def _yarn_dimension(rope: RopeConfig, turns: float) -> float:
    # The dimension whose wave makes `turns` rotations over the original context.
    ratio = rope.original_max_positions / (turns * 2 * math.pi)
    return rope.dim * math.log(ratio) / (2 * math.log(rope.theta))


def attention_factor(rope: RopeConfig) -> float:
    """Return the number that multiplies cos and sin (YaRN's temperature); 1 for other kinds."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim)
    return yarn_mscale(rope.factor)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """Return 0.1 * mscale * ln(factor) + 1, the YaRN paper's attention temperature."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def cos_sin(rope: RopeConfig, max_seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rotary tables (cos, sin), float32 [max_seq_len, D], half-split layout.

    Angles are formed in float64: float32 products are off by 1e-2 rad at position 100 000.
    """
    angles = np.outer(
        np.arange(max_seq_len, dtype=np.float64), inverse_frequencies(rope, max_seq_len)
    )
    scale = attention_factor(rope)
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    return (
        np.concatenate([cos, cos], axis=1).astype(np.float32),
        np.concatenate([sin, sin], axis=1).astype(np.float32),
    )

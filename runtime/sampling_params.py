"""What a caller may ask of sampling, checked once at the door.

Every error names the field, the value that was given, and the values that are allowed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them only amplifies rounding noise."""

CHAT_MAX_TOKENS = 512
"""Most tokens of an answer in a chat where nothing is said: long enough for most to end."""

MAX_BIAS = 100.0
MAX_BIAS_ENTRIES = 1024
MIN_SEED, MAX_SEED = -(1 << 63), (1 << 64) - 1
_MAX_COUNT = (1 << 31) - 1


class SamplingError(ValueError):
    """A sampling parameter outside its range; the text names field, value and range."""


@dataclass(frozen=True)
class SamplingParams:
    """How the next tokens of one request are chosen.

    Filters apply in this order: `logit_bias` is added, the logits are divided by `temperature`,
    `top_k` keeps the k most probable tokens, `top_p` keeps the fewest most probable of these whose
    probabilities (renormalised) reach p, `min_p` keeps those at least min_p times as probable as
    the best one. Equal logits rank by token id, lowest first, so every set is exact.

    max_tokens: most tokens to generate, >= 1.
    temperature: 0 (or below 1e-5) takes the most probable token.
    top_k: 0 keeps all.  top_p: in (0, 1], 1 keeps all.  min_p: in [0, 1), 0 keeps all.
    seed: same seed, same prompt, same ids, whatever else runs; None draws one from the system.
    stop: strings that end the answer and are not part of it.
    logit_bias: token id -> number in [-100, 100] added to its logit.
    ignore_eos: go on after an end-of-sequence token.

    Raises SamplingError.

    >>> SamplingParams(temperature=0.8, top_p=0.95, stop="END").stop
    ('END',)
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "max_tokens", _integer("max_tokens", self.max_tokens, 1, _MAX_COUNT))
        put(
            self, "temperature", _number("temperature", self.temperature, 0.0, math.inf, "[0, inf)")
        )
        put(self, "top_k", _integer("top_k", self.top_k, 0, _MAX_COUNT))
        put(self, "top_p", _number("top_p", self.top_p, 0.0, 1.0, "(0, 1]"))
        put(self, "min_p", _number("min_p", self.min_p, 0.0, 1.0, "[0, 1)"))
        if self.seed is not None:
            put(self, "seed", _integer("seed", self.seed, MIN_SEED, MAX_SEED))
        put(self, "stop", _stops(self.stop))
        put(self, "logit_bias", _bias(self.logit_bias))
        if not isinstance(self.ignore_eos, bool):
            raise SamplingError(f"ignore_eos is {self.ignore_eos!r}: it must be true or false")

    @property
    def greedy(self) -> bool:
        """True when the most probable token is always taken, so that no random number is drawn."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    def check_vocab(self, vocab_size: int) -> None:
        """Raise SamplingError when a token id of `logit_bias` is not in the model's vocabulary."""
        bad = [token for token in self.logit_bias if token >= vocab_size]
        if bad:
            raise SamplingError(
                f"logit_bias names token {bad[0]}, but this model has {vocab_size} tokens: "
                f"use ids from 0 to {vocab_size - 1}"
            )


def _integer(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, bool):
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            if low <= number <= high:
                return number
    raise SamplingError(f"{name} is {value!r}: it must be an integer from {low} to {high}")


def _number(name: str, value: object, low: float, high: float, interval: str) -> float:
    """Check a real number against an interval written like "(0, 1]"."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        if above and below:
            return float(value)
    raise SamplingError(f"{name} is {value!r}: it must be a number in {interval}")


def _stops(value: object) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if stops is None:
        return ()
    if not isinstance(stops, Sequence) or not all(isinstance(stop, str) for stop in stops):
        raise SamplingError(f"stop is {value!r}: it must be a string or a list of strings")
    if "" in stops:
        raise SamplingError(
            "stop contains an empty string, which would match everywhere: every stop string needs "
            "at least one character; leave it out to use none"
        )
    return tuple(dict.fromkeys(stops))


def _bias(value: object) -> Mapping[int, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SamplingError(f"logit_bias is {value!r}: it must map token ids to numbers")
    if len(value) > MAX_BIAS_ENTRIES:
        raise SamplingError(
            f"logit_bias has {len(value)} entries: at most {MAX_BIAS_ENTRIES} are allowed"
        )
    checked: dict[int, float] = {}
    for token, bias in value.items():
        # JSON objects have string keys, so "265" is as good as 265.
        key = int(token) if isinstance(token, str) and token.isdecimal() else token
        token_id = _integer("logit_bias token id", key, 0, _MAX_COUNT)
        checked[token_id] = _number(
            f"logit_bias[{token_id}]", bias, -MAX_BIAS, MAX_BIAS, f"[-{MAX_BIAS:g}, {MAX_BIAS:g}]"
        )
    return checked

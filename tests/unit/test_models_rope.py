"""Rotary tables: numbers of each scaling rule, against formulas written differently."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pagedom.models.errors import ConfigError
from pagedom.models.rope import RopeConfig, attention_factor, cos_sin, inverse_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LLAMA3_FREQUENCIES = {  # case 1 of the field cases
    14: 3.211445995e-03,
    15: 1.290547928e-03,
    16: 4.295567966e-04,
    17: 9.708287803e-05,
    18: 1.946163818e-05,
    31: 9.418306725e-08,
}


def read(scaling, theta=10000.0, dim=64, max_positions=4096):
    return RopeConfig.from_hf(scaling, theta, dim, max_positions)


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_llama3_frequencies(key):
    scaling = dict(LLAMA3)
    scaling[key] = scaling.pop("rope_type")
    found = inverse_frequencies(read(scaling, 500000.0, 64, 131072), 131072)
    for index, value in LLAMA3_FREQUENCIES.items():
        assert found[index] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", ["foo", "longrope", "su", "mrope", 3])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_unknown_type_is_refused_by_name(name, key):
    with pytest.raises(ConfigError, match=f"rope_type is {name!r}"):
        read({key: name, "factor": 2.0})


def test_scaling_without_a_type_is_refused():
    with pytest.raises(ConfigError, match="rope_type is missing"):
        read({"factor": 2.0})


def test_contradicting_types_are_refused():
    with pytest.raises(ConfigError, match="contradicts"):
        read({"type": "linear", "rope_type": "yarn", "factor": 2.0})


@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "original_max_position_embeddings"])
def test_llama3_needs_its_numbers(key):
    with pytest.raises(ConfigError, match=key):
        read({k: v for k, v in LLAMA3.items() if k != key})


def test_numbers_of_another_rule_are_refused():
    with pytest.raises(ConfigError, match="short_factor"):
        read({"rope_type": "linear", "factor": 2.0, "short_factor": [1.0]})


def test_default_and_linear():
    base = [1.0, 0.1, 0.01, 0.001]
    assert inverse_frequencies(read(None, dim=8), 16) == pytest.approx(base, rel=1e-12)
    linear = read({"type": "linear", "factor": 4.0}, dim=8)
    assert inverse_frequencies(linear, 16) == pytest.approx([f / 4 for f in base], rel=1e-12)


def test_dynamic_rescales_only_beyond_the_original_context():
    rope = read({"type": "dynamic", "factor": 2.0}, dim=8, max_positions=64)
    plain = inverse_frequencies(read(None, dim=8), 64)
    assert np.array_equal(inverse_frequencies(rope, 64), plain)
    theta = 10000.0 * (2.0 * 128 / 64 - 1.0) ** (8 / 6)
    expected = [theta ** (-i / 8) for i in (0, 2, 4, 6)]
    assert inverse_frequencies(rope, 128) == pytest.approx(expected, rel=1e-12)


def test_dynamic_with_another_original_context_is_ambiguous():
    scaling = {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 32}
    with pytest.raises(ConfigError, match="original_max_position_embeddings is 32"):
        read(scaling, max_positions=64)


def test_yarn_blends_between_two_dimensions():
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    rope = read(scaling, theta=1e6, dim=128, max_positions=131072)
    found = inverse_frequencies(rope, 131072)
    # The dimensions that turn 32 times and once in the original context, rounded outwards.
    turns = [128 * math.log(32768 / (n * 2 * math.pi)) / (2 * math.log(1e6)) for n in (32, 1)]
    low, high = math.floor(turns[0]), math.ceil(turns[1])
    for i in range(64):
        ramp = min(1.0, max(0.0, (i - low) / (high - low)))
        base = 1e6 ** (-2 * i / 128)
        assert found[i] == pytest.approx(base / 4 * ramp + base * (1 - ramp), rel=1e-12)
    assert found[0] == 1.0
    assert attention_factor(rope) == pytest.approx(0.1 * math.log(4) + 1)


def test_yarn_attention_factors():
    def factor(**keys):
        return attention_factor(read({"type": "yarn", "factor": 40.0, **keys}))

    assert factor(attention_factor=1.25) == 1.25
    assert factor(mscale=1.0, mscale_all_dim=1.0) == pytest.approx(1.0)
    one, two = 0.0707 * math.log(40) + 1, 0.1 * math.log(40) + 1
    assert factor(mscale=0.707, mscale_all_dim=1.0) == pytest.approx(one / two)


def test_frequency_divisors():
    rope = RopeConfig(kind="factors", dim=4, frequency_factors=(1.0, 8.0))
    assert inverse_frequencies(rope, 4) == pytest.approx([1.0, 0.01 / 8])
    with pytest.raises(ConfigError, match="3 numbers"):
        RopeConfig(kind="factors", dim=4, frequency_factors=(1.0, 8.0, 2.0))


def test_tables_are_half_split_float32():
    cos, sin = cos_sin(read(None, dim=8), 20)
    assert (cos.shape, cos.dtype, sin.shape) == ((20, 8), np.dtype(np.float32), (20, 8))
    assert np.array_equal(cos[:, :4], cos[:, 4:])
    assert np.array_equal(sin[:, :4], sin[:, 4:])
    assert cos[7, 1] == pytest.approx(math.cos(0.7), abs=1e-7)
    assert sin[7, 6] == pytest.approx(math.sin(0.07), abs=1e-7)


def test_tables_carry_the_attention_factor():
    rope = read({"type": "yarn", "factor": 2.0, "attention_factor": 1.5}, dim=8)
    cos, sin = cos_sin(rope, 4)
    assert cos[0, 0] == 1.5
    assert np.allclose(cos**2 + sin**2, 2.25)


@pytest.mark.parametrize(
    ("scaling", "text"),
    [
        ({"type": "linear", "factor": 0.5}, "factor is 0.5"),
        ({"type": "linear", "factor": "2"}, "factor is '2'"),
        ({**LLAMA3, "low_freq_factor": 4.0}, "0 < low < high"),
        ({"type": "yarn", "factor": 2.0, "beta_fast": 1.0, "beta_slow": 2.0}, "beta_slow"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_impossible_numbers_are_refused(scaling, text):
    with pytest.raises(ConfigError, match=text):
        read(scaling)

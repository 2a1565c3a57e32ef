"""SamplingParams refuses what cannot be sampled, naming field, value and range."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from pagedom.runtime.sampling_params import SamplingError, SamplingParams


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("max_tokens", 0, "from 1"),
        ("max_tokens", 1.5, "integer"),
        ("max_tokens", True, "integer"),
        ("temperature", -0.1, "[0, inf)"),
        ("temperature", float("nan"), "[0, inf)"),
        ("temperature", float("inf"), "[0, inf)"),
        ("temperature", "1", "[0, inf)"),
        ("top_k", -1, "from 0"),
        ("top_p", 0.0, "(0, 1]"),
        ("top_p", 1.01, "(0, 1]"),
        ("min_p", 1.0, "[0, 1)"),
        ("seed", 1 << 64, "integer"),
        ("seed", "7", "integer"),
        ("stop", 5, "list of strings"),
        ("stop", ["a", 5], "list of strings"),
        ("stop", [""], "empty string"),
        ("logit_bias", [1], "map token ids"),
        ("logit_bias", {1: 101}, "[-100, 100]"),
        ("logit_bias", {-1: 1}, "from 0"),
        ("logit_bias", {"x": 1}, "from 0"),
        ("logit_bias", dict.fromkeys(range(1025), 1), "at most 1024"),
        ("ignore_eos", 1, "true or false"),
    ],
)
def test_refused(field, value, allowed):
    with pytest.raises(SamplingError) as caught:
        SamplingParams(**{field: value})
    assert field in str(caught.value)
    assert allowed in str(caught.value)


def test_normalised():
    params = SamplingParams(
        max_tokens=np.int64(3), temperature=1, stop=["a", "b", "a"], logit_bias={"265": 100}
    )
    assert params.max_tokens == 3
    assert type(params.max_tokens) is int
    assert params.stop == ("a", "b")
    assert dict(params.logit_bias) == {265: 100.0}
    assert SamplingParams(stop=None, logit_bias=None) == SamplingParams()


def test_frozen_hashable_and_replaceable():
    params = SamplingParams(logit_bias={1: 2.0})
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 3
    assert dataclasses.replace(params, seed=-5).seed == -5
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.asdict(params)["logit_bias"] == {1: 2.0}
    hash(params)


def test_greedy_and_vocab():
    assert SamplingParams().greedy
    assert SamplingParams(temperature=1, top_k=1).greedy
    assert not SamplingParams(temperature=1).greedy
    params = SamplingParams(logit_bias={511: 1})
    params.check_vocab(512)
    with pytest.raises(SamplingError, match=r"token 511.*511 tokens.*510"):
        params.check_vocab(511)

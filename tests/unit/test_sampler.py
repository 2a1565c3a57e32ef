"""Sampler: exact sets, the right distribution, and independence of neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedom.runtime.counter_random import mix64, request_seed, uniform
from pagedom.runtime.sampler import LogitsError, SamplerState, SamplingError, SamplingParams, sample


def draw(params, logits, seeds, positions=None):
    """Sample one token for each of `seeds` from one row of logits under one set of parameters."""
    state = SamplerState(len(seeds))
    for row, seed in enumerate(seeds):
        state.set(row, params, seed)
    rows = np.arange(len(seeds))
    table = np.broadcast_to(np.asarray(logits, np.float32), (len(seeds), len(logits)))
    if positions is None:
        positions = np.zeros(len(seeds), np.int64)
    return sample(state, rows, table, positions)


def reference_probabilities(logits, params):
    """Straightforward float64 reference: loops over one row, without the product's tricks."""
    z = np.array(logits, np.float64)
    for token, bias in params.logit_bias.items():
        z[token] += bias
    z = (z - z.max()) / params.temperature
    p = np.exp(z)
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if params.top_k:
        order = order[: params.top_k]
    mass = sum(p[i] for i in order)
    kept, so_far = [], 0.0
    for i in order:
        kept.append(i)
        so_far += p[i]
        if so_far >= params.top_p * mass and params.top_p < 1:
            break
    best = p[order[0]]
    kept = [i for i in kept if p[i] >= params.min_p * best]
    out = np.zeros(len(p))
    out[kept] = p[kept]
    return out / out.sum()


SETTINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.3, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=1.0, top_k=8, top_p=0.7, min_p=0.1),
    SamplingParams(temperature=1.0, top_p=0.9, logit_bias={3: 2.0, 0: -100.0}),
]


@pytest.mark.parametrize("params", SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.parametrize("vocab", [20, 700])
def test_distribution_matches_the_reference(params, vocab):
    logits = np.random.default_rng(vocab).normal(0, 2, vocab).astype(np.float32)
    want = reference_probabilities(logits, params)
    num = 20_000
    tokens = draw(params, logits, range(num))
    seen = np.bincount(tokens, minlength=vocab)
    assert not seen[want == 0].any(), "a token outside the set was drawn"
    big = want * num >= 5
    chi2 = ((seen[big] - want[big] * num) ** 2 / (want[big] * num)).sum()
    freedom = big.sum() - 1
    # The seeds are fixed, so this never flickers; 5 standard deviations of chi-square.
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom) + 5
    assert abs(seen[~big].sum() / num - want[~big].sum()) < 0.01


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sets_are_exact_with_ties_and_minus_infinity(data):
    vocab = data.draw(st.sampled_from([1, 2, 7, 600, 9000]))
    seed = data.draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    # Few distinct values: many ties, as bfloat16 logits have.
    logits = rng.integers(-6, 7, vocab).astype(np.float32)
    logits[rng.random(vocab) < 0.3] = -np.inf
    logits[rng.integers(vocab)] = 3.0
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.5, 1.0, 4.0])),
        top_k=data.draw(st.sampled_from([0, 2, 3, 50, 400, 5000, 10**6])),
        top_p=data.draw(st.sampled_from([1.0, 0.999, 0.83, 0.31, 1e-9])),
        min_p=data.draw(st.sampled_from([0.0, 0.013, 0.37])),
    )
    want = reference_probabilities(logits, params)
    tokens = draw(params, logits, range(64))
    assert (want[tokens] > 0).all()


EDGES = [
    {},
    {"top_p": 0.5},
    {"top_p": 0.999},
    {"top_k": 2},
    {"top_k": 200},
    {"top_k": 300},
    {"top_k": 5000},
    {"top_k": 300, "top_p": 0.7},
    {"min_p": 0.1},
]


@pytest.mark.parametrize("rule", EDGES, ids=str)
@pytest.mark.parametrize("vocab", [3, 513, 1024, 5000, 40_000])
def test_the_extreme_draws_reach_the_ends_of_the_set(vocab, rule, monkeypatch):
    from pagedom.runtime import sampler

    logits = np.random.default_rng(1).normal(0, 1, vocab).astype(np.float32)
    params = SamplingParams(temperature=1.0, **rule)
    want = reference_probabilities(logits, params)
    # Without top-k and top-p the draw goes through the vocabulary by id, else by rank.
    ranked = "top_k" in rule or "top_p" in rule
    order = np.argsort(-logits, kind="stable") if ranked else np.arange(vocab)
    order = order[want[order] > 0]
    for number, member in ((0.0, order[0]), (1 - 2**-53, order[-1])):
        monkeypatch.setattr(sampler, "uniform", lambda s, p, u=number: np.full(len(s), u))
        assert draw(params, logits, [1])[0] == member


def test_a_share_that_is_reached_exactly_is_enough():
    half = SamplingParams(temperature=1.0, top_p=0.5)
    assert set(draw(half, [2.0, 2.0], range(50)).tolist()) == {0}
    assert set(draw(half, [1.0, 2.0, 2.0, 2.0, 2.0], range(50)).tolist()) == {1, 2, 3}


def test_both_zeros_are_equal():
    params = SamplingParams(temperature=1.0, top_k=2)
    assert set(draw(params, [-0.0, 0.0, 0.0, -1.0], range(50)).tolist()) == {0, 1}


def test_large_vocabulary_flat_row_needs_the_whole_sort():
    vocab = 100_000
    logits = np.random.default_rng(0).normal(0, 0.01, vocab).astype(np.float32)
    params = SamplingParams(temperature=1.0, top_p=0.5)
    want = reference_probabilities(logits, params)
    tokens = draw(params, logits, range(40))
    assert (want[tokens] > 0).all()
    assert len(set(tokens.tolist())) > 30


def test_greedy_is_argmax_and_ties_take_the_lowest_id():
    logits = np.array([1, 7, 7, -np.inf], np.float32)
    for params in (
        SamplingParams(),
        SamplingParams(temperature=1e-9),
        SamplingParams(temperature=5.0, top_k=1),
        SamplingParams(temperature=1.0, top_p=1e-12),
    ):
        assert draw(params, logits, range(50)).tolist() == [1] * 50


def test_small_temperature_approaches_greedy_without_overflow():
    logits = np.array([-3e38, 10.0, 3e38, 2e38], np.float32)
    with np.errstate(all="raise"):
        assert set(draw(SamplingParams(temperature=2e-5), logits, range(20)).tolist()) == {2}


def test_single_token_vocabulary_and_single_finite_token():
    for params in SETTINGS[:5]:
        assert draw(params, [0.0], [1, 2]).tolist() == [0, 0]
        row = np.full(3000, -np.inf, np.float32)
        row[2999] = -5
        assert draw(params, row, [1, 2]).tolist() == [2999, 2999]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([11, 900, 30_000]))
def test_a_row_does_not_depend_on_its_neighbours(seed, vocab):
    rng = np.random.default_rng(seed)
    size = 9
    state = SamplerState(32)
    logits = np.round(rng.normal(0, 3, (size, vocab)), 1).astype(np.float32)
    positions = rng.integers(0, 10**6, size)
    rows = rng.permutation(32)[:size]
    for row in rows:
        bias = {int(rng.integers(vocab)): 5.0} if rng.random() < 0.3 else {}
        params = SamplingParams(
            temperature=float(rng.choice([0.0, 0.6, 1.0, 3.0])),
            top_k=int(rng.choice([0, 3, 300, 5000])),
            top_p=float(rng.choice([1.0, 0.9, 0.99])),
            min_p=float(rng.choice([0.0, 0.05])),
            logit_bias=bias,
        )
        state.set(int(row), params, int(rng.integers(2**63)))
    together = sample(state, rows, logits, positions)
    alone = [sample(state, rows[i : i + 1], logits[i : i + 1], positions[i : i + 1])[0]
             for i in range(size)]  # fmt: skip
    assert together.tolist() == alone
    order = rng.permutation(size)
    shuffled = sample(state, rows[order], logits[order], positions[order])
    assert shuffled.tolist() == together[order].tolist()


def test_case_20_moving_rows_and_a_biased_neighbour():
    rng = np.random.default_rng(3)
    steps = rng.normal(0, 2, (16, 512)).astype(np.float32)
    seeded = SamplingParams(temperature=1.0, seed=42)
    seed = request_seed(42)
    alone = []
    state = SamplerState(8)
    state.set(0, seeded, seed)
    for i, row in enumerate(steps):
        alone += sample(state, [0], row[None], np.array([5 + i])).tolist()
    state.clear(0)
    state.set(6, seeded, seed)
    state.set(2, seeded, seed)
    state.set(1, SamplingParams(temperature=1.0, logit_bias={265: 100}), request_seed(None))
    state.set(3, SamplingParams(temperature=1.0), request_seed(None))
    row_of_it, first, twin, forced = 6, [], [], []
    for i, row in enumerate(steps):
        if i == 7:
            state.move(6, 4)
            row_of_it = 4
        rows = [3, row_of_it, 1, 2]
        out = sample(state, rows, np.repeat(row[None], 4, 0), np.full(4, 5 + i))
        first.append(int(out[1]))
        forced.append(int(out[2]))
        twin.append(int(out[3]))
    assert first == alone == twin
    assert forced == [265] * 16


def test_seeds_give_different_streams_and_none_draws_entropy():
    logits = np.zeros(1000, np.float32)
    params = SamplingParams(temperature=1.0)
    assert len(set(draw(params, logits, range(200)).tolist())) > 150
    same_seed = draw(params, logits, [7] * 200, np.arange(200))
    assert len(set(same_seed.tolist())) > 150
    assert request_seed(None) != request_seed(None)
    assert request_seed(-1) == 2**64 - 1
    assert request_seed(7) == request_seed(7, 0) == 7
    assert len({request_seed(7, choice) for choice in range(50)}) == 50


def test_uniform_numbers_are_uniform_and_pinned():
    seeds, positions = np.meshgrid(np.arange(300, dtype=np.uint64), np.arange(300))
    numbers = uniform(seeds.ravel(), positions.ravel())
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    counts = np.histogram(numbers, 100, (0, 1))[0]
    assert ((counts - 900) ** 2 / 900).sum() < 99 + 5 * np.sqrt(198)
    table = numbers.reshape(300, 300)
    assert abs(np.corrcoef(table[1:].ravel(), table[:-1].ravel())[0, 1]) < 0.015
    assert abs(np.corrcoef(table[:, 1:].ravel(), table[:, :-1].ravel())[0, 1]) < 0.015
    # SplitMix64 from state 0: the first output of its published reference implementation.
    golden = np.array([0x9E3779B97F4A7C15], np.uint64)
    assert mix64(golden)[0] == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bad_logits_are_an_error_naming_the_row(value, temperature):
    state = SamplerState(5)
    state.set(4, SamplingParams(temperature=temperature), 1)
    logits = np.zeros((2, 600), np.float32)
    logits[1, 17] = value
    with pytest.raises(LogitsError, match=r"row 4 .*token 17") as caught:
        sample(state, [3, 4], logits, np.zeros(2, np.int64))
    assert caught.value.rows == [4]


def test_a_row_of_minus_infinity_is_an_error():
    state = SamplerState(1)
    with pytest.raises(LogitsError, match="maximum -inf"):
        sample(state, [0], np.full((1, 5), -np.inf, np.float32), np.zeros(1, np.int64))


def test_input_logits_are_not_modified():
    state = SamplerState(2)
    state.set(0, SamplingParams(temperature=1.0, top_p=0.9, logit_bias={1: 5.0}), 1)
    state.set(1, SamplingParams(temperature=1.0, min_p=0.1), 1)
    logits = np.random.default_rng(0).normal(size=(2, 5000)).astype(np.float32)
    before = logits.copy()
    sample(state, [0, 1], logits, np.zeros(2, np.int64))
    assert (logits == before).all()


def test_bias_tables_of_different_lengths_share_the_state():
    state = SamplerState(3)
    state.set(0, SamplingParams(logit_bias={2: 1.0}), 0)
    state.set(1, SamplingParams(logit_bias={i: float(-i) for i in range(1, 9)}), 0)
    state.move(1, 2)
    state.set(1, SamplingParams(logit_bias={0: -1.0, 9: -1.0}), 0)
    tokens = sample(state, [0, 1, 2], np.zeros((3, 10), np.float32), np.zeros(3, np.int64))
    assert tokens.tolist() == [2, 1, 0]
    state.set(1, SamplingParams(logit_bias=dict.fromkeys(range(3, 9), 60.0)), 0)
    state.set(1, SamplingParams(logit_bias={9: 1.0}), 0)
    assert sample(state, [1], np.zeros((1, 10), np.float32), np.zeros(1, np.int64)) == [9]
    assert not state.all_greedy([0])
    state.clear(0)
    assert state.all_greedy([0])
    with pytest.raises(SamplingError, match="token 9"):
        sample(state, [1], np.zeros((1, 5), np.float32), np.zeros(1, np.int64))


def test_wrong_shapes_and_empty_batches():
    state = SamplerState(2)
    empty = sample(state, [], np.zeros((0, 5), np.float32), np.zeros(0, np.int64))
    assert empty.dtype == np.int32
    assert empty.shape == (0,)
    with pytest.raises(ValueError, match=r"2 rows.*\(1, 5\)"):
        sample(state, [0, 1], np.zeros((1, 5), np.float32), np.zeros(2, np.int64))

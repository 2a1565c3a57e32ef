"""PagedAttention: one meaning in numpy, torch, onnxruntime and onnx.reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from pagedom.graph_ops import oracles
from pagedom.graph_ops.one_node import one_node_model
from pagedom.graph_ops.paged_attention import paged_attention

NAMES = ("query", "key_cache", "value_cache", "block_table", "cu_seqlens", "kv_lens")


@dataclass
class Case:
    """One step: op inputs by name, attributes, and the dense keys/values of each sequence."""

    inputs: dict[str, np.ndarray]
    attributes: dict[str, float | int]
    dense: list[tuple[np.ndarray, np.ndarray]]  # per sequence [kv_len, K, D] twice
    real_tokens: int  # rows after these belong to a padding sequence

    def arrays(self) -> list[np.ndarray]:
        return [self.inputs[name] for name in NAMES]


def make_case(
    lengths: list[tuple[int, int]],  # (q_len, kv_len) of each sequence
    page_size: int = 4,
    heads: tuple[int, int] = (4, 2),
    dim: int = 4,
    window: int = -1,
    softcap: float = 0.0,
    padding: int = 0,
    dtype: str = "float32",
    seed: int = 0,
) -> Case:
    """Scatter sequences over random pages of a pool in which everything unowned is NaN."""
    rng = np.random.default_rng(seed)
    query_heads, kv_heads = heads
    width = max([1, *(-(-kv // page_size) for _, kv in lengths)]) + 1
    pages = 1 + sum(-(-kv // page_size) for _, kv in lengths) + 2
    shape = (pages, page_size, kv_heads, dim)
    key_cache, value_cache = np.full(shape, np.nan, dtype), np.full(shape, np.nan, dtype)
    free = list(1 + rng.permutation(pages - 1))
    # Entries past a sequence's pages name some other, poisoned page.
    table = np.full((len(lengths) + bool(padding), width), free[-1], np.int32)
    dense = []
    for row, (_, kv) in zip(table, lengths):
        keys, values = rng.normal(size=(2, kv, kv_heads, dim)).astype(dtype)
        dense.append((keys, values))
        for page in range(-(-kv // page_size)):
            row[page] = free.pop(0)
            part = slice(page * page_size, min(kv, (page + 1) * page_size))
            key_cache[row[page], : part.stop - part.start] = keys[part]
            value_cache[row[page], : part.stop - part.start] = values[part]
    q_lens = [q for q, _ in lengths] + [padding] * bool(padding)
    kv_lens = [kv for _, kv in lengths] + [1] * bool(padding)
    table[len(lengths) :] = 0
    query = rng.normal(size=(sum(q_lens), query_heads, dim)).astype(dtype)
    inputs = {
        "query": query,
        "key_cache": key_cache,
        "value_cache": value_cache,
        "block_table": table,
        "cu_seqlens": np.cumsum([0, *q_lens]).astype(np.int32),
        "kv_lens": np.array(kv_lens, np.int32),
    }
    attributes = {"scale": dim**-0.5, "window": window, "softcap": softcap}
    return Case(inputs, attributes, dense, sum(q for q, _ in lengths))


def plain_attention(case: Case) -> np.ndarray:
    """Attend in loops over rows, heads and positions, from the dense keys: no pages, no masks."""
    query = case.inputs["query"].astype(np.float64)
    cu, kv_lens = case.inputs["cu_seqlens"], case.inputs["kv_lens"]
    out = np.zeros(query.shape)
    for b, (keys, values) in enumerate(case.dense):
        for row in range(cu[b], cu[b + 1]):
            position = int(kv_lens[b]) - int(cu[b + 1]) + row
            for head in range(query.shape[1]):
                kv_head = head * keys.shape[1] // query.shape[1]
                visible = [
                    j
                    for j in range(position + 1)
                    if case.attributes["window"] < 0 or position - j < case.attributes["window"]
                ]
                scores = []
                for j in visible:
                    score = float(query[row, head] @ keys[j, kv_head].astype(np.float64))
                    score *= case.attributes["scale"]
                    cap = case.attributes["softcap"]
                    scores.append(cap * math.tanh(score / cap) if cap else score)
                weights = [math.exp(s - max(scores)) for s in scores]
                for j, weight in zip(visible, weights):
                    out[row, head] += weight / sum(weights) * values[j, kv_head]
    return out


@cache
def _model(dtype: str, attributes: tuple[tuple[str, float | int], ...]) -> bytes:
    return one_node_model("PagedAttention", dtype, dict(attributes)).SerializeToString()


@cache
def _session(
    dtype: str, attributes: tuple[tuple[str, float | int], ...]
) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        _model(dtype, attributes), providers=["CPUExecutionProvider"]
    )


def run_onnxruntime(case: Case) -> np.ndarray:
    dtype = case.inputs["query"].dtype.name
    session = _session(dtype, tuple(sorted(case.attributes.items())))
    return session.run(None, case.inputs)[0]


def run_reference(case: Case) -> np.ndarray:
    model = one_node_model("PagedAttention", case.inputs["query"].dtype.name, case.attributes)
    return ReferenceEvaluator(model).run(None, case.inputs)[0]


def run_torch(case: Case) -> np.ndarray:
    tensors = [torch.from_numpy(array) for array in case.arrays()]
    return paged_attention(*tensors, **case.attributes).numpy()


def run_oracle(case: Case) -> np.ndarray:
    return oracles.paged_attention(*case.arrays(), **case.attributes)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    lengths = []
    for _ in range(draw(st.integers(1, 4))):
        past, new = draw(st.integers(0, 9)), draw(st.integers(0, 5))
        lengths.append((new, past + new) if past + new else (1, 1))
    if not sum(q for q, _ in lengths):
        lengths[0] = (1, lengths[0][1])
    return make_case(
        lengths,
        page_size=draw(st.sampled_from([1, 3, 4])),
        heads=draw(st.sampled_from([(2, 2), (4, 2), (3, 1)])),
        dim=draw(st.sampled_from([2, 4])),
        window=draw(st.sampled_from([-1, 1, 3])),
        softcap=draw(st.sampled_from([0.0, 2.0])),
        padding=draw(st.sampled_from([0, 0, 1, 3])),
        seed=draw(st.integers(0, 1000)),
    )


def as_tokens(case: Case) -> dict[str, np.ndarray]:
    """The same step with each token as a sequence of its own."""
    q_lens = np.diff(case.inputs["cu_seqlens"])
    starts = case.inputs["kv_lens"] - q_lens - case.inputs["cu_seqlens"][:-1]
    positions = np.arange(q_lens.sum()) + np.repeat(starts, q_lens)
    return {
        **{name: case.inputs[name] for name in NAMES[:3]},
        "token_tables": np.repeat(case.inputs["block_table"], q_lens, axis=0),
        "token_lens": positions + 1,
    }


@settings(max_examples=40, deadline=None)
@given(cases())
def test_token_attention_is_attention_of_single_tokens(case: Case) -> None:
    case.attributes |= {"window": -1, "softcap": 0.0, "scale": 0.5}
    expected = plain_attention(case)[: case.real_tokens]
    got = _token_session().run(None, as_tokens(case))[0][: case.real_tokens]
    np.testing.assert_allclose(got, expected, atol=3e-6)


@cache
def _token_session() -> onnxruntime.InferenceSession:
    model = one_node_model("TokenAttention", "float32", {"scale": 0.5})
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


@settings(max_examples=60, deadline=None)
@given(cases())
def test_all_four_agree_with_plain_loops(case: Case) -> None:
    # The padding sequence reads the null page, here NaN: only its own rows may show it.
    expected = plain_attention(case)[: case.real_tokens]
    for run in (run_oracle, run_torch, run_onnxruntime, run_reference):
        got = run(case)[: case.real_tokens]
        np.testing.assert_allclose(got, expected, atol=3e-6, err_msg=run.__name__)


@pytest.mark.parametrize("run", [run_oracle, run_torch, run_onnxruntime, run_reference])
def test_float16_rounds_once(run) -> None:  # type: ignore[no-untyped-def]
    case = make_case([(3, 9), (1, 6), (0, 2)], dtype="float16", window=5)
    got = run(case)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, plain_attention(case), atol=2e-3)


@pytest.mark.parametrize("run", [run_oracle, run_onnxruntime, run_reference])
def test_rows_that_see_nothing_give_zeros(run) -> None:  # type: ignore[no-untyped-def]
    # Three padding tokens in a sequence of kv_len 1: two stand before position 0.
    case = make_case([(2, 2)], padding=3)
    case.inputs["key_cache"][0] = case.inputs["value_cache"][0] = 0.5
    got = run(case)
    np.testing.assert_array_equal(got[2:4], 0.0)
    np.testing.assert_allclose(got[4], 0.5)


@pytest.mark.parametrize("run", [run_oracle, run_onnxruntime, run_reference])
def test_overflow_in_one_sequence_stays_there(run) -> None:  # type: ignore[no-untyped-def]
    case = make_case([(2, 5), (1, 3)])
    clean = run(case)
    first_page = case.inputs["block_table"][0, 0]
    case.inputs["value_cache"][first_page, 0] = np.inf
    dirty = run(case)
    assert not np.isfinite(dirty[:2]).any()
    np.testing.assert_array_equal(dirty[2], clean[2])


@pytest.mark.parametrize("run", [run_oracle, run_onnxruntime, run_reference])
def test_pages_behind_the_window_may_be_gone(run) -> None:  # type: ignore[no-untyped-def]
    # Window 3, rows at 9 and 10: positions 7 .. 10 are read, pages 0 (0-3) and most of 1 are not.
    case = make_case([(2, 11)], window=3)
    expected = run(case)
    table = case.inputs["block_table"]
    for pages in (case.inputs["key_cache"], case.inputs["value_cache"]):
        pages[table[0, 0]] = np.nan
        pages[table[0, 1], :3] = np.nan
    table[0, 0] = 0
    np.testing.assert_array_equal(run(case), expected)


def test_oracle_refuses_a_row_that_is_too_short() -> None:
    case = make_case([(1, 9)])
    case.inputs["block_table"] = case.inputs["block_table"][:, :2]
    with pytest.raises(ValueError, match=r"9 tokens needs 3 pages of 4, its row .* has 2"):
        run_oracle(case)

"""KVUpdate: rows reach their slots, padding reaches nothing, in every implementation."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from pagedom.graph_ops import oracles
from pagedom.graph_ops.kv_update import kv_update
from pagedom.graph_ops.one_node import one_node_model

NAMES = ("key", "key_cache", "slot_mapping", "value", "value_cache")
PAGES, PAGE_SIZE, KV_HEADS, DIM = 4, 3, 2, 2
SESSIONS = {
    dtype: onnxruntime.InferenceSession(
        one_node_model("KVUpdate", dtype).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for dtype in ("float32", "float16")
}


def make_inputs(slots: list[int], dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    key, value = rng.normal(size=(2, len(slots), KV_HEADS, DIM)).astype(dtype)
    caches = rng.normal(size=(2, PAGES, PAGE_SIZE, KV_HEADS, DIM)).astype(dtype)
    return [key, caches[0], np.array(slots, np.int32), value, caches[1]]


def plain_update(inputs: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    key, key_cache, slots, value, value_cache = inputs
    key_cache, value_cache = key_cache.copy(), value_cache.copy()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            key_cache[slot // PAGE_SIZE, slot % PAGE_SIZE] = key[token]
            value_cache[slot // PAGE_SIZE, slot % PAGE_SIZE] = value[token]
    return key_cache, value_cache


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_slot_update_is_the_same_over_slots(dtype: str) -> None:
    """No negative slots there: padding shares slot 0, whose content nobody reads."""
    inputs = make_inputs([7, 0, 5, 0, 11], dtype)
    expected = plain_update(inputs)
    flat = (PAGES * PAGE_SIZE, KV_HEADS, DIM)
    inputs[1], inputs[4] = inputs[1].reshape(flat), inputs[4].reshape(flat)
    names = ("key", "key_slots", "slot_mapping", "value", "value_slots")
    model = one_node_model("SlotUpdate", dtype).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for found, wanted in zip(session.run(None, dict(zip(names, inputs))), expected):
        np.testing.assert_array_equal(found[1:], wanted.reshape(flat)[1:])


@st.composite
def slot_lists(draw: st.DrawFn) -> list[int]:
    slots = draw(st.lists(st.integers(PAGE_SIZE, PAGES * PAGE_SIZE - 1), unique=True, max_size=6))
    slots += draw(st.lists(st.sampled_from([-1, -7]), min_size=not slots, max_size=3))
    return draw(st.permutations(slots))


@settings(max_examples=50, deadline=None)
@given(slot_lists(), st.sampled_from(["float32", "float16"]), st.integers(0, 99))
def test_all_agree(slots: list[int], dtype: str, seed: int) -> None:
    inputs = make_inputs(slots, dtype, seed)
    inputs[1][0, 0] = np.nan  # the null page's content must survive padding, whatever it is
    expected = plain_update(inputs)
    feed = dict(zip(NAMES, inputs))
    in_place = [array.copy() for array in inputs]
    oracles.kv_update(*in_place)
    results = {
        "oracle": (in_place[1], in_place[4]),
        "torch": [t.numpy() for t in kv_update(*map(torch.from_numpy, inputs))],
        "onnxruntime": SESSIONS[dtype].run(None, feed),
        "reference": ReferenceEvaluator(one_node_model("KVUpdate", dtype)).run(None, feed),
    }
    for name, result in results.items():
        for got, want in zip(result, expected, strict=True):
            np.testing.assert_array_equal(got, want, err_msg=name)


def test_torch_leaves_its_inputs_alone() -> None:
    inputs = make_inputs([4, 5])
    before = [array.copy() for array in inputs]
    kv_update(*map(torch.from_numpy, inputs))
    for array, copy in zip(inputs, before):
        np.testing.assert_array_equal(array, copy)


def test_oracle_writes_through_a_strided_view() -> None:
    inputs = make_inputs([4])
    storage = np.zeros((PAGES, KV_HEADS, PAGE_SIZE, DIM), np.float32)
    view = storage.transpose(0, 2, 1, 3)
    oracles.kv_update(inputs[0], view, inputs[2], inputs[3], inputs[4])
    np.testing.assert_array_equal(storage[1, :, 1], inputs[0][0])


def test_oracle_refuses_a_slot_outside_the_cache() -> None:
    with pytest.raises(ValueError, match=r"slot 12 is outside .* 4 pages of 3 .* 0 to 11"):
        oracles.kv_update(*make_inputs([12]))

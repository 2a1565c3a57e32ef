"""The oracle's operators follow their documents: results, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagedom.graph_ops import oracles
from pagedom.runtime.acl.executor import ExecutorError
from pagedom.runtime.acl.executors.oracle import KERNELS
from pagedom.runtime.om_file.ge_graph import Node


def run(kind: str, *inputs: Any, **attrs: Any) -> list[np.ndarray]:
    arrays = [None if value is None else np.asarray(value) for value in inputs]
    return KERNELS[kind](Node("n", kind, [], attrs), arrays)


F32 = np.float32


@pytest.mark.parametrize(
    ("kind", "inputs", "attrs", "wanted"),
    [
        ("SelectV2", [[True, False], [1, 2], [3, 4]], {}, [1, 4]),
        ("LessEqual", [[1, 2, 3], [2]], {}, [True, True, False]),
        ("GreaterEqual", [[1, 2, 3], [2]], {}, [False, True, True]),
        ("LogicalAnd", [[True, True], [True, False]], {}, [True, False]),
        ("StridedSliceV2", [[0, 1, 2, 3], [1], [2147483647], [0]], {}, [1, 2, 3]),
        ("StridedSliceV2", [[0, 1, 2, 3], [0], [-1], [0]], {}, [0, 1, 2]),
        ("Range", [np.int32(0), np.int32(3), np.int32(1)], {}, [0, 1, 2]),
        ("Tile", [[1, 2], [2]], {}, [1, 2, 1, 2]),
        ("ReduceMax", [[[1, 5], [7, 2]], [1]], {"keep_dims": False}, [5, 7]),
        ("ReduceMean", [F32([[1, 3]]), [-1]], {"keep_dims": True}, [[2]]),
        ("UnsqueezeV3", [[1, 2], [1]], {}, [[1], [2]]),
        ("SqueezeV3", [[[1, 2]], [0]], {}, [1, 2]),
        ("Shape", [np.zeros((2, 3))], {}, [2, 3]),
        ("Expand", [[[1], [2]], [1, 2]], {}, [[1, 1], [2, 2]]),
        ("Pack", [[1, 2], [3, 4]], {"axis": 1}, [[1, 3], [2, 4]]),
        ("GatherNd", [[[1, 2], [3, 4]], [[1, 0], [0, 1]]], {}, [3, 2]),
        ("SoftmaxV2", [F32([[0, 0, -1e30]])], {"axes": [-1]}, [[0.5, 0.5, 0]]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_base_operators(kind: str, inputs: list, attrs: dict, wanted: Any) -> None:
    (found,) = run(kind, *inputs, **attrs)
    np.testing.assert_array_equal(found, np.asarray(wanted))


def test_integers_stay_integers() -> None:
    (found,) = run("Add", np.int32([2**24 + 1]), np.int32([1]))
    assert found.dtype == np.int32
    assert found[0] == 2**24 + 2  # float32 could not hold it


@pytest.mark.parametrize(
    ("kind", "inputs", "wanted"),
    [
        ("SelectV2", [[1, 0], [1, 2], [3, 4]], "condition is int64, must be bool"),
        ("SelectV2", [[True], F32([1]), np.int32([1])], "then is float32 and else is int32"),
        ("LogicalAnd", [[1], [1]], "takes bool, is given int64"),
        ("Range", [np.int32([0]), np.int32(3), np.int32(1)], "bounds must be scalars"),
    ],
)
def test_base_refusals(kind: str, inputs: list, wanted: str) -> None:
    with pytest.raises((TypeError, ValueError), match=wanted):
        run(kind, *inputs)


# -- ScatterNdUpdate


def test_scatter_nd_update_is_in_place() -> None:
    var, rows = np.zeros((4, 2), F32), F32([[1, 2], [3, 4]])
    (found,) = run("ScatterNdUpdate", var, [[3], [1]], rows)
    assert found is var
    np.testing.assert_array_equal(var[[3, 1]], rows)


@pytest.mark.parametrize("index", [-1, 4])
def test_scatter_nd_update_refuses_an_index(index: int) -> None:
    with pytest.raises(ValueError, match=rf"index {index}..{index} is outside 0..3"):
        run("ScatterNdUpdate", np.zeros((4, 2), F32), [[index]], F32([[1, 2]]))


def test_scatter_nd_update_wants_a_column() -> None:
    with pytest.raises(ValueError, match=r"indices have shape \(2,\)"):
        run("ScatterNdUpdate", np.zeros((4, 2), F32), [1, 2], np.zeros((2, 2), F32))


# -- IncreFlashAttention

B, H, K, D, S = 3, 4, 2, 16, 16


def incre_inputs() -> tuple[list[Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    query = rng.standard_normal((B, 1, H * D)).astype(F32)
    caches = [rng.standard_normal((8, S, K * D)).astype(F32) for _ in range(2)]
    table = np.array([[1, 2], [3, 4], [5, 6]], np.int32)
    inputs = [query, *caches, None, None, np.array([17, 1, 32], np.int64), *[None] * 7, table]
    attrs = {
        "num_heads": H,
        "num_key_value_heads": K,
        "scale_value": 0.3,
        "input_layout": "BSH",
        "block_size": S,
    }
    return inputs, attrs


def test_incre_flash_attention() -> None:
    inputs, attrs = incre_inputs()
    (found,) = run("IncreFlashAttention", *inputs, **attrs)
    keys, values = (cache.reshape(8, S, K, D) for cache in inputs[1:3])
    wanted = oracles.paged_attention(
        inputs[0].reshape(B, H, D), keys, values, inputs[13], np.arange(B + 1), inputs[5], 0.3
    )
    np.testing.assert_array_equal(found, wanted.reshape(B, 1, H * D))


@pytest.mark.parametrize(
    ("place", "value", "wanted"),
    [
        (0, np.zeros((B, 2, H * D), F32), "one token a sequence"),
        (5, None, "actual_seq_lengths is required"),
        (5, np.array([1], np.int64), "actual_seq_lengths is required"),
    ],
)
def test_incre_refuses_inputs(place: int, value: Any, wanted: str) -> None:
    inputs, attrs = incre_inputs()
    inputs[place] = value
    with pytest.raises(ValueError, match=wanted):
        run("IncreFlashAttention", *inputs, **attrs)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"input_layout": "BNSD"}, "layout 'BNSD'"),
        ({"block_size": 32}, "block_size is 32, the cache's pages hold 16"),
    ],
)
def test_incre_refuses_attributes(change: dict, wanted: str) -> None:
    inputs, attrs = incre_inputs()
    with pytest.raises(ValueError, match=wanted):
        run("IncreFlashAttention", *inputs, **(attrs | change))


@pytest.mark.parametrize("page_size", [8, 24, 528])
def test_incre_refuses_page_sizes(page_size: int) -> None:
    inputs, attrs = incre_inputs()
    inputs[1] = inputs[2] = np.zeros((8, page_size, K * D), F32)
    with pytest.raises(ValueError, match="is not a multiple of 16, at most 512"):
        run("IncreFlashAttention", *inputs, **(attrs | {"block_size": page_size}))


def test_incre_reports_an_unwritten_slot() -> None:
    inputs, attrs = incre_inputs()
    inputs[1][2, 0] = np.nan
    with pytest.raises(ExecutorError, match=r"sequence 0 reads position 16 \(page 2, offset 0\)"):
        run("IncreFlashAttention", *inputs, **attrs)


def test_the_null_page_of_a_layer_is_known_by_its_offset() -> None:
    """In a stacked pool page 0 of layer 1 is page P: a padding sequence there is no error."""
    inputs, attrs = incre_inputs()
    inputs[1][7] = np.nan
    inputs[13] = np.array([[1, 2], [3, 4], [7, 7]], np.int32)
    inputs[5] = np.array([17, 1, 3], np.int64)
    with pytest.raises(ExecutorError, match="sequence 2 reads position 0"):
        run("IncreFlashAttention", *inputs, **attrs)
    (found,) = run("IncreFlashAttention", *inputs, _pagedom_null_page=7, **attrs)
    assert np.isfinite(found[:2]).all()

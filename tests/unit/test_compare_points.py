"""Points of a graph: which, where, and the instrumented copy."""

from __future__ import annotations

import copy
import math

import formula_graph
import numpy as np
import pytest

from pagedom.runtime.compare import chunked
from pagedom.runtime.compare_agreement import Agreement, Where, flat_rows
from pagedom.runtime.compare_backend import copy_step
from pagedom.runtime.compare_points import (
    BEFORE,
    BEHIND,
    cache_points,
    instrumented,
    layer_name,
    paired,
    points_of,
    suspects,
)
from pagedom.runtime.manifest import Binding
from pagedom.runtime.om_file.ge_graph import Graph, Node, TensorDesc
from pagedom.runtime.packed_batch import BatchLayout, BatchLimits, PackedBatch

ROWS = TensorDesc("float32", (-1, 8))
INT64_LENGTHS = [
    Binding("input_ids", "input_ids", "int32", ("T",)),
    Binding("kv_lens", "kv_lens", "int64", ("B",)),
    Binding("block_table", "block_table", "int32", ("B", "M")),
]


def layered() -> Graph:
    """Two layers in names, a fused projection, something before and something behind."""
    ids = TensorDesc("int32", (-1,))

    def node(name: str, kind: str, *inputs: str, desc: TensorDesc = ROWS) -> Node:
        return Node(name, kind, [f"{each}:0" for each in inputs], {}, [desc] * len(inputs), [desc])

    nodes = [
        Node("input_ids", "Data", [], {"index": 0}, [ids], [ids]),
        Node("logits_rows", "Data", [], {"index": 1}, [ids], [ids]),
        Node("w", "Const", [], {"value": np.zeros((8, 8), np.float32)}, [], [ROWS]),
        node("/embed", "GatherV2", "w", "input_ids"),
        node("/layers.0/norm", "RmsNorm", "/embed", "w"),
        node("/layers.0/gate_up", "MatMulV2", "/layers.0/norm", "w"),
        node("/layers.0/act", "SwiGlu", "/layers.0/gate_up"),
        node("/layers.0/view", "Reshape", "/layers.0/act", "w"),
        node("/layers.1/add", "Add", "/layers.0/view", "/embed"),
        node("/rows", "GatherV2", "/layers.1/add", "logits_rows"),
        node("/head", "MatMulV2", "/rows", "w", desc=TensorDesc("float32", (-1, 20))),
        node("Node_Output", "NetOutput", "/head"),
    ]
    return Graph("layered", nodes)


def test_points_are_the_operators_that_compute_rows():
    points = points_of(layered())
    assert [(p.node, p.layer, p.width, p.of_logits) for p in points] == [
        ("/embed", BEFORE, 8, False),
        ("/layers.0/norm", 0, 8, False),
        ("/layers.0/act", 0, 8, False),
        ("/layers.1/add", 1, 8, False),
        ("/rows", BEHIND, 8, True),
        ("/head", BEHIND, 20, True),
    ]
    assert [layer_name(p.layer) for p in points[::5]] == ["input", "head"]
    assert "/layers.0/gate_up" in {p.node for p in points_of(layered(), fused=False)}


def test_the_instrumented_graph_is_a_copy_with_more_outputs():
    graph = layered()
    before = copy.deepcopy(graph)
    seen = instrumented(graph, points_of(graph)[:2])
    assert graph.net_output == before.net_output
    assert seen.net_output.inputs == ["/head:0", "/embed:0", "/layers.0/norm:0"]
    assert seen.net_output.input_descs[1:] == [ROWS, ROWS]
    assert seen.validate() == []
    assert [node.name for node in seen.nodes] == [node.name for node in graph.nodes]


def test_pairs_need_name_and_width():
    other = layered()
    other.node("/rows").output_descs = [TensorDesc("float32", (-1, 9))]
    other.nodes = [node for node in other.nodes if node.name != "/embed"]
    names = [a.node for a, _ in paired(layered(), other)]
    assert names == ["/layers.0/norm", "/layers.0/act", "/layers.1/add", "/head"]


def test_an_operator_and_its_body_are_one_pair():
    """Also when the body ends with an operator that is no point by itself."""
    other = layered()
    at = other.nodes.index(other.node("/layers.0/norm"))
    names = ["/layers.0/norm/Mul", "/layers.0/norm/Add", "/layers.0/norm/View"]
    kinds = ["Mul", "Add", "Reshape"]
    body = [Node(n, k, ["/embed:0"], {}, [ROWS], [ROWS]) for n, k in zip(names, kinds)]
    other.nodes[at : at + 1] = body
    for first, second, wanted in (
        (layered(), other, ("/layers.0/norm", "/layers.0/norm/View")),
        (other, layered(), ("/layers.0/norm/View", "/layers.0/norm")),
    ):
        pairs = paired(first, second)
        assert len(pairs) == len(points_of(layered()))
        assert (pairs[1][0].node, pairs[1][1].node) == wanted


def test_rows_of_whole_caches_are_no_points():
    graph = layered()
    cache = TensorDesc("float32", (-1, 4, 2, 4))
    graph.nodes.insert(2, Node("pool", "Data", [], {"index": 2}, [cache], [cache]))
    at = graph.nodes.index(graph.node("/rows"))
    moved = [
        Node("/step/pool_rows", "Reshape", ["pool:0", "w:0"], {}, [cache], [ROWS]),
        Node("/layers.1/past", "GatherV2", ["/step/pool_rows:0"], {}, [ROWS], [ROWS]),
        Node("/layers.1/keys", "ConcatD", ["/layers.1/past:0"], {}, [ROWS], [ROWS]),
        Node("/layers.1/mixed", "BatchMatMulV2", ["/layers.1/keys:0"], {}, [ROWS], [ROWS]),
    ]
    graph.nodes[at:at] = moved
    names = {point.node for point in points_of(graph)}
    assert "/layers.1/mixed" in names
    assert not names & {"/step/pool_rows", "/layers.1/past", "/layers.1/keys"}


def test_suspects_lie_between_a_point_and_the_sound_ones():
    graph = layered()
    points = {point.node: point for point in points_of(graph)}
    sound = ["/embed", "/layers.0/norm"]
    assert suspects(graph, points["/layers.1/add"], sound) == [
        "/layers.0/gate_up",
        "/layers.0/act",
        "/layers.1/add",
    ]


def test_cache_points_are_the_rows_that_are_written():
    found = cache_points(formula_graph.graph(32))
    assert {name: (p.edge, p.width) for name, p in found.items()} == {
        "key_cache.0": ("k_new:0", 64),
        "value_cache.0": ("v_new:0", 64),
    }


def test_chunks_keep_layers_whole_and_memory_bounded():
    points = points_of(layered())
    pairs = list(zip(points, points))
    whole = list(chunked(pairs, 4, 1 << 20))
    assert whole == [pairs]
    tight = list(chunked(pairs, 4, 1))
    assert [[a.node for a, _ in chunk] for chunk in tight] == [
        ["/embed"],
        ["/layers.0/norm", "/layers.0/act"],
        ["/layers.1/add"],
        ["/rows", "/head"],
    ]
    two_layers = (1 + 2) * 2 * 8 * 4 * 4  # three points, two sides, 8 floats, 4 tokens
    assert [len(chunk) for chunk in chunked(pairs, 4, two_layers)] == [3, 1, 2]


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


WHERE = [Where(0, 0, 5), Where(0, 1, 9)]


def agreement() -> Agreement:
    return Agreement(points_of(layered())[0])


def test_numbers_of_an_agreement():
    each = agreement()
    each.add(rows([3, 4], [0, 0]), rows([3, 4], [0, 0]), WHERE, 0.1)
    assert (each.rows, each.worst, each.largest, each.cosine) == (2, 0.0, 0.0, 1.0)
    assert each.first is None
    each.add(rows([3, 4], [6, 8]), rows([3, 4], [6, 13]), WHERE, 0.1)
    assert each.worst == pytest.approx(0.5)
    assert each.largest == 5.0
    assert each.cosine == pytest.approx((36 + 104) / (10 * np.hypot(6, 13)))
    assert each.at == each.first == WHERE[1]


def test_first_is_the_first_row_beyond_even_if_a_later_one_is_worse():
    each = agreement()
    each.add(rows([1, 0], [1, 0]), rows([1.5, 0], [9, 0]), WHERE, 0.1)
    assert (each.first, each.at) == (WHERE[0], WHERE[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_agrees(bad):
    each = agreement()
    each.add(rows([1, bad], [1, 1]), rows([1, bad], [1, 1]), WHERE, 1e9)
    assert each.worst == math.inf
    assert each.first == WHERE[0]
    assert each.cosine == -1.0


def test_a_row_that_should_be_zero_and_is_not():
    each = agreement()
    each.add(rows([0, 0]), rows([0, 2]), WHERE[:1], 0.1)
    assert each.worst == 2.0
    assert each.cosine == 1.0 or each.cosine < 1.0


def test_flat_rows_drop_padding():
    array = np.arange(24).reshape(4, 2, 3)
    assert flat_rows(array, 3).shape == (3, 6)
    assert flat_rows(array, 3).dtype == np.float32


def test_a_step_is_copied_into_another_layout():
    """Other dtypes, a wider table, and what an earlier step left there."""
    one = PackedBatch(BatchLayout.of(BatchLimits(8, 4, 2, 16)))
    other = PackedBatch(BatchLayout.of(BatchLimits(16, 8, 5, 16), INT64_LENGTHS))
    other.num_tokens = other.num_seqs = 8
    other.table()[...] = 99
    one.num_tokens, one.num_seqs, one.num_logits = 5, 2, 1
    for number, source in enumerate(one.sources):
        one.view(source)[...] = number + 1
    copy_step(one, other)
    page = 1 + one.sources.index("block_table")
    assert other.table().tolist() == [[page, page, 0, 0, 0]] * 2
    assert other.view("kv_lens").tolist() == [6, 6]
    assert other.view("kv_lens").dtype == np.int64
    assert other.view("input_ids").tolist() == [1] * 5
    assert other.sources == ("input_ids", "kv_lens", "block_table")

"""The graph in plain Python: edges, inputs in order, and every problem reported at once."""

from __future__ import annotations

import pytest
from om_samples import linear_model

from pagedom.runtime.om_file import Graph, Node, TensorDesc
from pagedom.runtime.om_file.ge_graph import Edge, parse_edge

DESC = TensorDesc("float32", (2,))


@pytest.mark.parametrize(
    ("text", "edge"),
    [("a:0", Edge("a", 0)), ("a:b:12", Edge("a:b", 12)), ("a:-1", Edge("a", -1)), ("", None)],
)
def test_edges_parse(text, edge):
    assert parse_edge(text) == edge


@pytest.mark.parametrize("text", ["a", ":0", "a:", "a:x", "a:-2", "a:0.5"])
def test_a_malformed_edge_is_refused(text):
    with pytest.raises(ValueError, match="producer:index"):
        parse_edge(text)


def test_a_sound_graph_has_no_problems():
    model, _, _ = linear_model()
    assert model.graph.validate() == []


def test_data_nodes_come_in_the_order_of_their_index():
    nodes = [
        Node(n, "Data", attrs={"index": i}, output_descs=[DESC]) for i, n in ((1, "b"), (0, "a"))
    ]
    assert [n.name for n in Graph("g", nodes).data_nodes] == ["a", "b"]


def test_consumers_name_node_and_position():
    graph = linear_model()[0].graph
    assert [(node.name, place) for node, place in graph.consumers("w")] == [("mm", 1)]


def test_every_problem_is_reported_at_once():
    graph = Graph(
        "g",
        [
            Node("late", "Relu", ["x:0", "ghost:0", "oops"], output_descs=[DESC]),
            Node("x", "Data", attrs={"index": 1}, output_descs=[DESC]),
            Node("x", "Data", attrs={"index": 1}, output_descs=[DESC]),
            Node("r", "Relu", ["x:3"], output_descs=[DESC]),
            Node("", "Relu"),
        ],
    )
    text = "\n".join(graph.validate())
    for expected in (
        "'x' is listed after its consumer",
        "no node is named 'ghost'",
        "edge 'oops'",
        "two nodes are named 'x'",
        "both have index 1",
        "output 3 of 'x' (Data), which has 1",
        "node 4 has no name",
        "0 NetOutput nodes",
    ):
        assert expected in text


def test_execution_order_may_be_waived_for_files_of_others():
    nodes = [
        Node("Node_Output", "NetOutput", ["x:0"], input_descs=[DESC]),
        Node("x", "Data", attrs={"index": 0}, output_descs=[DESC]),
    ]
    assert Graph("g", nodes).validate(ordered=False) == []
    assert Graph("g", nodes).validate() != []

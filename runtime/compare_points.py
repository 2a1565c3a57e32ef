"""Where two executions of one model are compared: points of its graph, and a graph that shows them.

A point is the output of an operator with one row a token (or one a row of logits) and a fixed
width. `instrumented` returns a copy of the graph whose NetOutput has the points as extra outputs;
the nodes themselves are shared with the original and nothing is changed.

Two graphs of one model (plain, gears, rows, another dtype) share the names of their operators, so
points are paired by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .om_file.ge_graph import CONST_TYPES, DATA_TYPES, Graph, Node, TensorDesc

FLOATS = frozenset({"float32", "float16", "bfloat16"})
BEFORE, BEHIND = -1, 1 << 30  # "layers" of the operators before the first and behind the last one

# Operators that show nothing new: their input's values, or whole caches.
_SILENT = frozenset(
    {
        "Cast",
        "Identity",
        "Reshape",
        "ScatterNdUpdate",
        "ScatterPaKvCache",
        "ScatterUpdate",
        "TensorMove",
        "Transpose",
        "TransposeD",
    }
)
_LAYER = re.compile(r"(?:^|[/.])layers\.(\d+)(?=[/.]|$)")
_ROWS_SOURCE = "logits_rows"


@dataclass(frozen=True)
class Point:
    """A tensor to look at: output 0 of `node`, of operator `type`, with `width` numbers a row.

    layer: number, BEFORE or BEHIND. of_logits: one row a row of logits, else one a token.
    """

    node: str
    type: str
    layer: int
    edge: str
    width: int
    dtype: str
    of_logits: bool

    @property
    def place(self) -> str:
        """The layer in words."""
        return layer_name(self.layer)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as float32."""
        return 4 * self.width


def layer_name(layer: int) -> str:
    """Return "layer 3", "input" or "head"."""
    return {BEFORE: "input", BEHIND: "head"}.get(layer, f"layer {layer}")


def points_of(graph: Graph, fused: bool = True) -> list[Point]:
    """Return every point of a graph in execution order.

    fused: leave out the projection in front of a SwiGlu, which executors compute in one go with
    it; looking at it would make them run another program than the one that serves.
    """
    layers = _layers(graph)
    late = _reached_from(graph, _ROWS_SOURCE)
    points = []
    for node in graph.nodes:
        if node.type in _SILENT | DATA_TYPES | CONST_TYPES | {"NetOutput"} or not node.output_descs:
            continue
        desc = node.output_descs[0]
        if not _has_rows(desc) or (fused and _is_fused(graph, node)):
            continue
        points.append(
            Point(
                node.name,
                node.type,
                layers[node.name],
                f"{node.name}:0",
                math.prod(desc.shape[1:]),
                desc.dtype,
                node.name in late,
            )
        )
    return points


def paired(first: Sequence[Point], second: Sequence[Point]) -> list[tuple[Point, Point]]:
    """Return the points that both graphs have, by name and width, in the first's order."""
    others = {point.node: point for point in second}
    return [
        (point, others[point.node])
        for point in first
        if point.node in others and others[point.node].width == point.width
    ]


def instrumented(graph: Graph, points: Iterable[Point]) -> Graph:
    """Return a copy of `graph` whose NetOutput also has `points`, behind its own outputs."""
    edges = [point.edge for point in points]
    end = graph.net_output
    seen = replace(
        end,
        inputs=[*end.inputs, *edges],
        input_descs=[*end.input_descs, *(graph.input_desc(edge) for edge in edges)],
        input_names=[*end.input_names, *edges] if end.input_names else [],
        extra=None,
    )
    return replace(graph, nodes=[seen if node is end else node for node in graph.nodes])


def suspects(graph: Graph, point: Point, sound: Iterable[str]) -> list[str]:
    """Return the operators between `point` and the points before it that are `sound`.

    In execution order, `point` itself last; what leads to the caches is not followed, because the
    rows that went there are points of their own.
    """
    nodes = {node.name: node for node in graph.nodes}
    stop = set(sound)
    found: set[str] = set()
    waiting = [point.node]
    while waiting:
        name = waiting.pop()
        node = nodes[name]
        if name in found or name in stop or node.type in DATA_TYPES | CONST_TYPES:
            continue
        found.add(name)
        waiting += [edge.producer for edge in node.edges() if edge is not None]
    views = ("Identity", "Reshape")  # cannot be wrong
    return [n.name for n in graph.nodes if n.name in found and n.type not in views]


def constants_of(graph: Graph, name: str) -> list[str]:
    """Return the names of the constants that an operator reads."""
    kinds = {node.name: node.type for node in graph.nodes}
    edges = [edge for edge in graph.node(name).edges() if edge is not None]
    return [edge.producer for edge in edges if kinds[edge.producer] in CONST_TYPES]


def cache_points(graph: Graph) -> dict[str, Point]:
    """Return for each cache source (key_cache.0, ...) the rows that are written into it.

    A cache holds no more than these rows, so they can be compared with pages read from a device
    whose graph cannot be changed.
    """
    kinds = {node.name: node for node in graph.nodes}
    layers = _layers(graph)
    found = {}
    for node in graph.nodes:
        if node.type != "ScatterPaKvCache":
            continue
        for rows, cache in ((0, 1), (3, 4)):
            name = node.inputs[cache].rpartition(":")[0]
            desc = graph.input_desc(node.inputs[rows])
            if kinds[name].type in DATA_TYPES and _has_rows(desc):
                width = math.prod(desc.shape[1:])
                edge, layer = node.inputs[rows], layers[node.name]
                found[name] = Point(name, node.type, layer, edge, width, desc.dtype, False)
    return found


def _has_rows(desc: TensorDesc) -> bool:
    return (
        desc.dtype in FLOATS
        and len(desc.shape) > 1
        and desc.shape[0] == -1
        and all(extent > 0 for extent in desc.shape[1:])
    )


def _is_fused(graph: Graph, node: Node) -> bool:
    if node.type != "MatMulV2":
        return False
    uses = graph.consumers(node.name)
    return len(uses) == 1 and uses[0][0].type == "SwiGlu"


def _layers(graph: Graph) -> Mapping[str, int]:
    """The layer of every node: by its name, else before the first or behind the last layer."""
    named = {node.name: _LAYER.search(node.name) for node in graph.nodes}
    last = max((place for place, node in enumerate(graph.nodes) if named[node.name]), default=-1)
    found = {}
    for place, node in enumerate(graph.nodes):
        match = named[node.name]
        found[node.name] = int(match[1]) if match else BEHIND if place > last else BEFORE
    return found


def _reached_from(graph: Graph, source: str) -> set[str]:
    """Names of the nodes that depend on a Data node, itself included."""
    reached = {source}
    for node in graph.nodes:
        if any(edge is not None and edge.producer in reached for edge in node.edges()):
            reached.add(node.name)
    return reached

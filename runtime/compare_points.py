"""Where two executions of one model are compared: points of its graph, and a graph that shows them.

A point is the output of an operator with one row a token (or one a row of logits) and a fixed
width. `instrumented` returns a copy of the graph whose NetOutput has the points as extra outputs;
the nodes themselves are shared with the original and nothing is changed.

Two graphs of one model (plain, gears, rows, another dtype) share the names of their operators, so
points are paired by name; an operator and its body of base operators count as one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
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
# Through these a row of a cache stays one: [slots, ...], of which only a few belong to the step.
_MOVES = frozenset({"ConcatD", "GatherV2", "SelectV2", "UnsqueezeV3"}) | _SILENT
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
    skip = _SILENT | DATA_TYPES | CONST_TYPES | {"NetOutput"}
    make = _PointMaker(graph)
    return [
        make(node)
        for node in graph.nodes
        if node.type not in skip and make.can(node) and not (fused and _is_fused(graph, node))
    ]


def paired(first: Graph, second: Graph, fused: bool = True) -> list[tuple[Point, Point]]:
    """Return the points that both graphs have, in the first's order; the widths are equal.

    Case 1: an operator of the same name. Case 2: an operator of one graph is a body of base
    operators in the other, whose names start with its name and a slash: the body's last one.
    """
    sides = (points_of(first, fused), points_of(second, fused))
    known = [{point.node: point for point in points} for points in sides]
    makers = (_PointMaker(first), _PointMaker(second))
    pairs = []
    for point in sides[0]:
        twin = known[1].get(point.node) or makers[1].body(point.node)
        pairs.append((point, twin))
    order = {node.name: place for place, node in enumerate(first.nodes)}
    for point in sides[1]:
        if point.node not in known[0] and (twin := makers[0].body(point.node)) is not None:
            pairs.append((twin, point))
    seen = [(a, b) for a, b in pairs if b is not None and a.width == b.width]
    # A body's last operator may be a point by itself: it is paired once, with the whole operator.
    twice: dict[str, tuple[Point, Point]] = {}
    for pair in seen:
        twice[pair[0].node] = pair
    return sorted(twice.values(), key=lambda pair: order[pair[0].node])


class _PointMaker:
    """Makes points of a graph's nodes; layers and rows are worked out once."""

    def __init__(self, graph: Graph) -> None:
        self._layers = _layers(graph)
        self._late = _reached_from(graph, _ROWS_SOURCE)
        self._caches = _of_caches(graph)
        self._last: dict[str, Node] = {}  # name of a possible body -> its last node
        for node in graph.nodes:
            if self.can(node):
                parts = node.name.split("/")
                for end in range(2, len(parts)):
                    self._last["/".join(parts[:end])] = node

    def can(self, node: Node) -> bool:
        """Whether output 0 of a node has a row a token or a row of logits."""
        shown = bool(node.output_descs) and _has_rows(node.output_descs[0])
        return shown and node.name not in self._caches

    def __call__(self, node: Node) -> Point:
        """Return the point of a node that can be one."""
        desc = node.output_descs[0]
        return Point(
            node.name,
            node.type,
            self._layers[node.name],
            f"{node.name}:0",
            math.prod(desc.shape[1:]),
            desc.dtype,
            node.name in self._late,
        )

    def body(self, name: str) -> Point | None:
        """Return the result of the body of base operators that stands for an operator, or None."""
        node = self._last.get(name)
        return None if node is None else self(node)


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
    """Return for key_cache.0, value_cache.0, ... the rows that each layer writes.

    A cache holds no more than these rows, so they can be compared with pages read from a device
    whose graph cannot be changed. A graph whose runtime copies the rows has none.
    """
    layers = _layers(graph)
    found = {}
    for number, node in enumerate(n for n in graph.nodes if n.type == "ScatterPaKvCache"):
        layer = layers[node.name] if 0 <= layers[node.name] < BEHIND else number
        for kind, rows in (("key", 0), ("value", 3)):
            desc = graph.input_desc(node.inputs[rows])
            if _has_rows(desc):
                name, width = f"{kind}_cache.{layer}", math.prod(desc.shape[1:])
                found[name] = Point(
                    name, node.type, layer, node.inputs[rows], width, desc.dtype, False
                )
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


def _of_caches(graph: Graph) -> set[str]:
    """Names of the nodes that hold rows of whole caches: floating inputs and what moves them."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.type in DATA_TYPES:
            if node.output_descs[0].dtype in FLOATS:
                found.add(node.name)
        elif node.type in _MOVES and any(
            edge is not None and edge.producer in found for edge in node.edges()
        ):
            found.add(node.name)
    return found

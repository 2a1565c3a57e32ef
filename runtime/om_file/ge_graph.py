"""The GE-IR graph in plain Python: what MODEL_DEF holds, without protobuf and without bytes.

    Data "input_ids" ──"input_ids:0"──> Gather ──"embed:0"──> ... ──> NetOutput
                                          ^
    Const "embed.weight" (attr value = WeightRef into WEIGHTS_DATA)

An edge is a string "producer:output_index"; "producer:-1" is a control edge (order only, no
tensor) and "" an absent optional input. Nodes are listed in execution order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import OmFormatError

CONTROL_INDEX = -1
DATA_TYPES = frozenset({"Data", "RefData", "AippData"})
CONST_TYPES = frozenset({"Const", "Constant"})


@dataclass(frozen=True)
class TensorDesc:
    """Type of one tensor: dtype name, shape (-1 = known at run time, (-2,) = unknown rank)."""

    dtype: str
    shape: tuple[int, ...]
    name: str = ""
    format: str = "ND"
    # Serialized fields of the file that this class lacks; None for one that we made ourselves.
    extra: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def is_dynamic(self) -> bool:
        """Whether an extent is only known at run time."""
        return any(extent < 0 for extent in self.shape)

    @property
    def num_elements(self) -> int:
        """Number of elements, or -1 for a dynamic shape; a scalar has 1."""
        if self.is_dynamic:
            return -1
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True)
class WeightRef:
    """A constant whose bytes lie in WEIGHTS_DATA; offset and nbytes in bytes, offset 0 = none."""

    offset: int
    nbytes: int
    desc: TensorDesc


@dataclass(frozen=True)
class ListListInt:
    """Attribute value of kind list_list_int, for example shape_range."""

    rows: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class DataTypeValue:
    """Attribute value of kind data type: the number as the file has it (C++ enumeration)."""

    number: int


@dataclass(frozen=True)
class OpaqueAttr:
    """Attribute value of a kind without a Python form here (function, graph, expression, ...)."""

    data: bytes  # serialized AttrDef


class InlineArray(np.ndarray):
    """A constant whose bytes are in MODEL_DEF: an array that remembers the file's descriptor."""

    desc: TensorDesc | None = None


class EmptyList(list[Any]):
    """An empty list attribute that remembers the element kind the file declared for it."""

    def __init__(self, val_type: int) -> None:
        super().__init__()
        self.val_type = val_type


@dataclass(frozen=True)
class Edge:
    """One parsed input of a node."""

    producer: str
    index: int

    @property
    def is_control(self) -> bool:
        """Whether the edge orders two nodes without carrying a tensor."""
        return self.index == CONTROL_INDEX


def parse_edge(text: str) -> Edge | None:
    """Parse "producer:index"; None for "" (absent); raises OmFormatError for anything else."""
    if not text:
        return None
    producer, separator, index = text.rpartition(":")
    try:
        number = int(index)
    except ValueError:
        number = CONTROL_INDEX - 1
    if not separator or not producer or number < CONTROL_INDEX:
        raise OmFormatError(
            f"edge {text!r} is not of the form 'producer:index' with an index >= -1"
        )
    return Edge(producer, number)


@dataclass
class Node:
    """One operator. Attribute values are the Python forms listed in `attr_values.py`."""

    name: str
    type: str
    inputs: list[str] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    input_descs: list[TensorDesc] = field(default_factory=list)
    output_descs: list[TensorDesc] = field(default_factory=list)
    input_names: list[str] = field(default_factory=list)  # IR names, one an input, may be empty
    output_names: list[str] = field(default_factory=list)
    # Serialized fields of the file that this class lacks; None for one that we made ourselves.
    extra: bytes | None = field(default=None, repr=False, compare=False)

    def edges(self) -> list[Edge | None]:
        """Return the parsed inputs, data edges first as in the file, None where absent."""
        return [parse_edge(text) for text in self.inputs]


@dataclass
class Graph:
    """A named list of nodes in execution order; see validate() for what must hold."""

    name: str
    nodes: list[Node] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    extra: bytes | None = field(default=None, repr=False, compare=False)  # as in Node

    def node(self, name: str) -> Node:
        """Return the node of that name; raises KeyError naming the graph."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(f"graph {self.name!r} has no node {name!r}")

    @property
    def data_nodes(self) -> list[Node]:
        """The graph's inputs, sorted by their attribute `index` (file order where it is absent)."""
        found = [node for node in self.nodes if node.type in DATA_TYPES]
        indices = [node.attrs.get("index") for node in found]
        order = [i if isinstance(i, int) else place for place, i in enumerate(indices)]
        return [found[place] for place in sorted(range(len(found)), key=order.__getitem__)]

    @property
    def net_output(self) -> Node:
        """The node whose inputs are the graph's outputs; raises KeyError when there is none."""
        for node in self.nodes:
            if node.type == "NetOutput":
                return node
        raise KeyError(f"graph {self.name!r} has no NetOutput node")

    def consumers(self, name: str) -> list[tuple[Node, int]]:
        """Return (node, input position) of every use of a node's outputs, control edges too."""
        uses: list[tuple[Node, int]] = []
        for node in self.nodes:
            for position, edge in enumerate(node.edges()):
                if edge is not None and edge.producer == name:
                    uses.append((node, position))
        return uses

    def input_desc(self, text: str) -> TensorDesc:
        """Return the descriptor of the tensor that the edge text names; KeyError if unknown."""
        edge = parse_edge(text)
        if edge is None or edge.is_control:
            raise KeyError(f"edge {text!r} carries no tensor")
        descs = self.node(edge.producer).output_descs
        if edge.index >= len(descs):
            raise KeyError(f"node {edge.producer!r} has {len(descs)} outputs, not {edge.index + 1}")
        return descs[edge.index]

    def validate(self, *, ordered: bool = True) -> list[str]:
        """Return every problem of the graph as one sentence each; empty when it is sound.

        Args:
            ordered: nodes must be in execution order; GE's own files need not be.
        """
        return list(_problems(self, ordered))


def _problems(graph: Graph, ordered: bool) -> Iterator[str]:
    places: dict[str, int] = {}
    for place, node in enumerate(graph.nodes):
        if not node.name or not node.type:
            yield f"node {place} has no {'type' if node.name else 'name'}"
        if node.name in places:
            yield f"two nodes are named {node.name!r} (nodes {places[node.name]} and {place})"
        places.setdefault(node.name, place)
    for place, node in enumerate(graph.nodes):
        for position, text in enumerate(node.inputs):
            problem = _edge_problem(graph, text, place if ordered else len(graph.nodes), places)
            if problem:
                yield f"input {position} of {node.name!r} ({node.type}): {problem}"
    yield from _input_problems(graph)
    net_outputs = [node.name for node in graph.nodes if node.type == "NetOutput"]
    if len(net_outputs) != 1:
        yield f"graph {graph.name!r} has {len(net_outputs)} NetOutput nodes, needs exactly one"


def _edge_problem(graph: Graph, text: str, place: int, places: dict[str, int]) -> str:
    """Return what is wrong with an edge into node number `place`, "" when nothing is."""
    try:
        edge = parse_edge(text)
    except OmFormatError as error:
        return str(error)
    if edge is None:
        return ""
    if edge.producer not in places:
        return f"no node is named {edge.producer!r}"
    producer = graph.nodes[places[edge.producer]]
    if edge.index >= len(producer.output_descs):
        count = len(producer.output_descs)
        return f"output {edge.index} of {producer.name!r} ({producer.type}), which has {count}"
    if places[edge.producer] >= place:
        return f"{edge.producer!r} is listed after its consumer"
    return ""


def _input_problems(graph: Graph) -> Iterator[str]:
    owners: dict[int, str] = {}
    for node in graph.data_nodes:
        index = node.attrs.get("index")
        if index is None:
            continue
        if not isinstance(index, int):
            yield f"Data node {node.name!r} has index {index!r}, must be an int"
            continue
        if index in owners:
            yield f"Data nodes {owners[index]!r} and {node.name!r} both have index {index}"
        owners.setdefault(index, node.name)
    if owners and sorted(owners) != list(range(len(owners))):
        yield f"Data indices are {sorted(owners)}, must be 0 .. {len(owners) - 1}"

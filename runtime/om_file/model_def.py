"""ModelDef: the content of a MODEL_DEF partition as graphs of Python nodes.

Reading keeps what the Python classes have no field for in their `extra` bytes, so that reading
and writing a real file loses nothing. Writing a graph of our own adds what GE's serializer always
writes: ids, input and output names, origin shapes, sources of NetOutput.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from google.protobuf.message import DecodeError, EncodeError

from .attr_compression import AttrDictionary, decompress
from .attr_values import attr_from_python, attr_to_python
from .errors import OmFormatError
from .ge_graph import CONST_TYPES, DATA_TYPES, Graph, Node
from .ge_proto import message_class
from .tensor_proto import desc_from_proto, desc_to_proto

OM_PROTO_VERSION = 2  # ModelDef.version of this format, also in the file header
_OP_FIELDS = ("name", "type", "input", "attr", "input_desc", "output_desc")
_NAME_KEYS = ("_input_name_key", "_input_name_value", "_output_name_key", "_output_name_value")


@dataclass
class ModelDef:
    """A model: graph 0 is the root, the others are sub-graphs that nodes refer to by name."""

    name: str
    graphs: list[Graph] = field(default_factory=list)
    attrs: dict[str, Any] = field(default_factory=dict)
    version: int = OM_PROTO_VERSION
    custom_version: str = ""
    extra: bytes = field(default=b"", repr=False, compare=False)
    dictionary: AttrDictionary | None = field(default=None, repr=False, compare=False)

    @property
    def graph(self) -> Graph:
        """The root graph; raises OmFormatError when the model has none."""
        if not self.graphs:
            raise OmFormatError(f"model {self.name!r} has no graph")
        return self.graphs[0]

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, dictionary: AttrDictionary | None = None
    ) -> ModelDef:
        """Parse a MODEL_DEF partition, with attribute keys decompressed.

        Args:
            data: the serialized message.
            dictionary: the root model's attribute dictionary, for a sub-model without its own.
        """
        return cls._from_message(*parse_model(data, dictionary))

    @classmethod
    def _from_message(cls, message: Any, dictionary: AttrDictionary | None) -> ModelDef:
        model = cls(
            name=message.name,
            graphs=[_graph_from_proto(graph) for graph in message.graph],
            attrs={key: attr_to_python(message.attr[key]) for key in sorted(message.attr)},
            version=message.version,
            custom_version=message.custom_version,
            dictionary=dictionary,
        )
        model.extra = _rest(message, ("name", "graph", "attr", "version", "custom_version"))
        return model

    def to_bytes(self) -> bytes:
        """Serialize; the same model gives the same bytes. Raises OmFormatError if it cannot."""
        message = message_class("ModelDef")()
        message.MergeFromString(self.extra)
        message.name = self.name
        message.version = self.version
        message.custom_version = self.custom_version
        for graph in self.graphs:
            _graph_to_proto(graph, message.graph.add())
        _attrs_to_proto(self.attrs, message.attr)
        try:
            return cast(bytes, message.SerializeToString(deterministic=True))
        except (EncodeError, ValueError) as error:
            raise OmFormatError(
                f"model {self.name!r} cannot be serialized ({error}): a protobuf message holds "
                "less than 2 GiB; large constants belong in WEIGHTS_DATA (WeightRef)"
            ) from None


def parse_model(
    data: bytes | memoryview, dictionary: AttrDictionary | None = None
) -> tuple[Any, AttrDictionary | None]:
    """Parse a MODEL_DEF partition to a message with plain attribute keys, and its dictionary."""
    message = message_class("ModelDef")()
    try:
        message.ParseFromString(bytes(data))
    except DecodeError as error:
        raise OmFormatError(
            f"MODEL_DEF of {len(data)} bytes is not a ge.proto.ModelDef message ({error})"
        ) from None
    return message, decompress(message, dictionary)


def _rest(message: Any, modelled: tuple[str, ...]) -> bytes:
    rest = type(message)()
    rest.CopyFrom(message)
    for name in modelled:
        rest.ClearField(name)
    return cast(bytes, rest.SerializeToString(deterministic=True))


def _graph_from_proto(message: Any) -> Graph:
    return Graph(
        name=message.name,
        nodes=[_node_from_proto(op) for op in message.op],
        attrs={key: attr_to_python(message.attr[key]) for key in sorted(message.attr)},
        extra=_rest(message, ("name", "op", "attr")),
    )


def _node_from_proto(op: Any) -> Node:
    attrs = {key: attr_to_python(op.attr[key]) for key in sorted(op.attr)}
    names = [attrs.pop(key, []) for key in _NAME_KEYS]
    return Node(
        name=op.name,
        type=op.type,
        inputs=list(op.input),
        attrs=attrs,
        input_descs=[desc_from_proto(desc) for desc in op.input_desc],
        output_descs=[desc_from_proto(desc) for desc in op.output_desc],
        input_names=_names_in_order(op.name, names[0], names[1]),
        output_names=_names_in_order(op.name, names[2], names[3]),
        extra=_rest(op, _OP_FIELDS),
    )


def _names_in_order(op_name: str, keys: Any, positions: Any) -> list[str]:
    """Undo the name -> index map that GE writes as two lists sorted by name."""
    lists = isinstance(keys, list) and isinstance(positions, list)
    if not lists or len(keys) != len(positions) or not all(map(_is_position, positions)):
        raise OmFormatError(
            f"operator {op_name!r} names inputs or outputs {keys} at positions {positions}"
        )
    names = [""] * (max(positions, default=-1) + 1)
    for key, position in zip(keys, positions):
        names[position] = key
    return names


def _is_position(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 16


def _attrs_to_proto(attrs: dict[str, Any], target: Any) -> None:
    for key in sorted(attrs):
        attr_from_python(target[key], key, attrs[key])


def _graph_to_proto(graph: Graph, message: Any) -> None:
    if graph.extra is not None:
        message.MergeFromString(graph.extra)
    else:
        message.input.extend(f"{node.name}:0" for node in graph.data_nodes)
        for node in graph.nodes:
            if node.type == "NetOutput":
                message.output.extend(text for text in node.inputs if text)
    message.name = graph.name
    _attrs_to_proto(graph.attrs, message.attr)
    context = _GraphContext(graph)
    for place, node in enumerate(graph.nodes):
        _node_to_proto(node, place, context, message.op.add())


class _GraphContext:
    """What a node's message says about its neighbours, gathered once a graph."""

    def __init__(self, graph: Graph) -> None:
        self.const_names = {node.name for node in graph.nodes if node.type in CONST_TYPES}
        self.consumers: dict[str, list[tuple[str, int]]] = {}
        data_names = {node.name for node in graph.nodes if node.type in DATA_TYPES}
        for node in graph.nodes:
            for position, edge in enumerate(node.edges()):
                if edge is not None and not edge.is_control and edge.producer in data_names:
                    self.consumers.setdefault(edge.producer, []).append((node.name, position))


def _node_to_proto(node: Node, place: int, context: _GraphContext, op: Any) -> None:
    if node.extra is not None:
        op.MergeFromString(node.extra)
    else:
        _add_standard_fields(node, place, context, op)
    op.name = node.name
    op.type = node.type
    op.input.extend(node.inputs)
    for desc in node.input_descs:
        desc_to_proto(desc, op.input_desc.add())
    for desc in node.output_descs:
        desc_to_proto(desc, op.output_desc.add())
    # A node from a file without names (HiAI) stays without: only ours get the defaults.
    ours = node.extra is None
    _names_to_proto(op, "input", node.input_names, len(node.input_descs) if ours else 0)
    _names_to_proto(op, "output", node.output_names, len(node.output_descs) if ours else 0)
    _attrs_to_proto(node.attrs, op.attr)


def _names_to_proto(op: Any, side: str, names: list[str], num_defaults: int) -> None:
    """Write names as GE does: two lists, sorted by name; unnamed ones are __input<i>."""
    full = names or [f"__{side}{index}" for index in range(num_defaults)]
    pairs = sorted((name, index) for index, name in enumerate(full) if name)
    if not pairs:
        return
    op.attr[f"_{side}_name_key"].list.s.extend(name.encode() for name, _ in pairs)
    op.attr[f"_{side}_name_value"].list.i.extend(index for _, index in pairs)


def _add_standard_fields(node: Node, place: int, context: _GraphContext, op: Any) -> None:
    op.id = place
    op.is_input_const.extend(
        edge is not None and edge.producer in context.const_names
        for edge in node.edges()
        if edge is None or not edge.is_control
    )
    if node.type == "NetOutput":
        for edge in node.edges():
            if edge is not None and not edge.is_control:
                op.src_name.append(edge.producer)
                op.src_index.append(edge.index)
    for name, position in context.consumers.get(node.name, ()):
        op.dst_name.append(name)
        op.dst_index.append(position)

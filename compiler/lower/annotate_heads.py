"""What the parser plugin needs of every operator of ours, written on the ONNX nodes.

The plugin sees a node's attributes and nothing of its shapes (they are inferred after parsing), and
a float reaches it with six digits (graph_ops/ascend/attribute_json.h). So, before ATC:

1. PagedAttention, TokenAttention
                   int num_heads, num_key_value_heads, head_dim, block_size; scale_bits
2. RmsNorm         epsilon_bits
3. Rotary          its angles, float32 [T,D], become [T,1,D] in the dtype of x, once for all nodes;
                   int angles_ready = 1

A `_bits` attribute holds the float32 of the attribute it is named after, as an unsigned number.

Precondition: shapes are known, and no function body of domain `pagedom` is left (it would not take
the new angles and attributes). Postcondition: every node carries its row of the table. Running it
again changes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from ...graph_ops.schema import DOMAIN
from .infra import PassError

ANGLES_READY = "angles_ready"
_ROTARY_ANGLES = (1, 2)  # inputs cos, sin


def annotate_for_plugin(model: ir.Model) -> int:
    """Write the attributes in place; returns how many nodes changed.

    Raises PassError naming the node whose shape is not known, or a function body that is left.
    """
    left = sorted(name for domain, name, _ in model.functions if domain == DOMAIN)
    if left:
        raise PassError(
            f"the function bodies of {', '.join(left)} are still in the model; strip them before "
            "the nodes are annotated for the parser plugin"
        )
    angles = _Angles(model.graph)
    changed = 0
    for node in list(model.graph):
        if node.domain != DOMAIN:
            continue
        given = dict(node.attributes)
        for name, value in _WRITERS[node.op_type](node).items():
            node.attributes[name] = ir.Attr(name, ir.AttributeType.INT, value)
        if node.op_type == "Rotary":
            angles.prepare(node)
        changed += dict(node.attributes) != given
    return changed


def float_bits(value: float) -> int:
    """Return the bits of a number rounded to float32, as an unsigned number."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _attention(node: ir.Node) -> dict[str, int]:
    _, heads, _ = _shape(node, 0, 3)
    return {"num_heads": _fixed(node, 0, heads), "scale_bits": _bits(node, "scale")} | _cache(node)


def _rms_norm(node: ir.Node) -> dict[str, int]:
    return {"epsilon_bits": _bits(node, "epsilon")}


def _nothing(node: ir.Node) -> dict[str, int]:
    return {}


_WRITERS: Mapping[str, Callable[[ir.Node], dict[str, int]]] = MappingProxyType(
    {
        "PagedAttention": _attention,
        "TokenAttention": _attention,
        "KVUpdate": _nothing,
        "SlotUpdate": _nothing,
        "RmsNorm": _rms_norm,
        "Rotary": _nothing,
        "SwiGlu": _nothing,
    }
)


def _cache(node: ir.Node) -> dict[str, int]:
    """What the key cache [P,S,K,D], input 1, says."""
    _, page_size, kv_heads, dim = _shape(node, 1, 4)
    names = ("block_size", "num_key_value_heads", "head_dim")
    return {name: _fixed(node, 1, d) for name, d in zip(names, (page_size, kv_heads, dim))}


def _shape(node: ir.Node, index: int, rank: int) -> ir.Shape:
    value = node.inputs[index]
    if value is None or value.shape is None or len(value.shape) != rank:
        raise PassError(
            f"input {index} of node {node.name} ({node.op_type}) has shape "
            f"{None if value is None else value.shape}; the plugin needs its {rank} dims: infer "
            "shapes first"
        )
    return value.shape


def _fixed(node: ir.Node, index: int, dim: int | ir.SymbolicDim) -> int:
    if not isinstance(dim, int):
        raise PassError(
            f"input {index} of node {node.name} ({node.op_type}) has dim {dim} where the plugin "
            "needs a number: heads, head dim and page size are fixed at export"
        )
    return dim


def _bits(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    if attribute is None:
        raise PassError(f"node {node.name} ({node.op_type}) has no attribute {name}")
    return float_bits(attribute.as_float())


class _Angles:
    """Makes the angles of rotary nodes once a table and dtype."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.made: dict[tuple[str, ir.DataType], ir.Value] = {}

    def prepare(self, node: ir.Node) -> None:
        ready = node.attributes.get(ANGLES_READY)
        if ready is not None and ready.as_int() == 1:
            return
        x = node.inputs[0]
        if x is None or x.dtype is None:
            raise PassError(f"node {node.name} (Rotary) has an x of unknown dtype")
        for index in _ROTARY_ANGLES:
            dim = _fixed(node, index, _shape(node, index, 2)[1])
            table = node.inputs[index]
            assert table is not None
            key = (str(table.name), x.dtype)
            if key not in self.made:
                self.made[key] = self._make(table, dim, x.dtype)
            node.replace_input_with(index, self.made[key])
        node.attributes[ANGLES_READY] = ir.Attr(ANGLES_READY, ir.AttributeType.INT, 1)

    def _make(self, table: ir.Value, dim: int, dtype: ir.DataType) -> ir.Value:
        assert table.shape is not None
        stem = str(table.name).removesuffix("_output_0")
        shape = ir.Shape([table.shape[0], 1, dim])
        target = self._target(dim)
        last = ir.Node(
            "",
            "Reshape",
            [table, target],
            name=f"{stem}/Reshape",
            outputs=[ir.Value(name=f"{stem}/Reshape_output_0", shape=shape, type=table.type)],
        )
        made = [last]
        if table.dtype != dtype:
            kind = ir.TensorType(dtype)
            cast = ir.Node(
                "",
                "Cast",
                [last.outputs[0]],
                [ir.Attr("to", ir.AttributeType.INT, int(dtype))],
                name=f"{stem}/Cast",
                outputs=[ir.Value(name=f"{stem}/Cast_output_0", shape=shape, type=kind)],
            )
            made.append(cast)
        producer = table.producer()
        if producer is not None:
            self.graph.insert_after(producer, made)
        else:
            self.graph.insert_before(self.graph[0], made)
        return made[-1].outputs[0]

    def _target(self, dim: int) -> ir.Value:
        name = f"shape.angles.{dim}"
        if name not in self.graph.initializers:
            array = np.array([-1, 1, dim], np.int64)
            value = ir.Value(
                name=name,
                shape=ir.Shape([3]),
                type=ir.TensorType(ir.DataType.INT64),
                const_value=ir.tensor(array, name=name),
            )
            self.graph.register_initializer(value)
        return self.graph.initializers[name]

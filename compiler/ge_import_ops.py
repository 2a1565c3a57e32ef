"""Base operators of ONNX as ATC's parser names them in GE-IR, for graphs in base operators.

The names are those its built-in plugins map to (facts: om_format 1): Where -> SelectV2, Softmax ->
SoftmaxV2, Div -> RealDiv, Slice -> StridedSliceV2, Unsqueeze -> UnsqueezeV3 and so on. Where ATC
wraps one operator into a PartitionedCall (Concat, Transpose, Gather), the operator inside stands
here: ConcatD, Transpose, GatherV2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ..runtime.dtypes import dtype

if TYPE_CHECKING:
    from .ge_import import Importer

Handler = Callable[["Importer", ir.Node], None]


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """Return an attribute's value, or the default where the node has none."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def simple(kind: str, *names: str, **attrs: Any) -> Handler:
    """Return a handler for an operator that has a GE twin with the same inputs."""

    def handler(importer: Importer, node: ir.Node) -> None:
        edges = [importer.edge(value) for value in node.inputs]
        importer.operator(node, kind, list(zip(names, edges)), **attrs)

    return handler


def _concat(importer: Importer, node: ir.Node) -> None:
    edges = [importer.edge(value) for value in node.inputs]
    rank = len(importer.build.desc(edges[0]).shape)
    inputs = [(f"x{place}", edge) for place, edge in enumerate(edges)]
    axis = int(attribute(node, "axis")) % rank
    importer.operator(node, "ConcatD", inputs, concat_dim=axis, N=len(edges))


def _softmax(importer: Importer, node: ir.Node) -> None:
    axes = [int(attribute(node, "axis", -1))]
    importer.operator(node, "SoftmaxV2", [("x", importer.edge(node.inputs[0]))], axes=axes)


def _transpose(importer: Importer, node: ir.Node) -> None:
    perm = [int(axis) for axis in attribute(node, "perm")]
    name = "perm." + "x".join(str(axis) for axis in perm)
    order = importer.build.constant(name, np.array(perm, np.int64))
    inputs = [("x", importer.edge(node.inputs[0])), ("perm", order)]
    importer.operator(node, "Transpose", inputs)


def _reduce(kind: str) -> Handler:
    def handler(importer: Importer, node: ir.Node) -> None:
        x, axes = (importer.edge(value) for value in node.inputs)
        keep = bool(attribute(node, "keepdims", 1))
        importer.operator(node, kind, [("x", x), ("axes", axes)], keep_dims=keep)

    return handler


def _shape(importer: Importer, node: ir.Node) -> None:
    inputs = [("x", importer.edge(node.inputs[0]))]
    importer.operator(node, "Shape", inputs, dtype=dtype("int64").acl)


def _argmax(importer: Importer, node: ir.Node) -> None:
    axis = importer.build.constant("argmax.axis", np.array(attribute(node, "axis", 0), np.int32))
    inputs = [("x", importer.edge(node.inputs[0])), ("dimension", axis)]
    importer.operator(node, "ArgMaxV2", inputs, dtype=dtype("int64").acl)


BASE_HANDLERS: Mapping[str, Handler] = MappingProxyType(
    {
        "Add": simple("Add", "x1", "x2"),
        "Sub": simple("Sub", "x1", "x2"),
        "Mul": simple("Mul", "x1", "x2"),
        "Div": simple("RealDiv", "x1", "x2"),
        "Neg": simple("Neg", "x"),
        "Sqrt": simple("Sqrt", "x"),
        "Exp": simple("Exp", "x"),
        "Sigmoid": simple("Sigmoid", "x"),
        "Tanh": simple("Tanh", "x"),
        "And": simple("LogicalAnd", "x1", "x2"),
        "Not": simple("LogicalNot", "x"),
        "Equal": simple("Equal", "x1", "x2"),
        "Less": simple("Less", "x1", "x2"),
        "LessOrEqual": simple("LessEqual", "x1", "x2"),
        "Greater": simple("Greater", "x1", "x2"),
        "GreaterOrEqual": simple("GreaterEqual", "x1", "x2"),
        "Where": simple("SelectV2", "condition", "then", "else"),
        "Reshape": simple("Reshape", "x", "shape"),
        "Unsqueeze": simple("UnsqueezeV3", "x", "axes"),
        "Squeeze": simple("SqueezeV3", "x", "axes"),
        "Expand": simple("Expand", "x", "shape"),
        "Tile": simple("Tile", "x", "multiples"),
        "Range": simple("Range", "start", "limit", "delta"),
        "Slice": simple("StridedSliceV2", "x", "begin", "end", "axes", "strides"),
        "Identity": simple("Identity", "x"),
        "Shape": _shape,
        "Concat": _concat,
        "Softmax": _softmax,
        "Transpose": _transpose,
        "ReduceMax": _reduce("ReduceMax"),
        "ReduceMean": _reduce("ReduceMean"),
        "ReduceSum": _reduce("ReduceSum"),
        "ArgMax": _argmax,
    }
)

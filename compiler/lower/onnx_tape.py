"""Writes nodes in front of a place in a graph, giving every value its shape and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .onnx_infra import constant, make_node

Shape = Sequence[int | str | None]
INT32, INT64, BOOL, FLOAT = (
    ir.DataType.INT32,
    ir.DataType.INT64,
    ir.DataType.BOOL,
    ir.DataType.FLOAT,
)


class Tape:
    """Appends nodes before `anchor`; names are `<stem>/<what>`, and must differ.

    Every method takes the shape of its result, with None for an extent that is only known at run
    time: the passes know them, and ONNX's own inference cannot follow two unknown extents.
    """

    def __init__(self, graph: ir.Graph, anchor: ir.Node, stem: str) -> None:
        self.graph, self.anchor, self.stem = graph, anchor, stem

    def op(
        self,
        kind: str,
        what: str,
        inputs: Sequence[ir.Value],
        shape: Shape,
        dtype: ir.DataType | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """Add one node; the dtype is the first input's unless given."""
        name = f"{self.stem}/{what}"
        kind_of = inputs[0].dtype if dtype is None else dtype
        node = make_node(kind, name, inputs, shape, kind_of, **attributes)
        self.graph.insert_before(self.anchor, node)
        return node.outputs[0]

    def ints(self, *values: int) -> ir.Value:
        """Return an int64 [n] constant: shapes, axes, bounds."""
        name = "ints." + "x".join(str(value) for value in values)
        return constant(self.graph, name, np.array(values, np.int64))

    def int32(self, value: int) -> ir.Value:
        """Return an int32 scalar constant."""
        return constant(self.graph, f"int32.{value}", np.array(value, np.int32))

    def scalar(self, value: float, dtype: ir.DataType) -> ir.Value:
        """Return a scalar constant of a float type."""
        name = f"scalar.{value:g}.{dtype.name.lower()}"
        return constant(self.graph, name, np.array(value, dtype.numpy()))

    def array(self, name: str, array: np.ndarray) -> ir.Value:
        """Return a constant of any shape; one name, one content."""
        return constant(self.graph, name, array)

    def reshape(self, what: str, x: ir.Value, target: Sequence[int], shape: Shape) -> ir.Value:
        """Reshape to `target` (with at most one -1; 0 copies an extent)."""
        return self.op("Reshape", what, [x, self.ints(*target)], shape)

    def cast(self, what: str, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Cast, unless the dtype is right already."""
        if x.dtype == dtype:
            return x
        shape = [] if x.shape is None else list(x.shape.dims)
        plain: Shape = [d if isinstance(d, int) else d.value for d in shape]
        return self.op("Cast", what, [x], plain, dtype, to=int(dtype))

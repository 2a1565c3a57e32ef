"""A model of one node of ours with its function body: for tests, benchmarks and a look in Netron.

>>> model = one_node_model("RmsNorm", "float32", {"epsilon": 1e-5})
>>> [node.op_type for node in model.graph.node], [f.name for f in model.functions]
(['RmsNorm'], ['RmsNorm'])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from .bodies import ir_type
from .registry import OPERATORS
from .schema import DOMAIN, ONNX_OPSET, VERSION, Param

_IR_VERSION = 10  # the one torch's exporter writes


def one_node_model(
    name: str, dtype: str, attributes: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    """Return a model whose inputs and outputs are those of operator `name`, dims in letters.

    Raises KeyError for an unknown operator, ShapeError for attributes that do not fit.
    """
    operator = OPERATORS[name]
    schema = operator.schema
    inputs = {param.name: _value(param, dtype) for param in schema.inputs}
    outputs = []
    for output in schema.outputs:
        like = inputs[output.like]
        outputs.append(ir.Value(name=output.name, shape=like.shape, type=like.type))
    node = ir.Node(
        DOMAIN,
        name,
        list(inputs.values()),
        ir.convenience.convert_attributes(schema.attribute_values(attributes or {})),
        outputs=outputs,
        name=name,
    )
    graph = ir.Graph(
        list(inputs.values()),
        outputs,
        nodes=[node],
        opset_imports={"": ONNX_OPSET, DOMAIN: VERSION},
        name=name,
    )
    functions = [operator.function(dtype)]
    model = ir.Model(graph, ir_version=_IR_VERSION, functions=functions, producer_name=DOMAIN)
    return ir.serde.serialize_model(model)


def _value(param: Param, dtype: str) -> ir.Value:
    letters = param.shape.replace("*", "N").split()
    kinds = {
        "int32": ir.DataType.INT32,
        "int64": ir.DataType.INT64,
        "float32": ir.DataType.FLOAT,
    }
    kind = ir_type(dtype) if param.dtype == "T" else kinds[param.dtype]
    return ir.Value(name=param.name, shape=ir.Shape(letters), type=ir.TensorType(kind))

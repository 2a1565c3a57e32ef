"""The rules of an exported graph, as code: what `export_onnx` promises, checked after each run."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ..graph_ops.registry import OPERATORS
from ..graph_ops.schema import DOMAIN, ShapeError
from .onnx_cleanup import WEIGHT

BASE_OPERATORS = frozenset({"Add", "Cast", "Gather", "Gemm", "MatMul", "Reshape"})
_NAMES = {
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
    ir.DataType.INT32: "int32",
    ir.DataType.INT64: "int64",
}


def check_exported(model: ir.Model, inputs: Mapping[str, tuple[int | str, ...]]) -> list[str]:
    """Return everything in which a model differs from the documented form; empty if nothing."""
    graph = model.graph
    problems = []
    found = {str(value.name): dims(value) for value in graph.inputs}
    if list(found.items()) != list(inputs.items()):
        problems.append(f"inputs are {found}, must be {dict(inputs)}")
    names = [node.name for node in graph]
    if len(set(names)) != len(names):
        problems.append("two nodes have one name")
    used = {node.op_type for node in graph if node.domain == DOMAIN}
    if {name for _, name, _ in model.functions} != used:
        problems.append(f"function bodies are {sorted(model.functions)}, operators {sorted(used)}")
    for value in graph.initializers.values():
        if not value.uses():
            problems.append(f"initializer {value.name} has no reader")
        if value.const_value is None and WEIGHT not in value.metadata_props:
            problems.append(f"initializer {value.name} has neither data nor a weight's name")
    for node in graph:
        problems += _node_problems(node)
    return problems + _cache_problems(graph)


def dims(value: ir.Value) -> tuple[int | str | None, ...]:
    """Return a value's shape as numbers and letters; empty where it is unknown."""
    shape = value.shape or ()
    return tuple(dim if isinstance(dim, int) else dim.value for dim in shape)


def dtype_name(value: ir.Value) -> str:
    """Return a value's dtype as the design spells it; the ONNX name for types not used there."""
    return _NAMES.get(value.dtype, str(value.dtype)) if value.dtype is not None else "unknown"


def _node_problems(node: ir.Node) -> list[str]:
    unknown = [value.name for value in node.outputs if value.shape is None or value.dtype is None]
    if unknown:
        return [f"{node.name}: {unknown} have no shape or dtype"]
    if node.domain == "":
        if node.op_type in BASE_OPERATORS:
            return []
        return [f"{node.name}: {node.op_type} is not among {sorted(BASE_OPERATORS)}"]
    if node.domain != DOMAIN or node.op_type not in OPERATORS:
        return [f"{node.name}: unknown operator {node.domain}::{node.op_type}"]
    schema = OPERATORS[node.op_type].schema
    given = [value for value in node.inputs if value is not None]
    try:
        expected = schema.infer([dims(v) for v in given], [dtype_name(v) for v in given])
        schema.attribute_values({name: a.value for name, a in node.attributes.items()})
    except ShapeError as error:
        return [f"{node.name}: {error}"]
    actual = [(dims(value), dtype_name(value)) for value in node.outputs]
    return [] if actual == expected else [f"{node.name}: gives {actual}, must give {expected}"]


def _cache_problems(graph: ir.Graph) -> list[str]:
    """Return the caches with another reader than one KVUpdate: a device would have to copy them.

    In GE an in-place input with a second reader gets an Identity, a copy of the whole cache.
    """
    problems = []
    for value in graph.inputs:
        readers = [use.node.op_type for use in value.uses()]
        if "cache." in str(value.name) and readers != ["KVUpdate"]:
            problems.append(f"{value.name} is read by {readers}, must be by one KVUpdate")
    return problems

"""Passes over the exported ONNX graph: the twin of `infra`, which is for GE-IR.

After each pass the graph is checked: every value is made before it is read, names are unique, every
result has a shape and a dtype, every domain is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from .infra import PassError, PassResult


class OnnxPass(Protocol):
    """A rewrite of an ONNX model in place."""

    name: str

    def __call__(self, model: ir.Model) -> PassResult:
        """Rewrite the model; must leave it sound."""
        ...


def run_onnx_passes(model: ir.Model, passes: Sequence[OnnxPass]) -> dict[str, PassResult]:
    """Run passes in order, checking the graph before the first and after each.

    Raises PassError naming the pass and every problem it left.
    """
    _check(model, "the model before any pass")
    results = {}
    for rewrite in passes:
        results[rewrite.name] = rewrite(model)
        _check(model, f"pass {rewrite.name} left a model that")
    return results


def require_all(name: str, result: PassResult) -> None:
    """Raise PassError if a pass left anything alone: for rewrites that only make sense whole."""
    if result.skipped:
        reasons = "; ".join(f"{skip.node}: {skip.reason}" for skip in result.skipped)
        raise PassError(f"pass {name} cannot rewrite this model: {reasons}")


def model_problems(model: ir.Model) -> list[str]:
    """Return everything that makes a model unsound; empty when nothing does."""
    return list(_problems(model))


def _check(model: ir.Model, who: str) -> None:
    problems = model_problems(model)
    if problems:
        shown = "; ".join(problems[:8])
        raise PassError(f"{who} is not sound ({len(problems)} problems): {shown}")


def _problems(model: ir.Model) -> Iterator[str]:
    graph = model.graph
    made = {id(value) for value in (*graph.inputs, *graph.initializers.values())}
    names = {str(value.name) for value in (*graph.inputs, *graph.initializers.values())}
    nodes: set[str] = set()
    for node in graph:
        if not node.name or node.name in nodes:
            yield f"a node of {node.op_type} has the name {node.name!r}, taken or empty"
        nodes.add(str(node.name))
        if node.domain not in model.opset_imports:
            yield f"domain {node.domain!r} of {node.name} is not imported"
        for value in node.inputs:
            if value is not None and id(value) not in made:
                yield f"{node.name} reads {value.name}, which nothing made before"
        for value in node.outputs:
            if str(value.name) in names:
                yield f"two values are named {value.name!r}"
            names.add(str(value.name))
            made.add(id(value))
            if value.shape is None or value.dtype is None:
                yield f"{value.name} of {node.name} has no shape or dtype"
    for value in graph.outputs:
        if id(value) not in made:
            yield f"output {value.name} is made by nothing"


# -- what passes build with


def int_input(name: str, shape: Sequence[int | str], kind: ir.DataType) -> ir.Value:
    """Return a value that can become a graph input."""
    return ir.Value(name=name, shape=ir.Shape(list(shape)), type=ir.TensorType(kind))


def constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    """Return the initializer of that name, made at the first call; same name = same content."""
    if name not in graph.initializers:
        value = ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            const_value=ir.tensor(array, name=name),
        )
        graph.register_initializer(value)
    return graph.initializers[name]


def make_node(
    kind: str,
    name: str,
    inputs: Sequence[ir.Value],
    shape: Sequence[int | str | None],
    dtype: ir.DataType | None,
    **attributes: Any,
) -> ir.Node:
    """Return a node of one output `<name>_output_0`; its place in a graph is the caller's."""
    output = ir.Value(
        name=f"{name}_output_0",
        shape=ir.Shape(list(shape)),
        type=None if dtype is None else ir.TensorType(dtype),
    )
    given = ir.convenience.convert_attributes(attributes)
    return ir.Node("", kind, list(inputs), given, name=name, outputs=[output])

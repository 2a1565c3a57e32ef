"""From the torch exporter's graph to ours: constants folded, readable names, nothing left over.

Passes, in order (each a function below):

1. `fold_weight_transposes`  MatMul(x, Transpose(W)) -> MatMul(x, W') with W' stored [in, out];
   a weight that the graph also reads as it is (a tied embedding) keeps its one copy and the
   product becomes Gemm with transB.
2. `fold_reshape_shapes`     a target shape assembled from constants -> one shared initializer.
3. `name_symbols`            the exporter's s72, s37 … -> T, B, M, P, R.
4. `name_nodes`              module scopes -> `/layers.3/attn/q_proj/MatMul`.
"""

from __future__ import annotations

import ast
from collections import Counter

import numpy as np
import onnx_ir as ir

SCOPES = "pkg.torch.onnx.name_scopes"
WEIGHT = "pagedom.weight"
TRANSPOSED = "pagedom.transposed"


def fold_weight_transposes(graph: ir.Graph) -> None:
    """Store the weights of products as [in, out]; the initializer's metadata records it."""
    for node in list(graph):
        weight = node.inputs[0] if node.op_type == "Transpose" else None
        if weight is None or not weight.is_initializer():
            continue
        users = [use.node for use in weight.uses()]
        product = node.outputs[0]
        if all(user.op_type == "Transpose" for user in users):
            shape = weight.shape
            if shape is not None and TRANSPOSED not in weight.metadata_props:
                weight.shape = ir.Shape(list(reversed(shape.dims)))
                weight.metadata_props[TRANSPOSED] = "1"
            ir.convenience.replace_all_uses_with(product, weight)
        else:
            for use in list(product.uses()):
                _matmul_to_gemm(use.node, weight)
        graph.remove(node, safe=True)


def _matmul_to_gemm(matmul: ir.Node, weight: ir.Value) -> None:
    """Let one two-dimensional product read the weight [out, in] as it is stored."""
    if matmul.op_type != "MatMul":
        raise ValueError(f"{matmul.op_type} reads a transposed weight that is shared: {weight}")
    matmul.op_type = "Gemm"
    matmul.attributes["transB"] = ir.AttrInt64("transB", 1)
    matmul.replace_input_with(1, weight)


def fold_reshape_shapes(graph: ir.Graph) -> None:
    """Replace every Reshape's shape by a constant; at most one size, the -1, is symbolic."""
    shapes: dict[tuple[int, ...], ir.Value] = {}
    for node in graph:
        if node.op_type != "Reshape":
            continue
        target = _constant_shape(node)
        if target not in shapes:
            name = "shape." + "x".join(str(size) if size >= 0 else "T" for size in target)
            tensor = ir.tensor(np.array(target, np.int64), name=name)
            shapes[target] = ir.Value(
                name=name,
                const_value=tensor,
                shape=ir.Shape([len(target)]),
                type=ir.TensorType(ir.DataType.INT64),
            )
            graph.register_initializer(shapes[target])
        node.replace_input_with(1, shapes[target])
        # With no 0 in the shape the attribute has no effect; ATC's parser does not know it.
        node.attributes.pop("allowzero", None)


def _constant_shape(node: ir.Node) -> tuple[int, ...]:
    shape = node.outputs[0].shape
    sizes = [] if shape is None else [dim if isinstance(dim, int) else -1 for dim in shape]
    if not sizes or sizes.count(-1) > 1:
        raise ValueError(f"Reshape {node.name} has the shape {shape}: one size may be symbolic")
    return tuple(sizes)


def name_symbols(graph: ir.Graph, inputs: dict[str, tuple[int | str, ...]]) -> None:
    """Rename symbolic dims everywhere so that each graph input has the dims given for it.

    Derived dims of the inputs (B+1) are named like the others. Raises ValueError where the
    exporter fixed a dim that should be free.
    """
    names: dict[str, str] = {}
    for value in graph.inputs:
        wanted = inputs[str(value.name)]
        for dim, name in zip(value.shape or (), wanted):
            if isinstance(dim, ir.SymbolicDim) and isinstance(name, str):
                names[str(dim.value)] = name
            elif dim != name:
                raise ValueError(f"input {value.name} has dim {dim} where {name} is wanted")
    for value in graph_values(graph):
        if value.shape is not None:
            value.shape = ir.Shape(
                [dim if isinstance(dim, int) else names[str(dim.value)] for dim in value.shape]
            )


def graph_values(graph: ir.Graph) -> list[ir.Value]:
    """Return the graph's inputs, initializers and all results of its nodes."""
    results = [output for node in graph for output in node.outputs]
    return [*graph.inputs, *graph.initializers.values(), *results]


def name_nodes(graph: ir.Graph) -> None:
    """Name nodes after their module and values after their node; drop the exporter's metadata."""
    outputs = {id(value) for value in graph.outputs}
    seen: Counter[str] = Counter()
    for node in graph:
        scopes = ast.literal_eval(node.metadata_props.get(SCOPES, "['', '']"))
        name = f"{_path(scopes[-2])}/{node.op_type}"
        seen[name] += 1
        node.name = name if seen[name] == 1 else f"{name}_{seen[name] - 1}"
        for position, value in enumerate(node.outputs):
            value.metadata_props.clear()
            if id(value) not in outputs:
                value.name = f"{node.name}_output_{position}"
    for node in graph:
        node.metadata_props.clear()
        node.doc_string = None


def _path(module: str) -> str:
    """Return `/layers.3/attn/q_proj` for `model.layers.3.self_attn.q_proj`."""
    parts: list[str] = []
    for part in module.removeprefix("model.").split("."):
        if part.isdigit():
            parts[-1] += f".{part}"
        elif part:
            parts.append("attn" if part == "self_attn" else part)
    return "".join(f"/{part}" for part in parts)

"""Calls of our operators become their function bodies, in base operators.

A chip without a kernel for an operator gets the body; operators in `keep` stay, with their body
removed (ATC reads none; the parser plugin knows them). Names of what comes from a body:

    node   /layers.3/input_layernorm/RmsNorm  ->  /layers.3/input_layernorm/RmsNorm/ReduceMean …

Constants of the bodies become initializers, one for equal contents.

Precondition: every call has its body in the model. Postcondition: the model has no functions; no
node of an operator outside `keep` is left; every new value has a shape.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass, ShapeInferencePass

from ...graph_ops.schema import DOMAIN
from .infra import PassError, PassResult, Skip
from .onnx_infra import constant


class InlineBodies:
    """See the module's text; `keep` holds operator names of domain pagedom."""

    name = "inline-bodies"

    def __init__(self, keep: AbstractSet[str] = frozenset()) -> None:
        self.keep = keep

    def __call__(self, model: ir.Model) -> PassResult:
        """Inline; raises PassError for a call without a body, or one whose shapes stay unknown."""
        result = PassResult()
        bodies = {name for domain, name, _ in model.functions if domain == DOMAIN}
        calls = [node for node in model.graph if node.domain == DOMAIN]
        for node in calls:
            if node.op_type in self.keep:
                result.skipped.append(Skip(str(node.name), f"{node.op_type} stays as it is"))
            elif node.op_type not in bodies:
                raise PassError(f"{node.name} is a {node.op_type}, whose body is not in the model")
        inlined = [node for node in calls if node.op_type not in self.keep]
        if inlined:
            results = {
                str(value.name): str(node.name) for node in inlined for value in node.outputs
            }
            known = {node.name for node in model.graph}
            InlinePass(lambda function: function.name not in self.keep)(model)
            _lift_constants(model.graph)
            _rename(model.graph, results, known)
            _infer_shapes(model)
        model.functions.clear()
        if not any(node.domain == DOMAIN for node in model.graph):
            model.opset_imports.pop(DOMAIN, None)
        result.modified = len(inlined)
        return result


def _lift_constants(graph: ir.Graph) -> None:
    """Turn Constant nodes into initializers named by their content."""
    for node in list(graph):
        if node.op_type != "Constant":
            continue
        array = _constant_array(node)
        digest = hashlib.sha256(repr((array.dtype, array.shape)).encode() + array.tobytes())
        name = f"const.{digest.hexdigest()[:12]}"
        ir.convenience.replace_all_uses_with(node.outputs[0], constant(graph, name, array))
        graph.remove(node, safe=True)


def _constant_array(node: ir.Node) -> np.ndarray:
    (attribute,) = node.attributes.values()
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().numpy()
    kind = np.float32 if "float" in attribute.name else np.int64
    return np.asarray(attribute.value, kind)


def _rename(graph: ir.Graph, results: dict[str, str], known: AbstractSet[str | None]) -> None:
    """Name new nodes after the call they stand for, whose results keep their names.

    The nodes of one call stand together, and those up to one of its results are that call's.
    """
    pending: list[ir.Node] = []
    seen: Counter[tuple[str, str]] = Counter()
    for node in graph:
        if node.name in known:
            continue
        pending.append(node)
        call = next((results[str(v.name)] for v in node.outputs if str(v.name) in results), None)
        if call is not None:
            _name_all(pending, call, results, seen)
            pending = []
    if pending:
        raise PassError(f"{len(pending)} nodes of a body make no result: {pending[0]}")


def _name_all(
    nodes: list[ir.Node], call: str, results: dict[str, str], seen: Counter[tuple[str, str]]
) -> None:
    for node in nodes:
        number = seen[call, node.op_type]
        seen[call, node.op_type] += 1
        node.name = f"{call}/{node.op_type}" + (f"_{number}" if number else "")
        for place, value in enumerate(node.outputs):
            if str(value.name) not in results:
                value.name = f"{node.name}_output_{place}"


def _infer_shapes(model: ir.Model) -> None:
    """Let ONNX infer the shapes of what the bodies brought; shapes known before are kept."""
    known = {
        id(value): value.shape
        for node in model.graph
        for value in node.outputs
        if value.shape is not None
    }
    ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    for node in model.graph:
        for value in node.outputs:
            if id(value) in known:
                value.shape = known[id(value)]
            if value.shape is None or value.dtype is None:
                raise PassError(f"ONNX infers no shape for {value.name} of {node.name}")

"""Function bodies and ATC: the parser reads none, so each is stripped or inlined.

An operator that a plugin registers keeps its node and loses its body; every other call is replaced
by the body, in base operators.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from .onnx_gate_records import PluginOperator


def prepare_functions(model: ir.Model, plugin: Iterable[PluginOperator]) -> tuple[str, ...]:
    """Strip the bodies that `plugin` makes needless, inline the others; return what was done."""
    covered = {(op.domain, op.op_type) for op in plugin}
    names = [(domain, name) for domain, name, _ in model.functions]
    inlined = sorted(
        {f"{domain}::{name}" for domain, name in names if (domain, name) not in covered}
    )
    stripped = sorted({f"{domain}::{name}" for domain, name in names if (domain, name) in covered})
    if inlined:
        InlinePass(lambda function: (function.domain, function.name) not in covered)(model)
    for identifier in list(model.functions):
        del model.functions[identifier]
    used = {node.domain for node in model.graph.all_nodes()}
    for domain in [name for name in model.opset_imports if name and name not in used]:
        if domain != "ai.onnx":
            del model.opset_imports[domain]
    notes = []
    if stripped:
        notes.append("stripped the bodies of " + ", ".join(stripped) + ": the plugin has them")
    if inlined:
        notes.append("inlined " + ", ".join(inlined))
    return tuple(notes)

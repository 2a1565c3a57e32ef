"""The gate's rules over operators: plugin, opset, inputs, control flow, local functions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from .onnx_gate_records import GateContext, GateProblem
from .onnx_parser_table import (
    ABSENT,
    CONTROL_FLOW,
    IGNORED_ATTRIBUTES,
    MAX_OPSET,
    MIN_OPSET,
    NATIVE,
    NPU_OPERATORS,
    OPSET_SOURCE,
    PARSER_SOURCE,
    builtin_opsets,
    domain_key,
    type_key,
)

_DEFAULT = ("", "ai.onnx")


def node_label(node: ir.Node) -> str:
    """Return how a problem names a node."""
    domain = "" if node.domain in _DEFAULT else f"{node.domain}::"
    return f"node {node.name or '(unnamed)'!r} ({domain}{node.op_type})"


def operator_problems(model: ir.Model, context: GateContext) -> Iterator[GateProblem]:
    """Yield what the parser would refuse about operators, in graph order, subgraphs included."""
    yield from _opset_problems(model)
    yield from _function_problems(model, context)
    local = {(domain, name) for domain, name, _ in model.functions}
    for node in model.graph.all_nodes():
        yield from _node_problems(node, model, context, (node.domain, node.op_type) in local)


def import_version(model: ir.Model, domain: str) -> int | None:
    """Return the opset a domain is imported at; the default domain has two spellings."""
    names = _DEFAULT if domain in _DEFAULT else (domain,)
    versions = [model.opset_imports[name] for name in names if name in model.opset_imports]
    return versions[0] if versions else None


def _opset_problems(model: ir.Model) -> Iterator[GateProblem]:
    both = [name for name in _DEFAULT if name in model.opset_imports]
    if len(both) == 2:
        versions = [model.opset_imports[name] for name in both]
        yield GateProblem(
            "opset-import",
            "the model",
            f"opset_import names the default domain twice, '' at {versions[0]} and 'ai.onnx' at "
            f"{versions[1]}",
            "must name a domain once",
            "E16005, " + PARSER_SOURCE,
            "Clean it with opset_cleanup.clean_opset_imports.",
        )
    version = import_version(model, "")
    if version is not None and not MIN_OPSET <= version <= MAX_OPSET:
        yield GateProblem(
            "opset",
            "the model",
            f"opset {version} of the default domain",
            f"must be {MIN_OPSET} to {MAX_OPSET}",
            f"E13010; {OPSET_SOURCE}",
            f"Export with opset {MAX_OPSET}, or convert the model with onnx.version_converter.",
        )


def _function_problems(model: ir.Model, context: GateContext) -> Iterator[GateProblem]:
    covered = {(op.domain, op.op_type) for op in context.plugin}
    for domain, name, _ in model.functions:
        in_plugin = (domain, name) in covered
        yield GateProblem(
            "local-function",
            f"function {domain_key(domain)}::{name}",
            "the model carries a function body",
            "model-local functions are not read",
            PARSER_SOURCE,
            "The plugin registers this operator: strip its body (pass inline-bodies, keep)."
            if in_plugin
            else "No plugin registers this operator: inline its body (pass inline-bodies).",
        )


def _node_problems(
    node: ir.Node, model: ir.Model, context: GateContext, is_local: bool
) -> Iterator[GateProblem]:
    version = import_version(model, node.domain)
    if version is None:
        yield GateProblem(
            "opset-import",
            node_label(node),
            f"domain {domain_key(node.domain)!r} is absent from opset_import",
            "every domain must be imported",
            "E19999 'has no responding version', " + PARSER_SOURCE,
            f"Add {domain_key(node.domain)!r} with its version to opset_import.",
        )
        return
    if node.op_type in CONTROL_FLOW and node.domain in _DEFAULT:
        yield GateProblem(
            "control-flow",
            node_label(node),
            f"{node.op_type} has a subgraph",
            "only If has an adapter for subgraphs",
            PARSER_SOURCE,
            "Unroll it before the export.",
        )
        return
    plugin = context.plugin_keys.get((node.domain, version, node.op_type))
    if plugin is not None:
        yield from _prototype_problems(node, plugin.max_inputs)
    elif not is_local:  # a local function has its problem already
        yield from _registration_problems(node, version, context)
    yield from _ignored_attribute_problems(node)


def _prototype_problems(node: ir.Node, most: int | None) -> Iterator[GateProblem]:
    if most is None or len(node.inputs) <= most:
        return
    yield GateProblem(
        "inputs",
        node_label(node),
        f"{len(node.inputs)} inputs",
        f"its prototype has {most}",
        "E19999 'Resolve operator IO name failed', " + PARSER_SOURCE,
        f"Remove inputs from position {most} on; inputs are matched by position.",
    )


def _registration_problems(
    node: ir.Node, version: int, context: GateContext
) -> Iterator[GateProblem]:
    if node.op_type in NATIVE and node.domain in _DEFAULT:
        return
    opsets = builtin_opsets(node.domain, node.op_type)
    outside = node.domain in _DEFAULT and not MIN_OPSET <= version <= MAX_OPSET
    if version in opsets or (outside and opsets):
        return  # outside: one problem for the model says it for all nodes
    yield GateProblem(
        "plugin",
        node_label(node),
        f"no plugin registers {type_key(node.domain, version, node.op_type)}",
        _known_versions(node, opsets, context),
        f"E13010; {OPSET_SOURCE}",
        _registration_advice(node, opsets),
    )


def _known_versions(node: ir.Node, opsets: frozenset[int], context: GateContext) -> str:
    ours = {
        op.version
        for op in context.plugin
        if (op.domain, op.op_type) == (node.domain, node.op_type)
    }
    known = sorted(opsets | ours)
    if not known:
        return "it is registered at no version"
    return f"it is registered at version {', '.join(str(number) for number in known)}"


def _registration_advice(node: ir.Node, opsets: frozenset[int]) -> str:
    if node.domain in _DEFAULT and node.op_type in ABSENT:
        return f"Replace it: {ABSENT[node.op_type]}."
    if opsets:
        return "Convert the model to one of these versions."
    if node.domain in _DEFAULT:
        return "Decompose it into registered operators, or put it into a domain with a plugin."
    return "Build the parser plugin (compile-model --build-plugin), or inline the function body."


def _ignored_attribute_problems(node: ir.Node) -> Iterator[GateProblem]:
    found = IGNORED_ATTRIBUTES.get(node.op_type) if node.op_type in NPU_OPERATORS else None
    if found is None or found[0] not in node.attributes:
        return
    name, fixed = found
    value = node.attributes[name].value
    if isinstance(value, float | int) and math.isclose(value, fixed, rel_tol=1e-5):
        return
    yield GateProblem(
        "ignored-attribute",
        node_label(node),
        f"{name} is {value}",
        f"the built-in plugin always uses {fixed}",
        "ops-nn, framework plugins of RmsNorm and AddRmsNorm",
        "Use the RmsNorm operator of domain pagedom, whose plugin passes it on.",
    )

"""Two opset imports of one domain: cleaned where nothing is lost, refused where something is.

Merging graphs and inlining functions leave entries such as ("", 17), ("ai.onnx", 17), ("", 11).
ATC counts them as more than one version of the domain (E16005). Cases:

1. an import whose domain no node uses is removed;
2. equal entries, and "" beside "ai.onnx", become one;
3. of several versions the highest stays for which every node of the domain is valid;
4. no version is valid for all nodes: OpsetError, naming two nodes that exclude each other;
5. a node means different things at these versions (Softmax without a last axis): OpsetError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx

# Operators whose meaning changed while their signature stayed: the version where it changed.
_CHANGED_MEANING = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13}


class OpsetError(ValueError):
    """Opset imports that contradict each other; no single version serves all nodes."""


@dataclass(frozen=True)
class _Use:
    """A node with the versions, among those imported, at which it is valid."""

    node: onnx.NodeProto
    valid: tuple[int, ...]

    def __str__(self) -> str:
        name = self.node.name or "(unnamed)"
        where = " or ".join(str(version) for version in self.valid) or "none of these"
        return f"node {name!r} ({self.node.op_type}) is valid at {where}"


def clean_opset_imports(model: onnx.ModelProto) -> tuple[str, ...]:
    """Leave one import for each domain that is used, in place; return what was changed.

    Raises OpsetError (cases 4 and 5) with the names of the nodes; the model is then unchanged.
    """
    used = {_canonical(node.domain) for node in _nodes(model)}
    used |= {_canonical(entry.domain) for f in model.functions for entry in f.opset_import}
    notes: list[str] = []
    kept: dict[str, int] = {}
    for domain in dict.fromkeys(_canonical(entry.domain) for entry in model.opset_import):
        versions = [e.version for e in model.opset_import if _canonical(e.domain) == domain]
        shown = domain or "ai.onnx"
        if domain not in used and domain:
            notes.append(f"removed the import of {shown!r}: no node uses it")
            continue
        kept[domain] = _one_version(model, domain, versions)
        if len(versions) > 1:
            listed = ", ".join(str(version) for version in versions)
            notes.append(f"kept version {kept[domain]} of {shown!r} out of {listed}")
    if notes:
        del model.opset_import[:]
        for domain, version in kept.items():
            model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    return tuple(notes)


def _canonical(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes of the graph and its subgraphs; functions have imports of their own."""
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        for node in graph.node:
            yield node
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    graphs.append(attribute.g)
                graphs.extend(attribute.graphs)


def _one_version(model: onnx.ModelProto, domain: str, versions: Sequence[int]) -> int:
    distinct = sorted(set(versions), reverse=True)
    if len(distinct) == 1:
        return distinct[0]
    nodes = [node for node in _nodes(model) if _canonical(node.domain) == domain]
    uses = [_use(node, domain, distinct) for node in nodes]
    for version in distinct:
        if all(version in use.valid for use in uses):
            _refuse_ambiguity(uses, distinct)
            return version
    raise OpsetError(_contradiction(uses, domain, distinct))


def _use(node: onnx.NodeProto, domain: str, versions: Sequence[int]) -> _Use:
    valid = tuple(version for version in versions if _is_valid(node, domain, version))
    return _Use(node, valid)


def _is_valid(node: onnx.NodeProto, domain: str, version: int) -> bool:
    """Return whether a node fits the operator's signature at a version of its domain.

    Domains that onnx does not know fit every version: nothing can be said about them.
    """
    if domain and not any(schema.domain == domain for schema in _schemas()):
        return True
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return False
    if schema.deprecated:
        return False
    given = {attribute.name for attribute in node.attribute}
    required = {name for name, attribute in schema.attributes.items() if attribute.required}
    num_inputs, num_outputs = len(node.input), len(node.output)
    return (
        schema.min_input <= num_inputs <= schema.max_input
        and schema.min_output <= num_outputs <= schema.max_output
        and given <= set(schema.attributes)
        and required <= given
    )


def _schemas() -> Sequence[onnx.defs.OpSchema]:
    return onnx.defs.get_all_schemas()


def _refuse_ambiguity(uses: Sequence[_Use], versions: Sequence[int]) -> None:
    for use in uses:
        changed = _CHANGED_MEANING.get(use.node.op_type)
        if changed is None or not min(versions) < changed <= max(versions):
            continue
        axis = [attribute.i for attribute in use.node.attribute if attribute.name == "axis"]
        if axis != [-1]:  # over the last axis both meanings agree
            raise OpsetError(
                f"the default domain is imported at {_listed(versions)} and {use}, where it means "
                f"different things below and from opset {changed} on. Set its axis to -1 if that "
                "is meant, or keep one import."
            )


def _contradiction(uses: Sequence[_Use], domain: str, versions: Sequence[int]) -> str:
    """Name two nodes that exclude each other, or the one that fits nowhere."""
    start = f"domain {domain or 'ai.onnx'!r} is imported at {_listed(versions)}"
    lost = [use for use in uses if not use.valid]
    if lost:
        return f"{start}, but {lost[0]}. Export the model again at one opset."
    pairs = (
        (one, two)
        for index, one in enumerate(uses)
        for two in uses[index + 1 :]
        if not set(one.valid) & set(two.valid)
    )
    found = next(pairs, None)
    listed = "; ".join(str(use) for use in (found or uses))
    return (
        f"{start} and no single version serves all nodes: {listed}. Convert one part with "
        "onnx.version_converter before merging."
    )


def _listed(versions: Sequence[int]) -> str:
    return " and ".join(str(version) for version in versions)

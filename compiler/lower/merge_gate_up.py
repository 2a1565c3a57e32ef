"""One product instead of two in front of a SwiGlu.

    x ─> MatMulV2(Wg) [+ bg] ─┐                         x ─> MatMulV2([Wg; Wu]) [+ [bg; bu]]
    x ─> MatMulV2(Wu) [+ bu] ─┴> ConcatD ─> SwiGlu                 ─> SwiGlu

Precondition: both products read the same x, have constant weights [out,in] used with
transpose_x2, and nobody else reads them; biases are both present or both absent. Postcondition: the
ConcatD is gone and the weight is one constant whose first half of rows is the gate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...runtime.om_file.ge_graph import Node
from ..ge_build import GeBuild, WeightParts
from .infra import PassResult, Skip


@dataclass(frozen=True)
class Branch:
    """One of the two products."""

    product: Node
    bias_add: Node | None
    weight: str
    bias: str | None


class MergeGateUp:
    """See the module's text."""

    name = "merge-gate-up"

    def __call__(self, build: GeBuild) -> PassResult:
        result = PassResult()
        nodes = {node.name: node for node in build.graph.nodes}
        uses: dict[str, int] = {}
        for node in build.graph.nodes:
            for edge in node.edges():
                if edge is not None:
                    uses[edge.producer] = uses.get(edge.producer, 0) + 1
        for node in [node for node in build.graph.nodes if node.type == "SwiGlu"]:
            concat = nodes[_producer(node, 0)]
            if concat.type != "ConcatD":
                continue
            branches = [_branch(build, nodes, uses, concat, place) for place in (0, 1)]
            reason = _mismatch(branches)
            if reason:
                result.skipped.append(Skip(node.name, reason))
                continue
            self._merge(build, node, branches)  # type: ignore[arg-type]
            result.modified += 1
        build.drop_unused()
        return result

    def _merge(self, build: GeBuild, node: Node, branches: list[Branch]) -> None:
        gate, up = branches
        stem = gate.weight.replace("gate_proj", "gate_up_proj")
        weight = self._stack(build, stem, gate.weight, up.weight)
        product = replace(
            gate.product,
            name=gate.product.name.replace("gate_proj", "gate_up_proj"),
            inputs=[gate.product.inputs[0], weight],
            output_descs=[build.desc(node.inputs[0])],
        )
        product.input_descs = [build.desc(edge) for edge in product.inputs]
        made = [product]
        if gate.bias is not None and up.bias is not None and gate.bias_add is not None:
            bias = self._stack(
                build, gate.bias.replace("gate_proj", "gate_up_proj"), gate.bias, up.bias
            )
            added = replace(
                gate.bias_add,
                name=gate.bias_add.name.replace("gate_proj", "gate_up_proj"),
                inputs=[f"{product.name}:0", bias],
                output_descs=list(product.output_descs),
            )
            added.input_descs = [product.output_descs[0], build.desc(bias)]
            made.append(added)
        build.register(made)
        at = build.graph.nodes.index(node)
        consts = [n for n in build.graph.nodes[at:] if n.type == "Const" and n.name in build.parts]
        for const in consts:  # the new constants were appended at the end; they belong in front
            build.graph.nodes.remove(const)
        at = build.graph.nodes.index(node)
        build.graph.nodes[at:at] = [*consts, *made]
        node.inputs[0] = f"{made[-1].name}:0"

    def _stack(self, build: GeBuild, name: str, first: str, second: str) -> str:
        parts = WeightParts(build.parts[first].names + build.parts[second].names)
        desc = build.desc(f"{first}:0")
        rows = desc.shape[0] + build.desc(f"{second}:0").shape[0]
        return build.weight(name, parts, replace(desc, shape=(rows, *desc.shape[1:])))


def _producer(node: Node, place: int) -> str:
    return node.inputs[place].rpartition(":")[0]


def _branch(
    build: GeBuild, nodes: dict[str, Node], uses: dict[str, int], concat: Node, place: int
) -> Branch | str:
    """Return the branch, or the reason why it is none."""
    node = nodes[_producer(concat, place)]
    bias_add, bias = None, None
    if node.type == "Add":
        bias_add, bias = node, _producer(node, 1)
        if bias not in build.parts:
            return f"{node.name} adds {bias}, which is no weight"
        node = nodes[_producer(node, 0)]
    if node.type != "MatMulV2":
        return f"{node.name} is a {node.type}, not a MatMulV2"
    weight = _producer(node, 1)
    if weight not in build.parts or not node.attrs.get("transpose_x2"):
        return f"{node.name} has no constant weight [out,in]"
    if uses[node.name] != 1:
        return f"{node.name} has {uses[node.name]} consumers"
    return Branch(node, bias_add, weight, bias)


def _mismatch(branches: list[Branch | str]) -> str | None:
    gate, up = branches
    if isinstance(gate, str):
        return gate
    if isinstance(up, str):
        return up
    if gate.product.inputs[0] != up.product.inputs[0]:
        return f"the products read {gate.product.inputs[0]} and {up.product.inputs[0]}"
    if (gate.bias is None) != (up.bias is None):
        return "only one of the two products has a bias"
    return None

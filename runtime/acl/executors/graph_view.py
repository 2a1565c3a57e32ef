"""A GE-IR graph prepared for execution: constants as arrays, edges resolved once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dtypes import dtype
from ...om_file.ge_graph import CONST_TYPES, DATA_TYPES, Graph, Node, TensorDesc, WeightRef
from ...om_file.om_reader import OmFile
from ..constants import GEAR_INPUT_NAME
from ..error_table import GE_LOAD_MODEL
from ..executor import Array, ExecutorError, UnsoundModelError

Source = tuple[str, int]  # node name, output index


@dataclass(frozen=True)
class GraphView:
    """The root graph of an `.om` file, its inputs and outputs in order and its weights."""

    graph: Graph
    inputs: list[TensorDesc]
    outputs: list[TensorDesc]
    results: list[Source]
    weights: memoryview

    @property
    def operators(self) -> list[Node]:
        """Every node that computes something, in execution order."""
        skip = DATA_TYPES | CONST_TYPES | {"NetOutput"}
        return [node for node in self.graph.nodes if node.type not in skip]

    @property
    def constants(self) -> list[Node]:
        """The Const nodes."""
        return [node for node in self.graph.nodes if node.type in CONST_TYPES]

    def constant(self, node: Node) -> Array:
        """Return the value of a Const node; a view into the file where the bytes lie there."""
        value = node.attrs["value"]
        if isinstance(value, WeightRef):
            raw = self.weights[value.offset : value.offset + value.nbytes]
            return np.frombuffer(raw, dtype(value.desc.dtype).numpy).reshape(value.desc.shape)
        return np.asarray(value)


def view_graph(om: OmFile) -> GraphView:
    """Prepare the first model of an `.om` file; raises UnsoundModelError listing all problems."""
    model = om.models[0]
    graph = model.model_def.graphs[0]
    problems = graph.validate()
    if problems:
        raise UnsoundModelError(
            f"graph {graph.name!r} is not sound: " + "; ".join(problems), GE_LOAD_MODEL
        )
    net_output = graph.net_output
    results = [(edge.producer, edge.index) for edge in net_output.edges() if edge is not None]
    outputs = [graph.input_desc(f"{name}:{index}") for name, index in results]
    inputs = [
        TensorDesc(node.output_descs[0].dtype, node.output_descs[0].shape, node.name)
        for node in graph.data_nodes
        if node.name != GEAR_INPUT_NAME
    ]
    return GraphView(graph, inputs, outputs, results, model.weights)


def table_source(view: GraphView, node: Node, place: int) -> tuple[str, int]:
    """Return the Data behind the block table of an attention node, and the pages added to it.

    Layers that share a pool have a constant offset each (compiler.lower.stack_caches), and rows may
    be gathered by token (compiler.lower.token_attention). Raises ExecutorError for any other form.
    """
    nodes = {each.name: each for each in view.graph.nodes}
    name, offset = node.inputs[place].rpartition(":")[0], 0
    if nodes[name].type == "Add":
        table, shift = (nodes[text.rpartition(":")[0]] for text in nodes[name].inputs)
        if shift.type in CONST_TYPES and view.constant(shift).size == 1:
            name, offset = table.name, int(view.constant(shift).reshape(-1)[0])
    if nodes[name].type == "GatherV2":
        name = nodes[name].inputs[0].rpartition(":")[0]
    if nodes[name].type not in DATA_TYPES:
        raise ExecutorError(
            f"{node.name}: the block table must be a graph input, rows of one, or either plus a "
            f"constant; is {name} ({nodes[name].type})",
            GE_LOAD_MODEL,
        )
    return name, offset


def refuse_unknown_operators(view: GraphView, known: frozenset[str], executor: str) -> None:
    """Raise ExecutorError naming every operator type of the graph that is not in `known`."""
    unknown: dict[str, str] = {}
    for node in view.operators:
        if node.type not in known:
            unknown.setdefault(node.type, node.name)
    if unknown:
        listed = ", ".join(f"{kind} (first: {name})" for kind, name in unknown.items())
        raise ExecutorError(f"the {executor} executor has no operator {listed}", GE_LOAD_MODEL)

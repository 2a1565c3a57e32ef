"""A GE-IR graph under construction, and where the bytes of its constants will come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..runtime.om_file.ge_graph import Graph, Node, TensorDesc


@dataclass(frozen=True)
class WeightParts:
    """A constant made of checkpoint tensors, stacked on the first axis in this order."""

    names: tuple[str, ...]  # canonical names

    def __str__(self) -> str:
        return " + ".join(self.names)


@dataclass
class GeBuild:
    """A graph whose Const nodes may still wait for their data.

    `parts` says for a Const node which checkpoint tensors it holds, `arrays` holds data that the
    compiler made itself (rotary tables, masks, shapes). Each Const is in exactly one of the two.
    """

    graph: Graph
    parts: dict[str, WeightParts] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    _descs: dict[str, list[TensorDesc]] = field(default_factory=dict, repr=False)

    def add(self, node: Node) -> str:
        """Append a node and return the edge text of its first output."""
        self.graph.nodes.append(node)
        self._descs[node.name] = node.output_descs
        return f"{node.name}:0"

    def register(self, nodes: Iterable[Node]) -> None:
        """Make nodes that a pass places into the graph itself known to `desc`."""
        self._descs.update((node.name, node.output_descs) for node in nodes)

    def operator(
        self,
        name: str,
        kind: str,
        inputs: Iterable[tuple[str, str]],
        outputs: Iterable[tuple[str, TensorDesc]],
        **attrs: Any,
    ) -> Node:
        """Append an operator; inputs are (IR name, edge), outputs (IR name, descriptor)."""
        given, made = list(inputs), list(outputs)
        node = Node(
            name,
            kind,
            [edge for _, edge in given],
            attrs,
            [self.desc(edge) for _, edge in given],
            [desc for _, desc in made],
            [ir_name for ir_name, _ in given],
            [ir_name for ir_name, _ in made],
        )
        self.add(node)
        return node

    def desc(self, edge: str) -> TensorDesc:
        """Return the descriptor of an edge; an absent optional input has an empty one."""
        if not edge:
            return TensorDesc("float32", ())
        producer, _, index = edge.rpartition(":")
        return self._descs[producer][int(index)]

    def constant(self, name: str, array: np.ndarray) -> str:
        """Append a constant of the compiler's own, once a name, and return its edge."""
        if name not in self.arrays:
            self.arrays[name] = array
            self._const(name, TensorDesc(array.dtype.name, array.shape))
        return f"{name}:0"

    def weight(self, name: str, parts: WeightParts, desc: TensorDesc) -> str:
        """Append a constant that is filled from the checkpoint, once a name; return its edge."""
        if name not in self.parts:
            self.parts[name] = parts
            self._const(name, desc)
        return f"{name}:0"

    def _const(self, name: str, desc: TensorDesc) -> None:
        self.add(Node(name, "Const", [], {}, [], [desc], [], ["y"]))

    def drop_unused(self) -> int:
        """Remove operators and constants that reach no output; returns how many."""
        used: set[str] = set()
        kept: list[Node] = []
        for node in reversed(self.graph.nodes):
            if node.type in ("NetOutput", "Data") or node.name in used:
                used.update(edge.producer for edge in node.edges() if edge is not None)
                kept.append(node)
        removed = len(self.graph.nodes) - len(kept)
        self.graph.nodes[:] = reversed(kept)
        names = {node.name for node in kept}
        self.parts = {name: parts for name, parts in self.parts.items() if name in names}
        self.arrays = {name: array for name, array in self.arrays.items() if name in names}
        return removed

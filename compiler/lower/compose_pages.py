"""Attention in base operators over a cache that the graph writes: packed prefill on 310P.

    KVUpdate ─> pages ─> PagedAttention    ->    KVUpdate ─> pages ─> gather ─> base operators

310P has an operator that writes pages (ScatterNdUpdate) and one that attends for one token a
sequence (IncreFlashAttention), but none for packed prompts. This form reads the pages that KVUpdate
has just written, so a prefill graph and a decode graph can share one cache; it works with a cache
a layer and with stacked pools (each layer has its own table then). See `compose_attention` for what
both forms have in common.

Precondition: the pages' sizes are known, M is a number, lengths are still cu_seqlens and kv_lens
int32. Postcondition: no PagedAttention is left; KVUpdate nodes are as they were.
"""

from __future__ import annotations

import onnx_ir as ir

from .attend_rows import HeadSizes, attend, clean, num_heads, page_rows, window_of
from .infra import PassResult, Skip
from .layers import KEYS, TABLE, VALUES
from .onnx_tape import Tape
from .step_tables import StepInputs, StepTables

_RANK = 4  # of a cache [P,S,K,D]


class ComposePages:
    """See the module's text; `table_width` is M."""

    name = "compose-pages"

    def __init__(self, table_width: int) -> None:
        self.table_width = table_width

    def __call__(self, model: ir.Model) -> PassResult:
        """Rewrite every attention node, or none."""
        result = PassResult()
        nodes = [node for node in model.graph if node.op_type == "PagedAttention"]
        if "cu_seqlens" not in {value.name for value in model.graph.inputs}:
            result.skipped.append(Skip("cu_seqlens", "is no input: run before seq-ends"))
        for node in nodes:
            cache = node.inputs[KEYS]
            shape = None if cache is None else cache.shape
            sizes = [] if shape is None else [dim for dim in shape.dims[1:] if isinstance(dim, int)]
            if len(sizes) != _RANK - 1:
                result.skipped.append(Skip(str(node.name), f"its key cache has shape {shape}"))
        if result.skipped or not nodes:
            return result
        _Rewriter(model.graph, nodes, self.table_width).run()
        result.modified = len(nodes)
        return result


class _Rewriter:
    """The rewrite of one graph."""

    def __init__(self, graph: ir.Graph, nodes: list[ir.Node], table_width: int) -> None:
        self.graph, self.nodes = graph, nodes
        cache = nodes[0].inputs[KEYS]
        assert cache is not None
        assert cache.shape is not None
        assert cache.dtype is not None
        _, page_size, kv_heads, dim = (int(d) if isinstance(d, int) else 0 for d in cache.shape)
        self.sizes = HeadSizes(num_heads(nodes[0]), kv_heads, dim, cache.dtype)
        step = StepInputs.of(graph, table_width, page_size)
        first = Tape(graph, next(iter(graph)), "/step")
        self.tables = StepTables(first, step, self.sizes.group, new_columns=False)
        for node in nodes:
            self.tables.seen(window_of(node))
            self.tables.used(window_of(node))

    def run(self) -> None:
        width = self.tables.width
        for node in self.nodes:
            tape = Tape(self.graph, node, str(node.name))
            table = node.inputs[TABLE]
            assert table is not None
            index = self.tables.row_index(table, 1, tape)
            keys = self._gather(tape, node, KEYS, index)
            values = self._gather(tape, node, VALUES, index)
            used = self.tables.used(window_of(node))
            finite = clean(tape, self.sizes, "clean_value", used, values, width)
            out = attend(tape, self.sizes, node, (keys, finite), self.tables)
            old = node.outputs[0]
            ir.convenience.replace_all_uses_with(old, out)
            self.graph.remove(node, safe=True)
            out.name = old.name

    def _gather(self, tape: Tape, node: ir.Node, place: int, index: ir.Value) -> ir.Value:
        cache = node.inputs[place]
        assert cache is not None
        what, row = ("key" if place == KEYS else "value"), self.sizes.row
        rows = tape.reshape(f"{what}_rows", cache, (-1, row), [None, row])
        return page_rows(tape, self.sizes, self.tables.width, what, rows, index)

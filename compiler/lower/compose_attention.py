"""Attention in base operators, for chips that have none: new rows out, pages read by row.

    KVUpdate + PagedAttention, caches [P,S,K,D] x 2L          (cache written by the graph)
    ->
    kv_rows_pool [P,S,2L*K*D] in, new_rows [T,2L*K*D] out     (cache written by the runtime)

No operator writes into a graph input: some chips have none that could. The runtime copies row t of
`new_rows` to its slot of the pool; the elements of a row stand in the order [L,2,K,D] (K before V),
so one token of all layers is one block of memory: one copy a token, or one a run of tokens in a
page. The dims are folded ([P,S,L,2,K,D] has six) because ATC's ND format is documented for four.

A step's tokens are therefore not in the pages yet, and attention sees two kinds of columns (see
`step_tables`): past tokens, gathered from the pages of the batch, and this step's own rows.

Memory traffic: pages are gathered a layer at a time, K*D elements of a token each, from the pool
seen as [P*S*2L, K*D]. One gather of whole pages for all layers and a slice per layer would move
every byte twice and hold L times as much. Work: every row meets the columns of every sequence (B
times a kernel's), because which rows belong together is data; that is why gears with a small B suit
this form.

A slot that no step wrote may hold NaN: scores are masked by Where, not by adding; and a masked
weight is 0, but 0 * NaN is NaN, so unseen value rows, and other sequences', are replaced by 0.

Precondition: every layer has the exported form and equal sizes, M is a number. Postcondition: no
KVUpdate, PagedAttention, cache input, cache output or slot_mapping is left.
"""

from __future__ import annotations

import onnx_ir as ir

from .attend_rows import HeadSizes, attend, clean, num_heads, page_rows
from .infra import PassResult, Skip
from .layers import KEY, VALUE, CacheLayer, find_layers, geometry
from .onnx_infra import int_input, make_node
from .onnx_tape import Shape, Tape
from .step_tables import StepInputs, StepTables

ROWS_POOL, NEW_ROWS = "kv_rows_pool", "new_rows"


class ComposeAttention:
    """See the module's text; `table_width` is M."""

    name = "compose-attention"

    def __init__(self, table_width: int) -> None:
        self.table_width = table_width

    def __call__(self, model: ir.Model) -> PassResult:
        """Rewrite all layers or none."""
        result = PassResult()
        left = [v.name for v in model.graph.outputs if str(v.name).startswith("key_cache_out.")]
        if left:
            result.skipped.append(Skip(str(left[0]), "is an output: run drop-cache-outputs first"))
        layers = find_layers(model, result)
        if result.skipped:
            return result
        _Composer(model.graph, layers, self.table_width).run()
        result.modified = len(layers)
        return result


class _Composer:
    """The rewrite of one graph."""

    def __init__(self, graph: ir.Graph, layers: list[CacheLayer], table_width: int) -> None:
        self.graph, self.layers, self.sizes = graph, layers, geometry(layers)
        sizes = self.sizes
        self.heads = HeadSizes(
            num_heads(layers[0].attention), sizes.kv_heads, sizes.dim, sizes.dtype
        )
        first = Tape(graph, layers[0].update, "/step")
        pool = self._swap_inputs(table_width)
        step = StepInputs.of(graph, table_width, sizes.page_size)
        self.tables = StepTables(first, step, self.heads.group)
        self.rows = first.reshape("pool_rows", pool, (-1, sizes.row), [None, sizes.row])
        self.index = self.tables.row_index(2 * sizes.layers)
        pair = [self.tables.own_token, first.ints(2, 3)]
        self.own_token = first.op("Unsqueeze", "own_rows", pair, ["B", "T", 1, 1])
        for layer in layers:  # masks of all windows in front of the first layer
            self.tables.seen(layer.window)
            self.tables.used(layer.window)

    def run(self) -> None:
        new: list[ir.Value] = []
        for layer in self.layers:
            tape = Tape(self.graph, layer.update, layer.attention.name or "/attention")
            key, value = (self._flat(tape, layer, at) for at in (KEY, VALUE))
            new += [key, value]
            rows = self._rows(tape, layer, key, value)
            out = attend(tape, self.heads, layer.attention, rows, self.tables)
            old = layer.attention.outputs[0]
            ir.convenience.replace_all_uses_with(old, out)
            self.graph.remove([layer.attention, layer.update], safe=True)
            out.name = old.name
        width = 2 * self.sizes.layers * self.sizes.row
        node = make_node("Concat", "/new_rows/Concat", new, ["T", width], self.sizes.dtype, axis=1)
        node.outputs[0].name = NEW_ROWS
        self.graph.append(node)
        self.graph.outputs.append(node.outputs[0])
        for layer in self.layers:
            self.graph.inputs.remove(layer.key_cache)
            self.graph.inputs.remove(layer.value_cache)
        slots = next(value for value in self.graph.inputs if value.name == "slot_mapping")
        self.graph.inputs.remove(slots)

    def _swap_inputs(self, table_width: int) -> ir.Value:
        """Add the pool in front of the caches and fix M; the caches go when nobody reads them."""
        sizes = self.sizes
        shape = ("P", sizes.page_size, 2 * sizes.layers * sizes.row)
        pool = int_input(ROWS_POOL, shape, sizes.dtype)
        self.graph.inputs.insert(self.graph.inputs.index(self.layers[0].key_cache), pool)
        return pool

    def _flat(self, tape: Tape, layer: CacheLayer, place: int) -> ir.Value:
        """This step's keys or values [T,K,D] as rows [T,K*D]."""
        given = layer.update.inputs[place]
        assert given is not None
        what = "new_key" if place == KEY else "new_value"
        return tape.reshape(what, given, (-1, self.sizes.row), ["T", self.sizes.row])

    def _rows(
        self, tape: Tape, layer: CacheLayer, key: ir.Value, value: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Keys and values of all columns [B,N+T,K,D]; values are zero where no row looks."""
        pages = [self._pages(tape, layer, *which) for which in (("key", 0), ("value", 1))]
        used = self.tables.used(layer.window)
        pages[1] = clean(tape, self.heads, "clean_value", used, pages[1], self.tables.width)
        shape: Shape = ["B", None, self.heads.kv_heads, self.heads.dim]
        both = []
        for what, old, new in (("key", pages[0], key), ("value", pages[1], value)):
            target = (1, -1, self.heads.kv_heads, self.heads.dim)
            step = tape.reshape(f"step_{what}", new, target, [1, "T", *shape[2:]])
            own = clean(tape, self.heads, f"own_{what}", self.own_token, step, "T")
            both.append(tape.op("Concat", f"all_{what}s", [old, own], shape, axis=1))
        return both[0], both[1]

    def _pages(self, tape: Tape, layer: CacheLayer, what: str, shift: int) -> ir.Value:
        offset = tape.int32(2 * layer.number + shift)
        index = tape.op("Add", f"{what}_index", [self.index, offset], [None])
        return page_rows(tape, self.heads, self.tables.width, what, self.rows, index)

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
weight is 0, but 0 * NaN is NaN, so unseen value rows are replaced by 0.

Precondition: every layer has the exported form and equal sizes, M is a number. Postcondition: no
KVUpdate, PagedAttention, cache input, cache output or slot_mapping is left.
"""

from __future__ import annotations

import onnx_ir as ir

from .infra import PassError, PassResult, Skip
from .layers import KEY, QUERY, VALUE, CacheLayer, find_layers, geometry
from .onnx_infra import int_input, make_node
from .onnx_tape import FLOAT, Tape
from .step_tables import StepInputs, StepTables

ROWS_POOL, NEW_ROWS = "kv_rows_pool", "new_rows"
_MASKED = -1e30  # of a score; its weight is exactly 0


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
        self.heads = _heads(layers[0])
        self.group = self.heads // self.sizes.kv_heads
        first = Tape(graph, layers[0].update, "/step")
        self.pool = self._swap_inputs(table_width)
        inputs = {str(value.name): value for value in graph.inputs}
        step = StepInputs(
            inputs["positions"],
            inputs["block_table"],
            inputs["cu_seqlens"],
            inputs["kv_lens"],
            table_width,
        )
        self.tables = StepTables(first, step, self.sizes, self.group)
        self.rows = first.reshape(
            "pool_rows", self.pool, (-1, self.sizes.row), [None, self.sizes.row]
        )
        self.index = self.tables.row_index()
        for layer in layers:  # masks of all windows in front of the first layer
            self.tables.seen(layer.window)
            self.tables.used(layer.window)

    def run(self) -> None:
        new: list[ir.Value] = []
        for layer in self.layers:
            tape = Tape(self.graph, layer.update, layer.attention.name or "/attention")
            key, value = (self._flat(tape, layer, at) for at in (KEY, VALUE))
            new += [key, value]
            out = self._attend(tape, layer, key, value)
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
        table = next(value for value in self.graph.inputs if value.name == "block_table")
        table.shape = ir.Shape(["B", table_width])
        return pool

    def _flat(self, tape: Tape, layer: CacheLayer, place: int) -> ir.Value:
        """This step's keys or values [T,K,D] as rows [T,K*D]."""
        given = layer.update.inputs[place]
        assert given is not None
        what = "new_key" if place == KEY else "new_value"
        return tape.reshape(what, given, (-1, self.sizes.row), ["T", self.sizes.row])

    def _gather(self, tape: Tape, layer: CacheLayer, what: str, shift: int) -> ir.Value:
        offset = tape.int32(2 * layer.number + shift)
        index = tape.op("Add", f"{what}_index", [self.index, offset], [None])
        row = self.sizes.row
        return tape.op("Gather", f"past_{what}", [self.rows, index], [None, row], axis=0)

    def _keys(self, tape: Tape, layer: CacheLayer, new: ir.Value) -> ir.Value:
        """[K,D,C]."""
        kv_heads, dim, row = self.sizes.kv_heads, self.sizes.dim, self.sizes.row
        past = self._gather(tape, layer, "key", 0)
        both = tape.op("Concat", "keys", [past, new], [None, row], axis=0)
        heads = tape.reshape("key_heads", both, (-1, kv_heads, dim), [None, kv_heads, dim])
        shape = [kv_heads, dim, None]
        return tape.op("Transpose", "keys_by_head", [heads], shape, perm=[1, 2, 0])

    def _values(self, tape: Tape, layer: CacheLayer, new: ir.Value) -> ir.Value:
        """[K,C,D], zero where no row looks."""
        kv_heads, dim, row = self.sizes.kv_heads, self.sizes.dim, self.sizes.row
        past = self._gather(tape, layer, "value", 1)
        triple = [self.tables.used(layer.window), past, tape.scalar(0.0, self.sizes.dtype)]
        clean = tape.op("Where", "clean_value", triple, [None, row], self.sizes.dtype)
        both = tape.op("Concat", "values", [clean, new], [None, row], axis=0)
        heads = tape.reshape("value_heads", both, (-1, kv_heads, dim), [None, kv_heads, dim])
        shape = [kv_heads, None, dim]
        return tape.op("Transpose", "values_by_head", [heads], shape, perm=[1, 0, 2])

    def _queries(self, tape: Tape, layer: CacheLayer) -> ir.Value:
        """[K,G*T,D], scaled: a 16-bit product of unscaled vectors could overflow."""
        sizes, group, attention = self.sizes, self.group, layer.attention
        query = attention.inputs[QUERY]
        assert query is not None
        scale = tape.scalar(attention.attributes["scale"].as_float(), sizes.dtype)
        scaled = tape.op("Mul", "query_scaled", [query, scale], ["T", self.heads, sizes.dim])
        split = (-1, sizes.kv_heads, group, sizes.dim)
        shape: list[int | str | None] = ["T", sizes.kv_heads, group, sizes.dim]
        grouped = tape.reshape("query_groups", scaled, split, shape)
        shape = [sizes.kv_heads, group, "T", sizes.dim]
        by_head = tape.op("Transpose", "query_by_head", [grouped], shape, perm=[1, 2, 0, 3])
        target = (sizes.kv_heads, -1, sizes.dim)
        return tape.reshape("queries", by_head, target, [sizes.kv_heads, None, sizes.dim])

    def _attend(self, tape: Tape, layer: CacheLayer, key: ir.Value, value: ir.Value) -> ir.Value:
        sizes, dtype = self.sizes, self.sizes.dtype
        kv_heads, dim = sizes.kv_heads, sizes.dim
        square: list[int | str | None] = [kv_heads, None, None]
        queries = self._queries(tape, layer)
        keys = self._keys(tape, layer, key)
        scores = tape.cast("scores32", tape.op("MatMul", "scores", [queries, keys], square), FLOAT)
        scores = _softcap(tape, layer.attention, scores, square)
        triple = [self.tables.seen(layer.window), scores, tape.scalar(_MASKED, FLOAT)]
        masked = tape.op("Where", "masked", triple, square, FLOAT)
        weights = tape.op("Softmax", "weights", [masked], square, axis=-1)
        weights = tape.cast("weights_short", weights, dtype)
        values = self._values(tape, layer, value)
        mixed = tape.op("MatMul", "mixed", [weights, values], [kv_heads, None, dim])
        target = (kv_heads, self.group, -1, dim)
        grouped = tape.reshape("groups", mixed, target, [kv_heads, self.group, "T", dim])
        shape: list[int | str | None] = ["T", kv_heads, self.group, dim]
        by_token = tape.op("Transpose", "by_token", [grouped], shape, perm=[2, 0, 1, 3])
        return tape.reshape("heads", by_token, (-1, self.heads, dim), ["T", self.heads, dim])


def _heads(layer: CacheLayer) -> int:
    query = layer.attention.inputs[QUERY]
    heads = None if query is None or query.shape is None else query.shape[1]
    if not isinstance(heads, int):
        raise PassError(f"the query of {layer.attention.name} has no fixed number of heads")
    return heads


def _softcap(
    tape: Tape, attention: ir.Node, scores: ir.Value, shape: list[int | str | None]
) -> ir.Value:
    attribute = attention.attributes.get("softcap")
    cap = 0.0 if attribute is None else attribute.as_float()
    if cap <= 0:
        return scores
    limit = tape.scalar(cap, FLOAT)
    ratio = tape.op("Div", "capped_ratio", [scores, limit], shape)
    return tape.op("Mul", "capped", [tape.op("Tanh", "tanh", [ratio], shape), limit], shape)

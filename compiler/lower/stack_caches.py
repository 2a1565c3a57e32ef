"""All layers' caches as two pools: what a geared model needs, and how layers share one.

    key_cache.0 … key_cache.{L-1} [P,S,K,D]      ->   key_pool [L*P,S,K,D], value_pool likewise
    layer l: block_table, slot_mapping           ->   block_table + l*P,
                                                      slot_mapping + l*P*S where slot >= 0

    key_pool ─> KVUpdate 0 ─┬─> KVUpdate 1 ─┬─> …       each pool is a chain; layer l's attention
                            └─> attention 0 └─> …       reads what update l made

Why: `set_input_dynamic_dims` takes all dims of all inputs in a structure of 128 places, so a geared
model cannot have 2L cache inputs of four dims each (facts: pyacl 1.6). P is then part of the graph.

Why a chain, and four dims: each pool input has one consumer, update 0. The updated pool of layer l
has two readers, attention l and update l+1, and the second depends on the first through the hidden
states; GE's InnerIdentityDeletePass keeps an in-place operator copy-free when all other readers
are so ordered [run with GE's own passes, never on a device: docs/design/lowerings.md]. Four dims
are what ScatterPaKvCache wants; nothing has to stand between the input and it.

Precondition: every layer has the exported form and equal sizes. Postcondition: inputs key_pool and
value_pool stand where the caches stood. All layers are rewritten or none.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..onnx_check import dims
from .drop_cache_outputs import CACHE_OUTPUTS
from .infra import PassResult, Skip
from .layers import (
    KEY_CACHE,
    SLOTS,
    TABLE,
    VALUE_CACHE,
    CacheGeometry,
    CacheLayer,
    find_layers,
    geometry,
)
from .onnx_infra import constant, int_input, make_node

KEY_POOL, VALUE_POOL = "key_pool", "value_pool"
_INT32_MAX = 2**31 - 1


class StackCaches:
    """See the module's text; `num_pages` is P, the null page included."""

    name = "stack-caches"

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages

    def __call__(self, model: ir.Model) -> PassResult:
        """Rewrite all layers; raises PassError where their sizes differ."""
        result = PassResult()
        left = [v.name for v in model.graph.outputs if str(v.name).startswith(CACHE_OUTPUTS)]
        if left:
            result.skipped.append(Skip(str(left[0]), "is an output: run drop-cache-outputs first"))
        layers = find_layers(model, result)
        if result.skipped:
            return result
        sizes = geometry(layers)
        slots = sizes.layers * self.num_pages * sizes.page_size
        if slots > _INT32_MAX:
            reason = (
                f"{sizes.layers} layers x {self.num_pages} pages x {sizes.page_size} tokens are "
                f"{slots} slots, more than int32 slot numbers reach: use fewer pages"
            )
            result.skipped.append(Skip("slot_mapping", reason))
            return result
        _Stacker(model.graph, sizes, self.num_pages).run(layers)
        result.modified = len(layers)
        return result


class _Stacker:
    """The rewrite of one graph."""

    def __init__(self, graph: ir.Graph, sizes: CacheGeometry, num_pages: int) -> None:
        self.graph, self.sizes, self.num_pages = graph, sizes, num_pages
        inputs = {str(value.name): value for value in graph.inputs}
        self.slots = inputs["slot_mapping"]
        self.shape = (sizes.layers * num_pages, sizes.page_size, sizes.kv_heads, sizes.dim)
        self.is_real: ir.Value | None = None

    def run(self, layers: list[CacheLayer]) -> None:
        pools = [int_input(name, self.shape, self.sizes.dtype) for name in (KEY_POOL, VALUE_POOL)]
        place = self.graph.inputs.index(layers[0].key_cache)
        caches = [value for layer in layers for value in (layer.key_cache, layer.value_cache)]
        self.graph.inputs[place:place] = pools
        keys, values = pools
        for layer in layers:
            update = layer.update
            update.replace_input_with(KEY_CACHE, keys)
            update.replace_input_with(VALUE_CACHE, values)
            for output in update.outputs:
                output.shape = ir.Shape(self.shape)
            keys, values = update.outputs
            if layer.number:
                update.replace_input_with(SLOTS, self._slots(layer))
                layer.attention.replace_input_with(TABLE, self._table(layer))
        for value in caches:
            self.graph.inputs.remove(value)

    def _insert(self, layer: CacheLayer, node: ir.Node) -> ir.Value:
        self.graph.insert_before(layer.update, node)
        return node.outputs[0]

    def _table(self, layer: CacheLayer) -> ir.Value:
        pages = layer.number * self.num_pages
        offset = constant(self.graph, f"pages.{pages}", np.array(pages, np.int32))
        table = layer.attention.inputs[TABLE]
        assert table is not None
        name = f"/layers.{layer.number}/attn/block_table/Add"
        made = make_node("Add", name, [table, offset], dims(table), ir.DataType.INT32)
        return self._insert(layer, made)

    def _slots(self, layer: CacheLayer) -> ir.Value:
        """Padding keeps its -1: a slot moved into the pool would be written."""
        slots = layer.number * self.num_pages * self.sizes.page_size
        offset = constant(self.graph, f"slots.{slots}", np.array(slots, np.int32))
        stem = f"/layers.{layer.number}/attn/slot_mapping"
        int32, boolean = ir.DataType.INT32, ir.DataType.BOOL
        if self.is_real is None:
            zero = constant(self.graph, "slots.0", np.array(0, np.int32))
            node = make_node(
                "GreaterOrEqual", "/slot_mapping/is_real", [self.slots, zero], ["T"], boolean
            )
            self.is_real = self._insert(layer, node)
        moved = self._insert(
            layer, make_node("Add", f"{stem}/Add", [self.slots, offset], ["T"], int32)
        )
        inputs = [self.is_real, moved, self.slots]
        return self._insert(layer, make_node("Where", f"{stem}/Where", inputs, ["T"], int32))

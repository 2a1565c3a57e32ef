"""The cache as slots, written by ScatterNdUpdate: for chips without ScatterPaKvCache (310P).

    KVUpdate      pools [P,S,K,D], slot_mapping, -1 writes nothing
    SlotUpdate    pools [P*S,K,D], slot_mapping, padding has slot 0 of the null page

    key_pool [P*S,K,D] ─> SlotUpdate 0 ─┬─> SlotUpdate 1 ─> …
                                        └─> Reshape [P,S,K,D] ─> attention 0

The graph's input has the shape that the in-place operator wants, so nothing stands between the two
(GE 9.0 keeps an update in place through a Reshape too; releases before 8.5 are not open). One index
a slot is the form of ScatterNdUpdate that public Ascend recipes run.

Precondition: P is a number, given here; caches are graph inputs or come from another KVUpdate.
Postcondition: no KVUpdate is left; cache inputs have three dims. All nodes are rewritten or none.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ...graph_ops.schema import DOMAIN
from ...graph_ops.slot_update import SCHEMA
from ..onnx_check import dims
from .infra import PassResult, Skip
from .layers import KEY, KEY_CACHE, SLOTS, VALUE, VALUE_CACHE
from .onnx_infra import constant, make_node

_RANK = 4  # of a cache [P,S,K,D]


class SlotUpdate:
    """See the module's text; `num_pages` is P, the null page included."""

    name = "slot-update"

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages

    def __call__(self, model: ir.Model) -> PassResult:
        """Rewrite every KVUpdate, or none."""
        result = PassResult()
        updates = [node for node in model.graph if node.op_type == "KVUpdate"]
        for node in updates:
            reason = self._reason(node)
            if reason is not None:
                result.skipped.append(Skip(str(node.name), reason))
        if result.skipped:
            return result
        slots: dict[str, ir.Value] = {}  # name of an updated cache as pages -> the same as slots
        for node in updates:
            self._rewrite(model.graph, node, slots)
        result.modified = len(updates)
        return result

    def _reason(self, node: ir.Node) -> str | None:
        """Return why a KVUpdate cannot be rewritten, None when it can."""
        for place in (KEY_CACHE, VALUE_CACHE):
            cache = node.inputs[place]
            shape = () if cache is None or cache.shape is None else dims(cache)
            if len(shape) != _RANK or not all(isinstance(extent, int) for extent in shape[1:]):
                return f"input {place} has shape {shape}, must be [P,S,K,D] with S, K, D as numbers"
            if not self.num_pages and not isinstance(shape[0], int):
                return f"the number of pages is open ({shape[0]}), and slots need it as a number"
        return None

    def _rewrite(self, graph: ir.Graph, node: ir.Node, slots: dict[str, ir.Value]) -> None:
        caches = [self._as_slots(node.inputs[place], slots) for place in (KEY_CACHE, VALUE_CACHE)]
        inputs = [node.inputs[KEY], caches[0], node.inputs[SLOTS], node.inputs[VALUE], caches[1]]
        stem = str(node.name).removesuffix("KVUpdate")
        name = f"{stem}{SCHEMA.name}" if stem != node.name else stem
        outputs = [
            ir.Value(name=f"{name}_output_{place}", shape=cache.shape, type=cache.type)
            for place, cache in enumerate(caches)
        ]
        graph.insert_before(node, ir.Node(DOMAIN, SCHEMA.name, inputs, name=name, outputs=outputs))
        for which, old, new in zip(("key", "value"), node.outputs, outputs):
            pages = self._as_pages(graph, node, f"{name}/{which}_pages", old, new)
            slots[str(pages.name)] = new
        graph.remove(node, safe=True)

    def _as_slots(self, cache: ir.Value | None, slots: dict[str, ir.Value]) -> ir.Value:
        """Return a cache as slots: what the update before it made, or the graph's own input."""
        assert cache is not None
        known = slots.get(str(cache.name))
        if known is not None:
            return known
        pages, page_size, kv_heads, dim = dims(cache)
        count = pages if isinstance(pages, int) else self.num_pages
        assert isinstance(page_size, int)
        cache.shape = ir.Shape([count * page_size, kv_heads, dim])
        return cache

    def _as_pages(
        self, graph: ir.Graph, node: ir.Node, name: str, old: ir.Value, new: ir.Value
    ) -> ir.Value:
        """Return `new` as pages, in the place of `old`."""
        pages, page_size, kv_heads, dim = dims(old)
        count = pages if isinstance(pages, int) else self.num_pages
        target = (-1, page_size, kv_heads, dim)
        shape_name = "pages." + "x".join(str(extent) for extent in target[1:])
        shape = constant(graph, shape_name, np.array(target, np.int64))
        view = make_node("Reshape", name, [new, shape], (count, *target[1:]), old.dtype)
        graph.insert_before(node, view)
        ir.convenience.replace_all_uses_with(old, view.outputs[0])
        return view.outputs[0]

"""Updated caches are no graph outputs on a device: they are the inputs, written in place.

    outputs logits, key_cache_out.l, value_cache_out.l    ->    outputs logits

In a geared OM a chain from a subgraph's Data through an in-place operator to NetOutput gets an
Identity, a copy of the whole cache (facts: ascend_ops 3.4); in a static OM the runtime would copy
input to output after each run. KVUpdate stays alive without: PagedAttention reads its outputs.

Precondition: each cache output is read inside the graph too. Postcondition: no output's name
starts with key_cache_out or value_cache_out.
"""

from __future__ import annotations

import onnx_ir as ir

from .infra import PassResult, Skip

CACHE_OUTPUTS = ("key_cache_out.", "value_cache_out.")


class DropCacheOutputs:
    """See the module's text."""

    name = "drop-cache-outputs"

    def __call__(self, model: ir.Model) -> PassResult:
        """Remove the outputs; one that nothing reads stays, or its update would vanish."""
        result = PassResult()
        for value in list(model.graph.outputs):
            if not str(value.name).startswith(CACHE_OUTPUTS):
                continue
            if not value.uses():
                reason = "no node reads it: without the output its KVUpdate would be removed"
                result.skipped.append(Skip(str(value.name), reason))
                continue
            model.graph.outputs.remove(value)
            result.modified += 1
        return result

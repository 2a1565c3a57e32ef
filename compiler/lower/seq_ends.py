"""Lengths in the form FusedInferAttentionScore wants, as graph inputs of their own.

    cu_seqlens int32 [B+1], kv_lens int32 [B]    ->    seq_ends int64 [B], kv_lens int64 [B]

Both are value-dependent inputs of the operator's tiling, so nothing may stand between them and
the graph's inputs (facts: ascend_ops 3.2); the runtime fills `seq_ends` = cu_seqlens[1:] itself.

Precondition: cu_seqlens and kv_lens are read by PagedAttention only. Postcondition: input
`cu_seqlens` is gone, `seq_ends` stands in its place.
"""

from __future__ import annotations

import onnx_ir as ir

from .infra import PassError, PassResult
from .layers import CU_SEQLENS


class SeqEnds:
    """See the module's text."""

    name = "seq-ends"

    def __call__(self, model: ir.Model) -> PassResult:
        """Rewrite the inputs; raises PassError where another operator reads them."""
        return PassResult(swap_lengths(model))


def swap_lengths(model: ir.Model) -> int:
    """Rewrite the inputs in place; returns the number of attention nodes rewired."""
    graph = model.graph
    inputs = {value.name: value for value in graph.inputs}
    cu_seqlens, kv_lens = inputs["cu_seqlens"], inputs["kv_lens"]
    for value in (cu_seqlens, kv_lens):
        others = [u.node for u in value.uses() if u.node.op_type != "PagedAttention"]
        if others:
            raise PassError(
                f"{value.name} is read by {others[0].name} ({others[0].op_type}); only "
                "PagedAttention may read it"
            )
    seq_ends = ir.Value(
        name="seq_ends", shape=ir.Shape(["B"]), type=ir.TensorType(ir.DataType.INT64)
    )
    count = 0
    for use in list(cu_seqlens.uses()):
        use.node.replace_input_with(CU_SEQLENS, seq_ends)
        count += 1
    kv_lens.type = ir.TensorType(ir.DataType.INT64)
    graph.inputs[graph.inputs.index(cu_seqlens)] = seq_ends
    return count

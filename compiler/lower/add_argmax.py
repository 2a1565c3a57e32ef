"""The most probable token of each row as an output: greedy decoding copies 4 bytes a row.

    logits float32 [R,V]   ->   + next_ids int32 [R] = Cast(ArgMax(logits, axis -1))

Precondition: output logits exists, next_ids does not. Postcondition: next_ids stands behind logits.
"""

from __future__ import annotations

import onnx_ir as ir

from ..onnx_check import dims
from .infra import PassResult, Skip
from .onnx_infra import make_node

NEXT_IDS = "next_ids"


class AddArgmax:
    """See the module's text."""

    name = "add-argmax"

    def __call__(self, model: ir.Model) -> PassResult:
        """Append the two nodes and the output."""
        result = PassResult()
        outputs = {str(value.name): value for value in model.graph.outputs}
        logits = outputs.get("logits")
        if logits is None or NEXT_IDS in outputs:
            result.skipped.append(Skip(NEXT_IDS, f"the outputs are {sorted(outputs)}"))
            return result
        rows = [None if dim == -1 else dim for dim in dims(logits)[:1]]
        int64, int32 = ir.DataType.INT64, ir.DataType.INT32
        top = make_node("ArgMax", "/next_ids/ArgMax", [logits], rows, int64, axis=-1, keepdims=0)
        short = make_node("Cast", "/next_ids/Cast", top.outputs, rows, int32, to=int(int32))
        short.outputs[0].name = NEXT_IDS
        model.graph.extend([top, short])
        place = [value.name for value in model.graph.outputs].index("logits")
        model.graph.outputs.insert(place + 1, short.outputs[0])
        result.modified = 1
        return result

"""SlotUpdate: write this step's keys and values into a cache seen as slots, [P*S,K,D].

    cache[slot] = row,  slot = page * S + offset >= 0

What KVUpdate means where every slot is a real one: padding has slot 0, in the null page, which
nobody reads. The exporter makes none of these; the compiler puts them in the place of KVUpdate for
a chip whose operator knows no negative index (compiler/lower/slot_update.py).
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import onnxscript

from .bodies import BASE, OPSET, build_function
from .schema import OpSchema, Output, Param

SCHEMA = OpSchema(
    name="SlotUpdate",
    inputs=(
        Param("key", "T K D"),
        Param("key_slots", "N K D"),
        Param("slot_mapping", "T", "int32"),
        Param("value", "T K D"),
        Param("value_slots", "N K D"),
    ),
    outputs=(
        Output("key_slots_out", like="key_slots"),
        Output("value_slots_out", like="value_slots"),
    ),
)


def _make(to: int) -> Any:
    op = BASE

    @onnxscript.script(OPSET, default_opset=BASE)
    def body(key, key_slots, slot_mapping, value, value_slots):  # type: ignore[no-untyped-def]
        target = op.Cast(op.Unsqueeze(slot_mapping, op.Constant(value_ints=[1])), to=7)
        key_slots_out = op.ScatterND(key_slots, target, key)
        value_slots_out = op.ScatterND(value_slots, target, value)
        return key_slots_out, value_slots_out

    return body


def function(dtype: str) -> ir.Function:
    """Return the ONNX function body for one float dtype."""
    return build_function(SCHEMA, _make, dtype)

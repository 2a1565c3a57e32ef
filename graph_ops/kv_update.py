"""KVUpdate: write this step's keys and values into the pages of the cache.

    slot = page * S + offset;   cache[page, offset] = row   for slot >= 0

A negative slot (padding) writes nothing. The outputs are the updated caches: a device aliases them
to the inputs, a stateless runtime carries them from step to step.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import onnxscript
import torch

from . import oracles
from .bodies import BASE, OPSET, build_function, to_numpy, to_torch
from .schema import OpSchema, Output, Param

SCHEMA = OpSchema(
    name="KVUpdate",
    inputs=(
        Param("key", "T K D"),
        Param("key_cache", "P S K D"),
        Param("slot_mapping", "T", "int32"),
        Param("value", "T K D"),
        Param("value_cache", "P S K D"),
    ),
    outputs=(
        Output("key_cache_out", like="key_cache"),
        Output("value_cache_out", like="value_cache"),
    ),
)


def _make(to: int) -> Any:
    op = BASE

    @onnxscript.script(OPSET, default_opset=BASE)
    def body(key, key_cache, slot_mapping, value, value_cache):  # type: ignore[no-untyped-def]
        first = op.Constant(value_ints=[0])
        shape = op.Shape(key_cache)
        flat = op.Concat(
            op.Constant(value_ints=[-1]),
            op.Gather(shape, op.Constant(value_ints=[2, 3]), axis=0),
            axis=0,
        )
        key_rows = op.Reshape(key_cache, flat)
        value_rows = op.Reshape(value_cache, flat)
        slots = op.Cast(slot_mapping, to=7)
        zero = op.Constant(value_int=0)
        real = op.GreaterOrEqual(slots, zero)
        # Padding writes slot 0 of the null page with what is there already: any number of such
        # rows may do so, and nothing changes.
        target = op.Unsqueeze(op.Where(real, slots, zero), op.Constant(value_ints=[1]))
        real_rows = op.Unsqueeze(real, op.Constant(value_ints=[1, 2]))
        new_key = op.Where(real_rows, key, op.Gather(key_rows, first, axis=0))
        new_value = op.Where(real_rows, value, op.Gather(value_rows, first, axis=0))
        key_cache_out = op.Reshape(op.ScatterND(key_rows, target, new_key), shape)
        value_cache_out = op.Reshape(op.ScatterND(value_rows, target, new_value), shape)
        return key_cache_out, value_cache_out

    return body


def function(dtype: str) -> ir.Function:
    """Return the ONNX function body for one float dtype; a real slot 0 is not supported by it.

    Slot 0 lies in the null page, which nobody owns.
    """
    return build_function(SCHEMA, _make, dtype)


@torch.library.custom_op("pagedom::kv_update", mutates_args=())
def kv_update(
    key: torch.Tensor,
    key_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    value: torch.Tensor,
    value_cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return copies of the caches [P,S,K,D] with the rows written; see `oracles.kv_update`."""
    key_out, value_out = key_cache.clone(), value_cache.clone()
    key_array, value_array = to_numpy(key_out), to_numpy(value_out)
    oracles.kv_update(
        to_numpy(key), key_array, to_numpy(slot_mapping), to_numpy(value), value_array
    )
    return to_torch(key_array), to_torch(value_array)


@kv_update.register_fake
def _(
    key: torch.Tensor,
    key_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    value: torch.Tensor,
    value_cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(key_cache), torch.empty_like(value_cache)

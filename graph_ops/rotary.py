"""Rotary: rotary position embedding of packed heads, half-split layout, in float32.

    x [T,N,D] = (low | high), each D/2 wide; y = x * cos + (-high | low) * sin

cos and sin [T,D] stay float32 in every graph: a rounded angle table would cost more accuracy than
the products do. Their second half repeats the first.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import onnxscript
import torch

from . import oracles
from .bodies import BASE, FLOAT32, OPSET, build_function, to_numpy, to_torch
from .schema import OpSchema, Output, Param

SCHEMA = OpSchema(
    name="Rotary",
    inputs=(
        Param("x", "T N D"),
        Param("cos", "T D", "float32"),
        Param("sin", "T D", "float32"),
    ),
    outputs=(Output("y", like="x"),),
)


def _make(to: int) -> Any:
    op = BASE

    @onnxscript.script(OPSET, default_opset=BASE)
    def body(x, cos, sin):  # type: ignore[no-untyped-def]
        x32 = op.Cast(x, to=FLOAT32)
        # A view [T,N,2,D/2] needs no sizes of D, so it works for every head dim.
        halves = op.Reshape(x32, op.Constant(value_ints=[0, 0, 2, -1]))
        low = op.Gather(halves, op.Constant(value_ints=[0]), axis=2)
        high = op.Gather(halves, op.Constant(value_ints=[1]), axis=2)
        pair = op.Concat(op.Neg(high), low, axis=2)
        turned = op.Reshape(pair, op.Constant(value_ints=[0, 0, -1]))
        heads = op.Constant(value_ints=[1])
        straight = op.Mul(x32, op.Unsqueeze(cos, heads))
        across = op.Mul(turned, op.Unsqueeze(sin, heads))
        y = op.Cast(op.Add(straight, across), to=to)
        return y

    return body


def function(dtype: str) -> ir.Function:
    """Return the ONNX function body for one float dtype."""
    return build_function(SCHEMA, _make, dtype)


@torch.library.custom_op("pagedom::rotary", mutates_args=())
def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [T,N,D] by the angles of cos, sin [T,D]; see `oracles.rotary`."""
    return to_torch(oracles.rotary(to_numpy(x), to_numpy(cos), to_numpy(sin)))


@rotary.register_fake
def _(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)

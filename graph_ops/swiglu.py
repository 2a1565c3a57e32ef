"""SwiGlu: y = gate * sigmoid(gate) * up, element by element, in float32."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import onnxscript
import torch

from . import oracles
from .bodies import BASE, FLOAT32, OPSET, build_function, to_numpy, to_torch
from .schema import OpSchema, Output, Param

SCHEMA = OpSchema(
    name="SwiGlu",
    inputs=(Param("gate", "T n"), Param("up", "T n")),
    outputs=(Output("y", like="gate"),),
)


def _make(to: int) -> Any:
    op = BASE

    @onnxscript.script(OPSET, default_opset=BASE)
    def body(gate, up):  # type: ignore[no-untyped-def]
        gate32 = op.Cast(gate, to=FLOAT32)
        silu = op.Mul(gate32, op.Sigmoid(gate32))
        product = op.Mul(silu, op.Cast(up, to=FLOAT32))
        y = op.Cast(product, to=to)
        return y

    return body


def function(dtype: str) -> ir.Function:
    """Return the ONNX function body for one float dtype."""
    return build_function(SCHEMA, _make, dtype)


@torch.library.custom_op("pagedom::swiglu", mutates_args=())
def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Gate up [T,n] with silu(gate [T,n]); see `oracles.swiglu`."""
    return to_torch(oracles.swiglu(to_numpy(gate), to_numpy(up)))


@swiglu.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(gate)

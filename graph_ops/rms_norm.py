"""RmsNorm: y = x / sqrt(mean(x * x) + epsilon) * gamma, over the last axis, in float32."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import onnxscript
import torch

from . import oracles
from .bodies import BASE, FLOAT32, OPSET, build_function, to_numpy, to_torch
from .schema import Attribute, OpSchema, Output, Param

SCHEMA = OpSchema(
    name="RmsNorm",
    inputs=(Param("x", "* n"), Param("gamma", "n")),
    outputs=(Output("y", like="x"),),
    attributes=(Attribute("epsilon", float),),
)


def _make(to: int) -> Any:
    op = BASE

    @onnxscript.script(OPSET, default_opset=BASE)
    def body(x, gamma, epsilon: float):  # type: ignore[no-untyped-def]
        x32 = op.Cast(x, to=FLOAT32)
        square = op.Mul(x32, x32)
        last = op.Constant(value_ints=[-1])
        mean_square = op.ReduceMean(square, last, keepdims=1)
        small = op.Constant(value_float=epsilon)
        root = op.Sqrt(op.Add(mean_square, small))
        normal = op.Div(x32, root)
        scaled = op.Mul(normal, op.Cast(gamma, to=FLOAT32))
        y = op.Cast(scaled, to=to)
        return y

    return body


def function(dtype: str) -> ir.Function:
    """Return the ONNX function body for one float dtype."""
    return build_function(SCHEMA, _make, dtype)


@torch.library.custom_op("pagedom::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, gamma: torch.Tensor, *, epsilon: float) -> torch.Tensor:
    """Normalise x [..., n] with gamma [n]; see `oracles.rms_norm`."""
    return to_torch(oracles.rms_norm(to_numpy(x), to_numpy(gamma), epsilon))


@rms_norm.register_fake
def _(x: torch.Tensor, gamma: torch.Tensor, *, epsilon: float) -> torch.Tensor:
    return torch.empty_like(x)

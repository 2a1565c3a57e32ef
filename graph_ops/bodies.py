"""What the operators' files share: opsets, function bodies as onnx_ir, torch <-> numpy.

A function body is written once with onnxscript and built per dtype, because the Cast back from
float32 needs its type: CastLike would do it for all types at once, but ATC does not parse it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxscript
import torch

from .schema import DOMAIN, ONNX_OPSET, VERSION, OpSchema

OPSET = onnxscript.values.Opset(DOMAIN, VERSION)
BASE: Any = onnxscript.values.Opset("", ONNX_OPSET)
FLOAT32 = int(ir.DataType.FLOAT)

IR_TYPES = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
}
TORCH_TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


def ir_type(dtype: str) -> ir.DataType:
    """Return onnx_ir's type of a float dtype's name; raises ValueError naming the known ones."""
    try:
        return IR_TYPES[dtype]
    except KeyError:
        raise ValueError(
            f"no operator has dtype {dtype!r}: known are {', '.join(IR_TYPES)}"
        ) from None


def build_function(schema: OpSchema, make: Callable[[int], Any], dtype: str) -> ir.Function:
    """Return the body of an operator for one dtype; `make(ONNX type number)` is its onnxscript.

    In a float32 body the casts change nothing; they are left out.
    """
    target = ir_type(dtype)
    script = make(int(target))
    function = ir.serde.deserialize_function(script.to_function_proto())
    function.name = schema.name
    if target == ir.DataType.FLOAT:
        _drop_casts_to_float32(function)
    return function


def _drop_casts_to_float32(function: ir.Function) -> None:
    """Remove the casts between the float type and float32, which are now the same type.

    Casts of integers (to int32, int64) have another target and stay.
    """
    outputs = function.outputs
    for node in list(function):
        if node.op_type != "Cast" or node.attributes["to"].as_int() != FLOAT32:
            continue
        source, result = node.inputs[0], node.outputs[0]
        if source is None:
            continue
        for position, output in enumerate(outputs):
            if output is result:
                # The body's output keeps its name, so that a call's result is named by it.
                source.name = result.name
                outputs[position] = source
        ir.convenience.replace_all_uses_with(result, source)
        function.remove(node, safe=True)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a CPU tensor as an array that shares its memory; bfloat16 as ml_dtypes' type."""
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    """Return an array as a CPU tensor that shares its memory; the inverse of `to_numpy`."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))

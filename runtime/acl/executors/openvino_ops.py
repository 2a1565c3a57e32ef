"""GE-IR operators as OpenVINO subgraphs, in the forms that its CPU plugin fuses.

The runtime model (`CompiledModel.get_runtime_model`) must show one RMS node a norm and one RoPE
node a rotary: RMS is recognised from x * (1 / sqrt(mean(x^2) + eps)) * gamma, RoPE only with a
4-D input, a VariadicSplit on axis 3 and cos/sin of shape [T,1,1,D].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from ...om_file.ge_graph import Node

Value = ov.Output
Kernel = Callable[[Node, "list[Any]"], "list[Any]"]


def constant(value: Any, kind: type) -> Any:
    """Return a small OpenVINO constant of a numpy scalar type."""
    return ops.constant(np.array(value, kind))


def single(node: Any) -> list[Any]:
    """Return the one output of an OpenVINO node, as a kernel returns its outputs."""
    return [node.output(0)]


def _binary(function: Callable[[Any, Any], Any]) -> Kernel:
    def kernel(node: Node, inputs: list[Any]) -> list[Any]:
        return single(function(inputs[0], inputs[1]))

    return kernel


def _matmul(node: Node, inputs: list[Any]) -> list[Any]:
    transpose_1 = bool(node.attrs.get("transpose_x1", node.attrs.get("adj_x1", False)))
    transpose_2 = bool(node.attrs.get("transpose_x2", node.attrs.get("adj_x2", False)))
    product = ops.matmul(inputs[0], inputs[1], transpose_1, transpose_2)
    if len(inputs) > 2 and inputs[2] is not None:
        product = ops.add(product, inputs[2])
    return single(product)


def _gather(node: Node, inputs: list[Any]) -> list[Any]:
    return single(ops.gather(inputs[0], inputs[1], inputs[2]))


def _reshape(node: Node, inputs: list[Any]) -> list[Any]:
    return single(ops.reshape(inputs[0], inputs[1], True))


def _rms_norm(node: Node, inputs: list[Any]) -> list[Any]:
    x, gamma = inputs[:2]
    square = ops.power(x, constant(2.0, np.float32))
    mean = ops.reduce_mean(square, constant([-1], np.int64), True)
    epsilon = constant(float(node.attrs.get("epsilon", 1e-6)), np.float32)
    scale = ops.divide(constant(1.0, np.float32), ops.sqrt(ops.add(mean, epsilon)))
    return single(ops.multiply(ops.multiply(x, scale), gamma))


def _rotary(node: Node, inputs: list[Any]) -> list[Any]:
    """x [T,N,D], cos and sin [T,1,D] (see the module's text for why all become 4-D)."""
    x, cos, sin = inputs[:3]
    heads, dim = (int(extent) for extent in node.output_descs[0].shape[-2:])
    axis = constant(3, np.int64)
    x4 = ops.reshape(x, constant([-1, heads, 1, dim], np.int64), False)
    cos4 = ops.unsqueeze(cos, constant(1, np.int64))
    sin4 = ops.unsqueeze(sin, constant(1, np.int64))
    halves = ops.variadic_split(x4, axis, constant([dim // 2, dim // 2], np.int64))
    negative = ops.multiply(halves.output(1), constant([[[[-1.0]]]], np.float32))
    turned = ops.concat([negative, halves.output(0)], -1)
    rotated = ops.add(ops.multiply(x4, cos4), ops.multiply(turned, sin4))
    return single(ops.reshape(rotated, constant([-1, heads, dim], np.int64), False))


def _swiglu(node: Node, inputs: list[Any]) -> list[Any]:
    width = int(node.output_descs[0].shape[-1])
    halves = ops.variadic_split(
        inputs[0], constant(-1, np.int64), constant([width, width], np.int64)
    )
    return swiglu(halves.output(0), halves.output(1))


def swiglu(gate: Any, up: Any) -> list[Any]:
    """Return silu(gate) * up."""
    return single(ops.multiply(ops.swish(gate), up))


def _concat(node: Node, inputs: list[Any]) -> list[Any]:
    return single(ops.concat(inputs, int(node.attrs["concat_dim"])))


def _split(node: Node, inputs: list[Any]) -> list[Any]:
    sizes = [int(x) for x in node.attrs["size_splits"]]
    axis = constant(int(node.attrs["split_dim"]), np.int64)
    split = ops.variadic_split(inputs[0], axis, constant(sizes, np.int64))
    return list(split.outputs())


def _transpose(node: Node, inputs: list[Any]) -> list[Any]:
    return single(ops.transpose(inputs[0], inputs[1]))


def _argmax(node: Node, inputs: list[Any]) -> list[Any]:
    top = ops.topk(inputs[0], constant(1, np.int64), -1, "max", "none")
    return single(ops.squeeze(top.output(1), constant(-1, np.int64)))


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "Add": _binary(ops.add),
        "Sub": _binary(ops.subtract),
        "Mul": _binary(ops.multiply),
        "RealDiv": _binary(ops.divide),
        "Maximum": _binary(ops.maximum),
        "Minimum": _binary(ops.minimum),
        "Mod": _binary(ops.floor_mod),
        "FloorDiv": _binary(lambda a, b: ops.floor(ops.divide(a, b))),
        "Identity": lambda node, inputs: [inputs[0]],
        "MatMulV2": _matmul,
        "BatchMatMulV2": _matmul,
        "GatherV2": _gather,
        "Reshape": _reshape,
        "Transpose": _transpose,
        "ConcatD": _concat,
        "SplitVD": _split,
        "ArgMaxV2": _argmax,
        "RmsNorm": _rms_norm,
        "RotaryPositionEmbedding": _rotary,
        "SwiGlu": _swiglu,
    }
)

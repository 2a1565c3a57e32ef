"""Base operators of GE-IR that composed graphs are made of, as OpenVINO operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from openvino import opset13 as ops

from ...om_file.ge_graph import Node
from .openvino_ops import Kernel, constant, single


def _plain(function: Callable[..., Any]) -> Kernel:
    """The OpenVINO operator takes the same inputs in the same order."""

    def kernel(node: Node, inputs: list[Any]) -> list[Any]:
        return single(function(*inputs))

    return kernel


def _reduce(function: Callable[..., Any]) -> Kernel:
    def kernel(node: Node, inputs: list[Any]) -> list[Any]:
        axes = inputs[1] if len(inputs) > 1 else constant(node.attrs["axes"], np.int64)
        return single(function(inputs[0], axes, bool(node.attrs.get("keep_dims", False))))

    return kernel


def _softmax(node: Node, inputs: list[Any]) -> list[Any]:
    return single(ops.softmax(inputs[0], int(node.attrs.get("axes", [-1])[0])))


def _strided_slice(node: Node, inputs: list[Any]) -> list[Any]:
    x, begin, end, axes = inputs[:4]
    count = int(node.input_descs[3].shape[0])
    steps = inputs[4] if len(inputs) > 4 else constant([1] * count, np.int64)
    return single(ops.slice(x, begin, end, steps, axes))


def _range(node: Node, inputs: list[Any]) -> list[Any]:
    kind = inputs[0].get_element_type().to_string()
    return single(ops.range(*inputs, kind))


def _pack(node: Node, inputs: list[Any]) -> list[Any]:
    axis = int(node.attrs.get("axis", 0))
    thick = [ops.unsqueeze(x, constant(axis, np.int64)) for x in inputs]
    return single(ops.concat(thick, axis))


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "Exp": _plain(ops.exp),
        "Sqrt": _plain(ops.sqrt),
        "Neg": _plain(ops.negative),
        "Sigmoid": _plain(ops.sigmoid),
        "Tanh": _plain(ops.tanh),
        "Pow": _plain(ops.power),
        "Equal": _plain(ops.equal),
        "Less": _plain(ops.less),
        "LessEqual": _plain(ops.less_equal),
        "Greater": _plain(ops.greater),
        "GreaterEqual": _plain(ops.greater_equal),
        "LogicalAnd": _plain(ops.logical_and),
        "LogicalNot": _plain(ops.logical_not),
        "SelectV2": _plain(ops.select),
        "SoftmaxV2": _softmax,
        "ReduceMax": _reduce(ops.reduce_max),
        "ReduceMean": _reduce(ops.reduce_mean),
        "ReduceMeanD": _reduce(ops.reduce_mean),
        "ReduceSum": _reduce(ops.reduce_sum),
        "UnsqueezeV3": _plain(ops.unsqueeze),
        "SqueezeV3": _plain(ops.squeeze),
        "StridedSliceV2": _strided_slice,
        "Range": _range,
        "Expand": lambda node, inputs: single(ops.broadcast(*inputs, "BIDIRECTIONAL")),
        "Tile": _plain(ops.tile),
        "Shape": lambda node, inputs: single(ops.shape_of(inputs[0], "i64")),
        "GatherNd": lambda node, inputs: single(ops.gather_nd(*inputs)),
        "Pack": _pack,
    }
)

"""Base operators of GE-IR that composed graphs are made of, for the oracle executor.

Integers stay integers, comparisons give bool; floating results are float32 and are rounded by the
caller to the declared dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ...om_file.ge_graph import Node
from ..executor import Array
from .oracle_math import Kernel, as_float32, unary


def _numbers(value: Any) -> list[int]:
    return [int(number) for number in np.asarray(value).reshape(-1)]


def _compare(function: Callable[[Array, Array], Array]) -> Kernel:
    def kernel(node: Node, inputs: list[Any]) -> list[Array]:
        return [np.asarray(function(as_float32(inputs[0]), as_float32(inputs[1])))]

    return kernel


def _logical(function: Callable[..., Array]) -> Kernel:
    def kernel(node: Node, inputs: list[Any]) -> list[Array]:
        for array in inputs:
            if array.dtype != np.bool_:
                raise TypeError(f"takes bool, is given {array.dtype}")
        return [np.asarray(function(*inputs))]

    return kernel


def _select(node: Node, inputs: list[Any]) -> list[Array]:
    condition, then, other = inputs
    if condition.dtype != np.bool_:
        raise TypeError(f"condition is {condition.dtype}, must be bool")
    if then.dtype != other.dtype:
        raise TypeError(f"then is {then.dtype} and else is {other.dtype}: must be equal")
    return [np.where(condition, then, other)]


def _softmax(node: Node, inputs: list[Any]) -> list[Array]:
    axes = tuple(int(axis) for axis in node.attrs.get("axes", [-1]))
    x = as_float32(inputs[0])
    weights = np.exp(x - x.max(axis=axes, keepdims=True))
    return [weights / weights.sum(axis=axes, keepdims=True)]


def _reduce(function: Callable[..., Array]) -> Kernel:
    def kernel(node: Node, inputs: list[Any]) -> list[Array]:
        axes = tuple(_numbers(inputs[1])) if len(inputs) > 1 else tuple(node.attrs["axes"])
        keep = bool(node.attrs.get("keep_dims", False))
        return [np.asarray(function(as_float32(inputs[0]), axis=axes, keepdims=keep))]

    return kernel


def _unsqueeze(node: Node, inputs: list[Any]) -> list[Array]:
    return [np.expand_dims(inputs[0], tuple(_numbers(inputs[1])))]


def _squeeze(node: Node, inputs: list[Any]) -> list[Array]:
    axes = tuple(_numbers(inputs[1])) if len(inputs) > 1 else None
    return [np.squeeze(inputs[0], axes)]


def _strided_slice(node: Node, inputs: list[Any]) -> list[Array]:
    x, begin, end = inputs[0], _numbers(inputs[1]), _numbers(inputs[2])
    axes = _numbers(inputs[3]) if len(inputs) > 3 else list(range(len(begin)))
    steps = _numbers(inputs[4]) if len(inputs) > 4 else [1] * len(begin)
    index = [slice(None)] * x.ndim
    for axis, first, last, step in zip(axes, begin, end, steps):
        index[axis] = slice(first, last, step)
    return [x[tuple(index)]]


def _range(node: Node, inputs: list[Any]) -> list[Array]:
    for value in inputs:
        if np.ndim(value) != 0:
            raise ValueError(f"bounds must be scalars, one has shape {np.shape(value)}")
    start, limit, delta = (value[()] for value in inputs)
    return [np.arange(start, limit, delta, dtype=inputs[0].dtype)]


def _expand(node: Node, inputs: list[Any]) -> list[Array]:
    shape = np.broadcast_shapes(inputs[0].shape, tuple(_numbers(inputs[1])))
    return [np.broadcast_to(inputs[0], shape)]


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "Exp": unary(np.exp),
        "Pow": _compare(np.power),
        "Equal": _compare(np.equal),
        "Less": _compare(np.less),
        "LessEqual": _compare(np.less_equal),
        "Greater": _compare(np.greater),
        "GreaterEqual": _compare(np.greater_equal),
        "LogicalAnd": _logical(np.logical_and),
        "LogicalNot": _logical(np.logical_not),
        "SelectV2": _select,
        "SoftmaxV2": _softmax,
        "ReduceMax": _reduce(np.max),
        "ReduceMean": _reduce(np.mean),
        "ReduceMeanD": _reduce(np.mean),
        "ReduceSum": _reduce(np.sum),
        "UnsqueezeV3": _unsqueeze,
        "SqueezeV3": _squeeze,
        "StridedSliceV2": _strided_slice,
        "Range": _range,
        "Expand": _expand,
        "Tile": lambda node, inputs: [np.tile(inputs[0], _numbers(inputs[1]))],
        "Shape": lambda node, inputs: [np.array(inputs[0].shape, np.int64)],
        "GatherNd": lambda node, inputs: [inputs[0][tuple(np.moveaxis(inputs[1], -1, 0))]],
        "Pack": lambda node, inputs: [np.stack(inputs, axis=int(node.attrs.get("axis", 0)))],
    }
)

"""Elementwise, matrix and shape operators of GE-IR for the oracle executor.

Every kernel takes (node, inputs in IR order with None where absent) and returns its outputs;
floating results are float32 and are rounded by the caller to the declared dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ....graph_ops import oracles
from ...dtypes import BY_ACL
from ...om_file.ge_graph import DataTypeValue, Node
from ..executor import Array

Kernel = Callable[[Node, "list[Any]"], "list[Array]"]


def as_float32(array: Array) -> Array:
    """Return floats as float32; integers and bool as they are."""
    return array.astype(np.float32) if array.dtype.kind not in "iub" else array


def _binary(function: Callable[[Array, Array], Array]) -> Kernel:
    def kernel(node: Node, inputs: list[Any]) -> list[Array]:
        return [np.asarray(function(as_float32(inputs[0]), as_float32(inputs[1])))]

    return kernel


def unary(function: Callable[[Array], Array]) -> Kernel:
    """Return the kernel of an elementwise function."""

    def kernel(node: Node, inputs: list[Any]) -> list[Array]:
        return [np.asarray(function(as_float32(inputs[0])))]

    return kernel


def _matmul(node: Node, inputs: list[Any]) -> list[Array]:
    x1, x2 = as_float32(inputs[0]), as_float32(inputs[1])
    if node.attrs.get("transpose_x1", node.attrs.get("adj_x1", False)):
        x1 = np.swapaxes(x1, -1, -2)
    if node.attrs.get("transpose_x2", node.attrs.get("adj_x2", False)):
        x2 = np.swapaxes(x2, -1, -2)
    product = x1 @ x2
    if len(inputs) > 2 and inputs[2] is not None:
        product = product + as_float32(inputs[2])
    return [product]


def _gather(node: Node, inputs: list[Any]) -> list[Array]:
    table, indices, axis = inputs
    along = int(np.asarray(axis).reshape(-1)[0])
    length = table.shape[along]
    if indices.size and (int(indices.min()) < -length or int(indices.max()) >= length):
        raise IndexError(
            f"index {int(indices.min())}..{int(indices.max())} is outside 0..{length - 1}"
        )
    return [np.take(table, indices, axis=along)]


def _reshape(node: Node, inputs: list[Any]) -> list[Array]:
    source, shape = inputs[0], [int(x) for x in inputs[1]]
    return [source.reshape([source.shape[i] if x == 0 else x for i, x in enumerate(shape)])]


def _rms_norm(node: Node, inputs: list[Any]) -> list[Array]:
    x, gamma = as_float32(inputs[0]), as_float32(inputs[1])
    epsilon = float(node.attrs.get("epsilon", 1e-6))
    rstd = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon))
    return [oracles.rms_norm(x, gamma, epsilon), rstd]


def _rotary(node: Node, inputs: list[Any]) -> list[Array]:
    x, cos, sin = (as_float32(value) for value in inputs[:3])
    if node.attrs.get("mode", 0) != 0:
        raise ValueError(f"mode {node.attrs['mode']} is not supported, only 0 (half)")
    first, second = np.split(x, 2, axis=-1)
    return [x * cos + np.concatenate([-second, first], axis=-1) * sin]


def _swiglu(node: Node, inputs: list[Any]) -> list[Array]:
    gate, up = np.split(as_float32(inputs[0]), 2, axis=int(node.attrs.get("dim", -1)))
    return [oracles.swiglu(gate, up)]


def _cast(node: Node, inputs: list[Any]) -> list[Array]:
    wanted = node.attrs["dst_type"]
    number = wanted.number if isinstance(wanted, DataTypeValue) else int(wanted)
    return [inputs[0].astype(BY_ACL[number].numpy)]


def _argmax(node: Node, inputs: list[Any]) -> list[Array]:
    axis = int(np.asarray(inputs[1]).reshape(-1)[0])
    return [np.argmax(as_float32(inputs[0]), axis=axis)]


def _concat(node: Node, inputs: list[Any]) -> list[Array]:
    return [np.concatenate(inputs, axis=int(node.attrs["concat_dim"]))]


def _split(node: Node, inputs: list[Any]) -> list[Array]:
    sizes = [int(x) for x in node.attrs["size_splits"]]
    axis = int(node.attrs["split_dim"])
    return list(np.split(inputs[0], np.cumsum(sizes)[:-1], axis=axis))


def _transpose(node: Node, inputs: list[Any]) -> list[Array]:
    return [np.transpose(inputs[0], [int(x) for x in inputs[1]])]


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "Add": _binary(np.add),
        "Sub": _binary(np.subtract),
        "Mul": _binary(np.multiply),
        "RealDiv": _binary(np.divide),
        "Maximum": _binary(np.maximum),
        "Minimum": _binary(np.minimum),
        "Mod": _binary(np.mod),
        "FloorDiv": _binary(np.floor_divide),
        "Sqrt": unary(np.sqrt),
        "Neg": unary(np.negative),
        "Sigmoid": unary(lambda x: 1.0 / (1.0 + np.exp(-x))),
        "Tanh": unary(np.tanh),
        "Identity": lambda node, inputs: [inputs[0]],
        "MatMulV2": _matmul,
        "BatchMatMulV2": _matmul,
        "GatherV2": _gather,
        "Reshape": _reshape,
        "TransposeD": lambda node, inputs: [np.transpose(inputs[0], node.attrs["perm"])],
        "Transpose": _transpose,
        "ConcatD": _concat,
        "SplitVD": _split,
        "Cast": _cast,
        "ArgMaxV2": _argmax,
        "RmsNorm": _rms_norm,
        "RotaryPositionEmbedding": _rotary,
        "SwiGlu": _swiglu,
    }
)

"""Small ONNX models for the tests of gate and driver, made with onnx.helper alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


def value(name: str, shape: Sequence[int | str] | None, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **more: Any) -> Any:
    return helper.make_node(op_type, inputs, outputs, **more)


def tiny_nodes() -> list[onnx.NodeProto]:
    """y = RmsNorm(x @ w) of domain pagedom, plus a Gather of rows."""
    return [
        node("MatMul", ["x", "w"], ["h"], name="/proj/MatMul"),
        node("RmsNorm", ["h", "g"], ["n"], name="/norm/RmsNorm", domain="pagedom", epsilon=1e-5),
        node("Gather", ["n", "rows"], ["y"], name="/rows/Gather", axis=0),
    ]


def tiny_model(
    nodes: Sequence[onnx.NodeProto] | None = None,
    opsets: Sequence[tuple[str, int]] = (("", 18), ("pagedom", 1)),
    **replaced: Any,
) -> onnx.ModelProto:
    """Return a model with inputs x [T, 4], rows [R] and output y [R, 4]."""
    parts: dict[str, Any] = {
        "inputs": [value("x", ["T", 4]), value("rows", ["R"], INT32)],
        "outputs": [value("y", ["R", 4])],
        "initializers": [
            numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
            numpy_helper.from_array(np.ones(4, np.float32), "g"),
        ],
        **replaced,
    }
    graph = helper.make_graph(
        tiny_nodes() if nodes is None else nodes,
        "tiny",
        parts["inputs"],
        parts["outputs"],
        parts["initializers"],
        value_info=[value("h", ["T", 4]), value("n", ["T", 4])],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def save_tiny(path: Path, scale: float = 1.0) -> Path:
    """Write the tiny model with its large constant as external data; return the path."""
    weight = numpy_helper.from_array(np.full((4, 4), scale, np.float32), "w")
    gamma = numpy_helper.from_array(np.ones(4, np.float32), "g")
    model = tiny_model(initializers=[weight, gamma])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=True,
        location=path.name + ".data",
        size_threshold=32,
    )
    return path

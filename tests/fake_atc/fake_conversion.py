"""The fake's ONNX parser, after what was measured of the real one, and the OM it writes.

Nothing of pagedom's gate is used here: the rules are written a second time on purpose.
"""

from __future__ import annotations

import os
from pathlib import Path

import fake_om
import onnx
from fake_arguments import RefusalError, shapes

_WORDS = """
Add Sub Mul Div Pow Sqrt Reciprocal Neg Sigmoid Softmax ReduceMean ReduceMax Gather Concat Split
Transpose ConstantOfShape ScatterND Clip Max Min Reshape Unsqueeze Squeeze Expand Cast Shape Range
Cos Sin Where Equal Less Greater And Not CumSum Einsum GatherND MatMul Gemm Identity Abs ReduceSum
LessOrEqual Tile Erf Tanh TopK ArgMax
"""
BASE = frozenset(_WORDS.split())
SPECIAL = {"LayerNormalization": range(17, 19), "Trilu": range(14, 19), "Slice": range(10, 19)}
SPECIAL |= {"GreaterOrEqual": [8, *range(12, 19)]}
INPUTS = {"KVUpdate": 5, "PagedAttention": 6, "RmsNorm": 2, "Rotary": 3, "SwiGlu": 2}


def convert(options: dict[str, str], argv: list[str]) -> None:
    model = _load(Path(options["model"]))
    imports = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if not inputs:
        raise RefusalError("E16001", "The model has no input node.")
    _check_nodes(model, imports)
    _check_shapes(shapes(options), {value.name: value for value in inputs})
    if "FAKE_ATC_NO_OUTPUT" in os.environ:
        return
    fake_om.write(options, argv, model, inputs)


def _load(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except Exception:
        raise RefusalError("E10041", f"Failed to load the model from {path}.") from None
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location" and not (path.parent / entry.value).is_file():
                raise RefusalError("E10041", f"Failed to load the model from {path}.")
    return model


def _check_nodes(model: onnx.ModelProto, imports: dict[str, int]) -> None:
    """Every node without a plugin is listed before the parser stops."""
    plugin, bad = _plugin_text(), []
    for node in model.graph.node:
        domain = node.domain or "ai.onnx"
        if domain not in imports:
            text = f"The opset of domain[{domain}] has no responding version."
            raise RefusalError("E19999", f"Internal error! {text}")
        version = imports[domain]
        key = f"{domain}::{version}::{node.op_type}"
        if node.op_type == "Constant" or _registered(domain, version, node.op_type):
            continue
        if f"{key}\0".encode() not in plugin:
            bad.append((node.name, key))
        elif len(node.input) > INPUTS.get(node.op_type, 99):
            text = f"Resolve operator IO name failed, dst op[{node.name}:{node.op_type}]"
            raise RefusalError("E19999", f"{text}, dst index[{len(node.input) - 1}], dst name[].")
    if bad:
        lines = [
            f"No operator plugin is registered for Op: {name}, optype: {key}." for name, key in bad
        ]
        text = "\nNot_Supported_Operator(E13010): ".join(lines)
        raise RefusalError(
            "E13010", text, "1. If the operator is a custom operator, register its deliverables."
        )


def _registered(domain: str, version: int, op_type: str) -> bool:
    if domain != "ai.onnx":
        return False
    return version in SPECIAL.get(op_type, range(8, 19) if op_type in BASE else ())


def _plugin_text() -> bytes:
    """Return the bytes of all parser plugins; a type's key is a string in its library."""
    text = b""
    for folder in os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":"):
        if folder:
            for library in sorted(Path(folder).glob("framework/**/*.so")):
                text += library.read_bytes()
    return text


def _check_shapes(given: dict[str, list[int]], inputs: dict[str, onnx.ValueInfoProto]) -> None:
    for name, shape in given.items():
        if name not in inputs:
            text = f"Opname {name} specified in --input_shape is not found in the model."
            raise RefusalError("E10016", f"{text} Confirm whether this node name exists.")
        rank = len(inputs[name].type.tensor_type.shape.dim)
        if rank != len(shape):
            text = f"Dimension count {len(shape)} configured in --input_shape does not match"
            raise RefusalError("E10049", f"{text} dimension count {rank} of the node.")

"""Declarations of the operators: shape inference, attributes, and what bodies are made of."""

from __future__ import annotations

import subprocess
import sys

import onnx
import pytest

from pagedom.graph_ops.one_node import one_node_model
from pagedom.graph_ops.registry import OPERATORS
from pagedom.graph_ops.schema import ShapeError

# Of the names that the ONNX plugins of CANN's open operator repositories register for opset 18.
ATC_PARSES = (
    "Add And Cast Concat Constant Div Expand Gather Greater GreaterOrEqual Less LessOrEqual MatMul "
    "Mul Neg Range ReduceMean ReduceSum Reshape ScatterND Shape Sigmoid Slice Softmax Sqrt Squeeze "
    "Sub Tanh Transpose Unsqueeze Where"
)
ATTRIBUTES = {
    "RmsNorm": {"epsilon": 1e-5},
    "PagedAttention": {"scale": 0.5},
    "TokenAttention": {"scale": 0.5},
}
ATTENTION = [(7, 4, 8), (9, 16, 2, 8), (9, 16, 2, 8), (3, 5), (4,), (3,)]
TYPES = ["float16"] * 3 + ["int32"] * 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", OPERATORS)
def test_bodies_hold_only_what_atc_parses(name: str, dtype: str) -> None:
    body = OPERATORS[name].function(dtype)
    assert {node.op_type for node in body} <= set(ATC_PARSES.split())
    assert {node.domain for node in body} == {""}
    assert dict(body.opset_imports) == {"": 18}
    model = one_node_model(name, dtype, ATTRIBUTES.get(name))
    onnx.checker.check_model(model, full_check=True)
    if dtype == "float32":
        float_casts = [
            node for node in body if node.op_type == "Cast" and node.attributes["to"].as_int() == 1
        ]
        assert not float_casts


def test_onnx_infers_the_shapes_through_the_bodies() -> None:
    for name, like in (("SwiGlu", "gate"), ("RmsNorm", "x"), ("KVUpdate", "key_cache")):
        model = one_node_model(name, "float16", ATTRIBUTES.get(name))
        wanted = next(value for value in model.graph.input if value.name == like).type
        del model.graph.output[0].type.tensor_type.shape.dim[:]
        model.graph.output[0].type.tensor_type.ClearField("shape")
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        found = inferred.graph.output[0].type.tensor_type
        assert found.elem_type == wanted.tensor_type.elem_type
        assert len(found.shape.dim) == len(wanted.tensor_type.shape.dim)


def test_infer_gives_the_query_its_shape_back() -> None:
    infer = OPERATORS["PagedAttention"].schema.infer
    assert infer(ATTENTION, TYPES) == [((7, 4, 8), "float16")]
    free = [("T", 4, 8), ("P", 16, 2, 8), (None, 16, 2, 8), ("B", "M"), ("B+1",), ("B",)]
    assert infer(free, TYPES) == [(("T", 4, 8), "float16")]


@pytest.mark.parametrize(
    ("position", "shape", "message"),
    [
        (0, (7, 4, 6), "D is 8 in key_cache .* but 6 in query"),
        (2, (9, 32, 2, 8), "S is 32 in value_cache .* but 16 in key_cache"),
        (3, (3, 5, 1), r"block_table has shape \[3, 5, 1\], must be \[B M\]"),
        (4, (3,), "B is 2 in cu_seqlens .* but 3 in block_table"),
        (5, (4,), "B is 4 in kv_lens"),
    ],
)
def test_infer_refuses_shapes(position: int, shape: tuple[int, ...], message: str) -> None:
    shapes = [*ATTENTION]
    shapes[position] = shape
    with pytest.raises(ShapeError, match=message):
        OPERATORS["PagedAttention"].schema.infer(shapes, TYPES)


def test_infer_refuses_dtypes() -> None:
    infer = OPERATORS["PagedAttention"].schema.infer
    with pytest.raises(ShapeError, match="key_cache is float32 but query is float16"):
        infer(ATTENTION, ["float16", "float32", "float16", *TYPES[3:]])
    with pytest.raises(ShapeError, match="kv_lens is int64, must be int32"):
        infer(ATTENTION, [*TYPES[:5], "int64"])
    with pytest.raises(ShapeError, match="takes 6 inputs"):
        infer(ATTENTION[:5], TYPES[:5])


def test_attributes() -> None:
    values = OPERATORS["PagedAttention"].schema.attribute_values
    assert values({"scale": 2}) == {"scale": 2.0, "window": -1, "softcap": 0.0}
    with pytest.raises(ShapeError, match="needs attribute 'scale'"):
        values({})
    with pytest.raises(ShapeError, match="no attribute 'Window'"):
        values({"scale": 1.0, "Window": 3})


def test_oracles_import_neither_torch_nor_onnx() -> None:
    code = (
        "import sys, pagedom.graph_ops.oracles; "
        "sys.exit(bool({'torch', 'onnx', 'onnxscript'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

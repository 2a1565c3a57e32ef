"""MODEL_DEF: values survive, unknown fields survive, and GE's own additions are there."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from om_samples import linear_model

from pagedom.runtime.om_file import Graph, ListListInt, ModelDef, Node, OmFormatError, TensorDesc
from pagedom.runtime.om_file.attr_compression import decode_index, encode_index
from pagedom.runtime.om_file.ge_graph import DataTypeValue, OpaqueAttr, WeightRef
from pagedom.runtime.om_file.ge_proto import message_class
from pagedom.runtime.om_file.model_def import parse_model

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(
    INT64,
    st.booleans(),
    st.floats(width=32, allow_nan=False),
    st.text(),
    st.binary(),
    st.lists(INT64, min_size=1),
    st.lists(st.booleans(), min_size=1),
    st.lists(st.floats(width=32, allow_nan=False), min_size=1),
    st.lists(st.text(), min_size=1),
    st.lists(st.binary(), min_size=1),
    st.builds(ListListInt, st.lists(st.lists(INT64).map(tuple)).map(tuple)),
)


def through_bytes(**attrs):
    model = ModelDef("m", [Graph("g", [Node("n", "T", attrs=attrs)])])
    return ModelDef.from_bytes(model.to_bytes()).graph.node("n").attrs


@given(VALUES)
def test_an_attribute_keeps_value_and_type(value):
    found = through_bytes(a=value)["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_an_inline_constant_keeps_dtype_shape_and_bytes(dtype, shape):
    array = np.ones(shape, dtype=dtype)
    found = through_bytes(value=array)["value"]
    assert found.dtype == array.dtype
    assert found.shape == shape
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        TensorDesc("bfloat16", (-1, 4), "t", "NHWC"),
        DataTypeValue(27),
        WeightRef(1024, 8, TensorDesc("float32", (2,))),
        [DataTypeValue(1), DataTypeValue(0)],
        [TensorDesc("string", ())],
        [],
    ],
)
def test_structured_attributes_survive(value):
    assert through_bytes(a=value)["a"] == value


def test_numpy_scalars_are_stored_as_python_ones():
    found = through_bytes(i=np.int32(3), f=np.float32(0.5), b=np.bool_(True), l=[1, 2.5])
    assert found == {"i": 3, "f": 0.5, "b": True, "l": [1.0, 2.5]}


@pytest.mark.parametrize("value", [{"x": 1}, None, [1, "x"], [True, 1], 2**63, [[1]], 1j])
def test_what_ge_cannot_hold_is_refused_by_name(value):
    with pytest.raises(OmFormatError, match="'odd'"):
        through_bytes(odd=value)


def test_a_float_infinity_survives():
    assert math.isinf(through_bytes(a=math.inf)["a"])


def test_the_same_model_gives_the_same_bytes():
    assert linear_model()[0].to_bytes() == linear_model()[0].to_bytes()


def test_what_ges_serializer_always_writes_is_there():
    message, _ = parse_model(linear_model()[0].to_bytes())
    ops = {op.name: op for op in message.graph[0].op}
    assert [op.id for op in message.graph[0].op] == [0, 1, 2, 3]
    assert list(message.graph[0].input) == ["x:0"]
    assert list(message.graph[0].output) == ["mm:0"]
    assert list(ops["Node_Output"].src_name) == ["mm"]
    assert list(ops["x"].dst_name) == ["mm"]
    assert list(ops["mm"].is_input_const) == [False, True]
    assert list(ops["mm"].attr["_input_name_key"].list.s) == [b"__input0", b"__input1"]
    assert list(ops["mm"].attr["_input_name_value"].list.i) == [0, 1]
    attr = ops["mm"].output_desc[0].attr
    assert list(attr["origin_shape"].list.i) == [-1, 4]
    assert attr["origin_format"].s == b"ND"
    assert attr["origin_shape_initialized"].b
    ranges = [list(row.list_i) for row in attr["shape_range"].list_list_int.list_list_i]
    assert ranges == [[1, -1], [4, 4]]
    tensor = ops["w"].attr["value"].t
    assert (tensor.desc.data_offset, tensor.desc.weight_size, tensor.data) == (512, 48, b"")


def test_input_names_are_written_sorted_and_read_in_order():
    node = Node("n", "T", ["", ""], input_descs=[TensorDesc("float32", ())] * 2)
    node.input_names = ["value", "key"]
    model = ModelDef("m", [Graph("g", [node])])
    message, _ = parse_model(model.to_bytes())
    assert list(message.graph[0].op[0].attr["_input_name_key"].list.s) == [b"key", b"value"]
    assert ModelDef.from_bytes(model.to_bytes()).graph.nodes[0].input_names == ["value", "key"]


def test_unknown_fields_survive_at_every_level():
    message, _ = parse_model(linear_model()[0].to_bytes())
    unknown = b"\xfa\x3e\x03new"  # field 1007, three bytes
    op = message.graph[0].op[2]
    for part in (message, message.graph[0], op, op.output_desc[0]):
        part.MergeFromString(unknown)
    op.attr["fn"].func.name = "f"
    data = message.SerializeToString(deterministic=True)
    model = ModelDef.from_bytes(data)
    assert isinstance(model.graph.node("mm").attrs["fn"], OpaqueAttr)
    again = model.to_bytes()
    assert again.count(b"\x03new") == 4
    assert parse_model(again)[0] == message


def test_bytes_that_are_no_message_are_an_error():
    with pytest.raises(OmFormatError, match=r"not a ge.proto.ModelDef"):
        ModelDef.from_bytes(b"\xff\xff\xff")


@given(st.integers(0, 127**4))
def test_compressed_keys_decode(index):
    assert decode_index(encode_index(index)) == index


def test_compressed_keys_have_the_documented_form():
    assert (encode_index(0), encode_index(19), encode_index(127)) == ("\0\1", "\0\x14", "\0\1\2")


def compressed(mask=(False, True), op_attrs=()):
    message = message_class("ModelDef")(name="m")
    message.attr["om_compress_version"].i = 1
    message.attr["attr_name_enum"].list.s.extend([b"axis", b"engine"])
    message.attr["attr_value_enum"].list.s.extend([b"AIcore", b"VectorEngine"])
    message.attr["attrs_use_string_value"].list.b.extend(mask)
    op = message.graph.add(name="g").op.add(name="n", type="T")
    for key, kind, value in op_attrs:
        if kind == "list":
            op.attr[key].list.i.extend(value)
        else:
            op.attr[key].i = value
    op.output_desc.add().attr["\0\2"].i = 0
    return message


def test_compressed_attributes_are_restored():
    attrs = [("\0\1", "i", -1), ("\0\2", "list", [1, 0]), ("plain", "i", 7)]
    data = compressed(op_attrs=attrs).SerializeToString()
    model = ModelDef.from_bytes(data)
    assert model.graph.node("n").attrs == {
        "axis": -1,
        "engine": ["VectorEngine", "AIcore"],
        "plain": 7,
    }
    assert model.attrs == {}
    desc = parse_model(data)[0].graph[0].op[0].output_desc[0]
    assert desc.attr["engine"].s == b"AIcore"


@pytest.mark.parametrize(
    "attr", [("\0\5", "i", 0), ("\0\2", "i", 9), ("\0\2", "i", -1), ("\0", "i", 0)]
)
def test_an_entry_outside_the_dictionary_is_an_error(attr):
    with pytest.raises(OmFormatError, match=r"dictionary|not a compressed key"):
        ModelDef.from_bytes(compressed(op_attrs=[attr]).SerializeToString())

"""The JSON form of `atc --mode=1`, rule by rule."""

from __future__ import annotations

import json

import pytest
from om_samples import linear_model

from pagedom.runtime.inspect_command import om_to_mode1_json
from pagedom.runtime.om_file import OmFormatError, write_om
from pagedom.runtime.om_file.ge_proto import message_class
from pagedom.runtime.om_file.mode1_json import SKIPPED_FIELDS, c_escape, message_to_json


def op_json(fill):
    message = message_class("ModelDef")()
    fill(message.graph.add().op.add())
    return json.loads(message_to_json(message))["graph"][0]["op"][0]


def attr_json(**value):
    def fill(op):
        for kind, item in value.items():
            setattr(op.attr["k"], kind, item)

    return op_json(fill)["attr"]


def test_a_written_model(tmp_path):
    model, layout, _ = linear_model()
    write_om(tmp_path / "m.om", model, layout.blobs)
    text = om_to_mode1_json(tmp_path / "m.om")
    tree = json.loads(text)
    assert list(tree) == ["attr", "graph", "name", "version"]
    ops = {op["name"]: op for op in tree["graph"][0]["op"]}
    assert ops["mm"]["input"] == ["x:0", "w:0"]
    assert ops["mm"]["input_desc"][0]["dtype"] == "DT_FLOAT"
    assert ops["mm"]["input_desc"][0]["shape"] == {"dim": [-1, 3]}
    assert {"key": "transpose_x1", "value": {"b": False}} in ops["mm"]["attr"]
    value = next(entry["value"] for entry in ops["w"]["attr"] if entry["key"] == "value")
    assert set(value["t"]) == {"desc"}
    assert not set(value["t"]["desc"]) & SKIPPED_FIELDS
    assert "output" not in tree["graph"][0]
    assert text.startswith('{\n  "attr": [\n    {\n      "key": ')


def test_a_model_that_is_not_there_is_refused(tmp_path):
    model, layout, _ = linear_model()
    write_om(tmp_path / "m.om", model, layout.blobs)
    with pytest.raises(OmFormatError, match="models 0 to 0, not 1"):
        om_to_mode1_json(tmp_path / "m.om", model=1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.25, "0.25"), (1e-5, "1e-05"), (0.0, "0"), (1 / 3, "0.333333"), (-65504.0, "-65504")],
)
def test_a_short_float_is_a_string(value, expected):
    assert attr_json(f=value) == [{"key": "k", "value": {"f": expected}}]


def test_a_long_float_is_a_number():
    (entry,) = attr_json(f=-1.234567e-5)
    assert entry["value"]["f"] == pytest.approx(-1.234567e-5)
    assert isinstance(entry["value"]["f"], float)


def test_bytes_are_escaped_when_single_and_plain_in_lists():
    assert attr_json(s=b'a"\n\x00\xff')[0]["value"]["s"] == 'a\\"\\n\\000\\377'

    def fill(op):
        op.attr["k"].list.s.extend([b'a"', "é".encode()])
        op.attr["k"].list.val_type = 1

    assert op_json(fill)["attr"][0]["value"]["list"] == {
        "s": ['a"', "é"],
        "val_type": "VT_LIST_STRING",
    }


def test_set_zeros_of_a_oneof_stay_and_unset_scalars_are_absent():
    assert attr_json(i=0) == [{"key": "k", "value": {"i": 0}}]
    assert op_json(lambda op: setattr(op, "id", 0)) is None
    assert op_json(lambda op: setattr(op, "stream_id", 3)) == {"stream_id": 3}


def test_skipped_fields_are_field_names_not_attribute_keys():
    def fill(op):
        op.workspace_bytes.append(1)
        op.attr["memory_size"].i = 5
        op.attr["b"].bt = b"secret"

    tree = op_json(fill)
    assert tree == {
        "attr": [
            {"key": "b", "value": None},
            {"key": "memory_size", "value": {"i": 5}},
        ]
    }


def test_maps_are_sorted_and_enumerations_are_names():
    def fill(op):
        op.attr["z"].i = 1
        op.attr["a"].i = 2
        op.output_desc.add(dtype=27, layout="ND")

    tree = op_json(fill)
    assert [entry["key"] for entry in tree["attr"]] == ["a", "z"]
    assert tree["output_desc"] == [{"dtype": "DT_BF16", "layout": "ND"}]


def test_depth_is_limited():
    message = message_class("ModelDef")()
    attr = message.attr["a"]
    for _ in range(40):
        attr = attr.func.attr["x"]
    attr.i = 1
    assert message_to_json(message).count('"func"') < 12


def test_escapes():
    assert c_escape(b"\t\r'\\\x7f~") == "\\t\\r\\'\\\\\\177~"

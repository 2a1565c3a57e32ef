"""Each rule of the ONNX gate: what ATC would refuse, all of it, with source and advice."""

from __future__ import annotations

import dataclasses
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_samples import INT32, node, tiny_model, tiny_nodes, value

from pagedom.compiler.gear_list import parse_gears
from pagedom.compiler.onnx_gate import (
    GateContext,
    GateError,
    PluginOperator,
    check_onnx,
    own_plugin,
    plugin_operators,
    require_onnx,
)
from pagedom.compiler.target_resolve import resolve_target
from pagedom.graph_ops.one_node import one_node_model

LIMITS = resolve_target("Ascend910B3").family.gears
STATIC = GateContext(plugin=own_plugin(), fixed={"T": 8, "R": 2})


def problems(model: onnx.ModelProto, context: GateContext = STATIC) -> dict[str, Any]:
    """Return the problems by rule; a rule that is broken twice fails the test."""
    found = check_onnx(ir.from_proto(model), context)
    by_rule = {problem.rule: problem for problem in found}
    assert len(by_rule) == len(found), [str(problem) for problem in found]
    return by_rule


def only(model: onnx.ModelProto, rule: str, context: GateContext = STATIC) -> str:
    found = problems(model, context)
    assert list(found) == [rule], [str(problem) for problem in found.values()]
    for part in dataclasses.asdict(found[rule]).values():
        assert part != "" or rule.startswith("gear")
    return str(found[rule])


def test_a_good_model_passes() -> None:
    assert problems(tiny_model()) == {}
    require_onnx(ir.from_proto(tiny_model()), STATIC)


@pytest.mark.parametrize("version", [7, 19, 23])
def test_opset_outside_of_the_parsers_range_is_one_problem(version: int) -> None:
    text = only(tiny_model(opsets=[("", version), ("pagedom", 1)]), "opset")
    assert f"opset {version}" in text
    assert "8 to 18" in text


def test_operator_without_a_plugin_names_node_and_replacement() -> None:
    nodes = tiny_nodes()
    nodes[1] = node("RMSNormalization", ["h", "g"], ["n"], name="norm0")
    text = only(tiny_model(nodes), "plugin")
    assert "norm0" in text
    assert "ai.onnx::18::RMSNormalization" in text
    assert "RmsNorm operator of domain pagedom" in text
    assert "E13010" in text


def test_wrong_version_of_our_domain_says_the_right_one() -> None:
    text = only(tiny_model(opsets=[("", 18), ("pagedom", 2)]), "plugin")
    assert "pagedom::2::RmsNorm" in text
    assert "registered at version 1" in text


def test_without_our_plugin_every_node_of_ours_is_listed() -> None:
    model = tiny_model([*tiny_nodes()[:2], node("RmsNorm", ["n", "g"], ["y"], domain="pagedom")])
    found = check_onnx(ir.from_proto(model), GateContext(fixed={"T": 8, "R": 2}))
    assert [problem.rule for problem in found] == ["plugin", "plugin"]
    assert "--build-plugin" in str(found[0])


def test_opset_that_an_operator_lacks() -> None:
    nodes = [*tiny_nodes()[:2], node("LayerNormalization", ["n", "g"], ["y"], name="ln")]
    assert "17, 18" in only(tiny_model(nodes, opsets=[("", 16), ("pagedom", 1)]), "plugin")


def test_domain_absent_from_the_imports() -> None:
    text = only(tiny_model(opsets=[("", 18)]), "opset-import")
    assert "/norm/RmsNorm" in text
    assert "'pagedom'" in text
    assert "E19999" in text


def test_default_domain_under_both_its_names() -> None:
    model = tiny_model(opsets=[("", 17), ("ai.onnx", 18), ("pagedom", 1)])
    assert "twice" in only(model, "opset-import")


def test_more_inputs_than_the_prototype() -> None:
    nodes = tiny_nodes()
    nodes[1] = node("RmsNorm", ["h", "g", "g"], ["n"], name="norm", domain="pagedom")
    text = only(tiny_model(nodes), "inputs")
    assert "3 inputs" in text
    assert "has 2" in text


def test_a_plugin_of_another_party_is_taken_as_given() -> None:
    nodes = tiny_nodes()
    nodes[1] = node("Norm2", ["h", "g"], ["n"], name="norm", domain="them")
    context = dataclasses.replace(STATIC, plugin=[PluginOperator("them", 3, "Norm2")])
    assert problems(tiny_model(nodes, opsets=[("", 18), ("them", 3)]), context) == {}


def test_control_flow_is_refused_and_if_is_not() -> None:
    body = helper.make_graph(
        [node("Identity", ["c"], ["c2"]), node("Identity", ["h"], ["h2"])],
        "body",
        [value("i", [], TensorProto.INT64), value("c", [], TensorProto.BOOL)],
        [value("c2", [], TensorProto.BOOL), value("h2", ["T", 4])],
    )
    loop = node("Loop", ["count", ""], ["y"], name="loop", body=body)
    count = numpy_helper.from_array(__import__("numpy").array(2), "count")
    model = tiny_model([tiny_nodes()[0], loop])
    model.graph.initializer.append(count)
    assert "Unroll" in only(model, "control-flow")


def test_function_bodies_say_whether_to_strip_or_to_inline() -> None:
    model = one_node_model("RmsNorm", "float32", {"epsilon": 1e-5})
    sizes = GateContext(fixed={"N": 2, "n": 4})
    assert "inline" in only(model, "local-function", sizes)
    covered = dataclasses.replace(sizes, plugin=own_plugin())
    assert "strip" in only(model, "local-function", covered)


def test_a_plugin_by_its_type_keys() -> None:
    ours, theirs = plugin_operators(["pagedom::1::KVUpdate", "them::3::KVUpdate"])
    assert (ours.domain, ours.version, ours.op_type, ours.max_inputs) == (
        "pagedom",
        1,
        "KVUpdate",
        5,
    )
    assert theirs.max_inputs is None
    assert ours in own_plugin()
    with pytest.raises(ValueError, match="domain::version::type"):
        plugin_operators(["KVUpdate"])


def test_built_in_norm_that_drops_its_epsilon() -> None:
    nodes = tiny_nodes()
    for epsilon, refused in ((1e-5, True), (1e-6, False)):
        nodes[1] = node("NPURmsNorm", ["h", "g"], ["n", "r"], domain="npu", epsilon=epsilon)
        model = tiny_model(nodes, opsets=[("", 18), ("npu", 1)])
        assert ("ignored-attribute" in problems(model)) is refused


def test_zero_size_dim_that_flows_through_an_operator() -> None:
    model = tiny_model()
    model.graph.value_info[0].type.tensor_type.shape.dim[0].dim_value = 0
    text = only(model, "zero-size")
    assert "[0, 4]" in text
    assert "/proj/MatMul" in text


def test_names_above_127_bytes() -> None:
    long = "长" * 43  # 129 bytes
    nodes = tiny_nodes()
    nodes[0].name = long
    assert "129 bytes" in only(tiny_model(nodes), "name-length")
    nodes[0].name = "n" * 127
    assert problems(tiny_model(nodes)) == {}


def test_two_nodes_of_one_name() -> None:
    nodes = tiny_nodes()
    nodes[2].name = nodes[0].name
    assert "E13009" in only(tiny_model(nodes), "name-unique")


def test_unknown_dtype() -> None:
    model = tiny_model(inputs=[value("x", ["T", 4]), value("rows", ["R"], TensorProto.UINT4)])
    assert "UINT4" in only(model, "dtype")
    model = tiny_model(inputs=[value("x", ["T", 4]), value("rows", ["R"], 0)])
    assert "unknown" in only(model, "dtype")


def test_int8_input_of_a_geared_model() -> None:
    model = tiny_model(inputs=[value("x", ["T", 4]), value("rows", ["R"], TensorProto.INT8)])
    geared = GateContext(plugin=own_plugin(), gears=[(8, 2), (4, 1)], limits=LIMITS)
    assert "static" in only(model, "int8-dynamic", geared)
    assert problems(model) == {}


def test_missing_shape_and_open_dims() -> None:
    model = tiny_model(inputs=[value("x", None), value("rows", ["R"], INT32)])
    assert "no shape" in only(model, "shape")
    model = tiny_model(inputs=[value("x", [None, 4]), value("rows", ["R"], INT32)])
    assert "[None, 4]" in only(model, "shape")
    open_dims = dataclasses.replace(STATIC, fixed={"T": 8})
    assert "'R' has no size" in only(tiny_model(), "open-dim", open_dims)
    assert problems(tiny_model(), GateContext(plugin=own_plugin(), ranges=True)) == {}


def test_no_input_and_no_output() -> None:
    model = tiny_model(inputs=[value("w", [4, 4])], nodes=[node("Neg", ["w"], ["y"], name="n")])
    assert "E16001" in only(model, "interface")


def test_initializer_without_data_and_protobuf_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ir.from_proto(tiny_model())
    model.graph.initializers["w"].const_value = None
    assert [p.rule for p in check_onnx(model, STATIC)] == ["initializer"]
    monkeypatch.setattr("pagedom.compiler.onnx_gate_values.PROTOBUF_LIMIT_BYTES", 80)
    assert "80 bytes" in only(tiny_model(), "protobuf-size")


def test_shapes_that_are_not_the_graphs() -> None:
    def given(**shapes: Any) -> GateContext:
        return dataclasses.replace(STATIC, shapes=shapes)

    assert problems(tiny_model(), given(x=(8, 4), rows=(2,))) == {}
    assert "E10016" in only(tiny_model(), "input-name", given(x=(8, 4), rows=(2,), z=(1,)))
    assert "E10049" in only(tiny_model(), "rank", given(x=(8, 4, 1), rows=(2,)))
    assert "order" in only(tiny_model(), "input-order", given(rows=(2,), x=(8, 4)))


def test_gears_against_the_open_dims() -> None:
    def geared(*gears: tuple[int, ...]) -> GateContext:
        return GateContext(plugin=own_plugin(), gears=gears, limits=LIMITS)

    assert problems(tiny_model(), geared((8, 2), (4, 1))) == {}
    assert "one gear" in only(tiny_model(), "gears", geared((8, 2)))
    assert "exactly one number" in only(tiny_model(), "gears", geared((8, 2), (4,)))
    many = [(size, 1) for size in range(1, 102)]
    assert "101 gears" in only(tiny_model(), "gears", geared(*many))


def test_gear_in_another_order_than_the_open_dims() -> None:
    inputs = [value("x", ["T", 4]), value("rows", ["B"], INT32), value("cu", ["B+1"], INT32)]
    model = tiny_model(inputs=inputs)
    good = parse_gears("8,2,3;4,1,2", 3, LIMITS).gears
    context = GateContext(plugin=own_plugin(), gears=good, limits=LIMITS)
    assert problems(model, context) == {}
    swapped = dataclasses.replace(context, gears=[(8, 2, 3), (4, 2, 1)])
    text = only(model, "gear-order", swapped)
    assert "'4,2,1'" in text
    assert "T, B, B+1" in text


def test_a_geared_model_with_more_dims_than_acl_can_address() -> None:
    caches = [value(f"key_cache.{layer}", [8, 16, 2, 4]) for layer in range(32)]
    model = tiny_model(inputs=[value("x", ["T", 4]), value("rows", ["R"], INT32), *caches])
    context = GateContext(plugin=own_plugin(), gears=[(8, 2), (4, 1)], limits=LIMITS)
    assert "128" in only(model, "gear-dims", context)


def test_all_problems_come_at_once() -> None:
    nodes = tiny_nodes()
    nodes[1] = node("Attention", ["h", "g"], ["n"], name="att")
    nodes[2].name = "/proj/MatMul"
    model = tiny_model(nodes, inputs=[value("x", ["T", 4]), value("rows", [0], INT32)])
    with pytest.raises(GateError) as caught:
        require_onnx(ir.from_proto(model), GateContext(plugin=own_plugin()))
    rules = {problem.rule for problem in caught.value.problems}
    assert rules == {"plugin", "name-unique", "zero-size", "open-dim"}
    assert "4 reason(s)" in str(caught.value)

"""Case 8 of the field cases: two opset imports of one domain."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx_samples import node, tiny_model, value

from pagedom.compiler.opset_cleanup import OpsetError, clean_opset_imports

REPORTED = [("", 17), ("ai.onnx", 17), ("", 11), ("pkg.onnxscript.torch_lib", 1)]


def imports(model: onnx.ModelProto) -> list[tuple[str, int]]:
    return [(entry.domain, entry.version) for entry in model.opset_import]


def model_of(*nodes: Any, opsets: Any = REPORTED) -> onnx.ModelProto:
    inputs = [value("x", [2, 4]), value("rows", [2], onnx.TensorProto.INT64)]
    return tiny_model(nodes, opsets, inputs=inputs, outputs=[value("y", ["N", "M"])])


def test_case_8_surplus_imports_are_cleaned() -> None:
    model = model_of(node("MatMul", ["x", "w"], ["h"]), node("Gather", ["h", "rows"], ["y"]))
    notes = clean_opset_imports(model)
    assert imports(model) == [("", 17)]
    onnx.checker.check_model(model)
    assert any("pkg.onnxscript.torch_lib" in note for note in notes)
    assert any("17" in note for note in notes)


def test_case_8_contradicting_nodes_are_both_named() -> None:
    model = model_of(
        node("LayerNormalization", ["x", "g"], ["n"], name="needs17"),
        node("Squeeze", ["n"], ["y"], name="only11", axes=[0]),
    )
    before = model.SerializeToString()
    with pytest.raises(OpsetError, match=r"needs17.*only11"):
        clean_opset_imports(model)
    assert model.SerializeToString() == before


def test_the_older_version_stays_when_nodes_need_it() -> None:
    model = model_of(node("Squeeze", ["x"], ["y"], name="s", axes=[0]))
    clean_opset_imports(model)
    assert imports(model) == [("", 11)]


def test_a_node_in_a_subgraph_counts() -> None:
    def branch(name: str, *nodes: Any) -> onnx.GraphProto:
        return onnx.helper.make_graph(nodes, name, [], [value(f"{name}_out", None)])

    then = branch("then", node("Squeeze", ["x"], ["then_out"], name="only11", axes=[0]))
    other = branch("else", node("LayerNormalization", ["x", "g"], ["else_out"], name="needs17"))
    model = model_of(node("If", ["rows"], ["y"], then_branch=then, else_branch=other))
    with pytest.raises(OpsetError, match=r"needs17.*only11|only11.*needs17"):
        clean_opset_imports(model)


def test_an_operator_that_changed_its_meaning_is_not_guessed() -> None:
    with pytest.raises(OpsetError, match="Softmax"):
        clean_opset_imports(model_of(node("Softmax", ["x"], ["y"], name="soft")))
    model = model_of(node("Softmax", ["x"], ["y"], name="soft", axis=-1))
    clean_opset_imports(model)
    assert imports(model) == [("", 17)]


def test_a_node_that_fits_nowhere_is_named() -> None:
    model = model_of(node("RMSNormalization", ["x", "g"], ["y"], name="new"))
    with pytest.raises(OpsetError, match="'new'"):
        clean_opset_imports(model)


def test_domains_in_use_stay_and_a_clean_model_is_left_alone() -> None:
    model = tiny_model(opsets=[("", 18), ("pagedom", 1), ("unused", 4)])
    clean_opset_imports(model)
    assert imports(model) == [("", 18), ("pagedom", 1)]
    assert clean_opset_imports(model) == ()


def test_two_versions_of_an_unknown_domain_keep_the_newer() -> None:
    model = tiny_model(opsets=[("", 18), ("pagedom", 1), ("pagedom", 2)])
    clean_opset_imports(model)
    assert imports(model) == [("", 18), ("pagedom", 2)]

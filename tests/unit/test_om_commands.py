"""inspect and verify: what they say, at 80 columns, and their exit codes."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from click.testing import CliRunner
from om_samples import MANIFEST, MODEL_DEF, WEIGHTS, build_artifact, file_of, linear_model, wide

from pagedom.runtime.inspect_command import group_tensors, human_bytes, inspect
from pagedom.runtime.om_file import Graph, ListListInt, ModelDef, Node, OmInfo, TensorDesc, write_om
from pagedom.runtime.om_file.description import TensorRow, describe_om
from pagedom.runtime.om_file.inout_info import InoutInfo
from pagedom.runtime.verify_command import binding_problems, verify, verify_artifact


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    return lambda command, *words: CliRunner().invoke(command, [str(word) for word in words])


@pytest.fixture
def model_file(tmp_path):
    model, layout, _ = linear_model()
    path = tmp_path / "m.om"
    write_om(path, model, layout.blobs, OmInfo(cmdline="compile-model tiny --target host"))
    return path


def test_inspect_shows_the_facts_in_80_columns(run, model_file):
    result = run(inspect, model_file)
    assert result.exit_code == 0
    for fact in ("compile-model tiny", "WEIGHTS_DATA", "mm:0:y", "[?, 3]", "1 MatMulV2", "dynamic"):
        assert fact in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_inspect_json_is_the_form_of_atc(run, model_file):
    tree = json.loads(run(inspect, model_file, "--json").output)
    assert tree["graph"][0]["op"][0]["type"] == "Data"


def test_inspect_of_an_artefact_shows_both(run, tmp_path):
    output = run(inspect, build_artifact(tmp_path / "demo")).output
    assert "llama, 1 layers of 3" in output
    assert "MatMulV2" in output


def test_inspect_of_something_else_is_one_line_and_exit_1(run, tmp_path):
    (tmp_path / "x.om").write_text("this is no model")
    result = run(inspect, tmp_path / "x.om")
    assert result.exit_code == 1
    assert "not an .om file" in result.output
    assert "Traceback" not in result.output
    assert run(inspect, tmp_path).exit_code == 1
    assert run(inspect, tmp_path / "absent").exit_code == 2


def test_tensors_of_the_layers_share_a_line():
    rows = [TensorRow(f"key_cache.{i}", "float16", (-1, 2), "ND", 0) for i in range(30)]
    rows.append(TensorRow("key_cache.30", "int8", (-1, 2), "ND", 0))
    groups = group_tensors([TensorRow("ids", "int32", (-1,), "ND", 0), *rows])
    assert [len(group) for group in groups] == [1, 30, 1]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**60, "1048576.0 TiB")],
)
def test_sizes(nbytes, text):
    assert human_bytes(nbytes) == text


def test_gears_come_from_the_records_or_the_case_operator(tmp_path):
    model, layout, _ = linear_model(rows=4)
    info = InoutInfo(dynamic_batch=(1, 2), dynamic_dims=((1, 3), (2, 3)))
    write_om(tmp_path / "a.om", model, layout.blobs, OmInfo(inout=info))
    assert describe_om(tmp_path / "a.om").gears == ("batch: 1, 2", "dims: 1x3, 2x3")
    attrs = {
        "_batch_num": 2,
        "mbatch_dynamic_type": 3,
        "_pred_value_0": [1, 3],
        "_pred_value_1": [2, 3],
        "other": ListListInt(()),
    }
    definition = ModelDef("m", [Graph("g", [Node("case", "Case", attrs=attrs)])])
    (tmp_path / "b.om").write_bytes(file_of(wide([(MODEL_DEF, definition.to_bytes())])))
    assert describe_om(tmp_path / "b.om").gears == ("dims: 1x3, 2x3",)


def test_verify_of_a_sound_artefact(run, tmp_path):
    result = run(verify, build_artifact(tmp_path / "demo"))
    assert result.exit_code == 0
    assert "ok    SHA-256 of every file" in result.output
    assert "ok    bindings against the graph" in result.output


def test_verify_lists_what_is_wrong_and_exits_1(run, tmp_path):
    folder = build_artifact(tmp_path / "demo")
    data = bytearray((folder / "model.om").read_bytes())
    data[-600] ^= 1
    (folder / "model.om").write_bytes(data)
    result = run(verify, folder)
    assert result.exit_code == 1
    assert "wrong SHA-256" in result.output
    assert "ok    graph" in result.output


def test_verify_finds_bindings_that_disagree_with_the_graph(tmp_path, monkeypatch):
    folder = build_artifact(tmp_path / "demo")
    text = (folder / "pagedom.json").read_text()
    changed = text.replace('"float32",\n      "shape": [\n        "T",\n        3', "@")
    assert changed != text
    changed = changed.replace("@", '"int32",\n      "shape": [\n        "T",\n        5')
    (folder / "pagedom.json").write_text(changed)
    problems = verify_artifact(folder)[-1].problems
    assert problems == (
        "'x' is int32 in the manifest, float32 in the graph",
        "'x' has shape ['T', 5] in the manifest, [-1, 3] in the graph",
    )


def test_verify_knows_the_input_that_ge_adds_to_a_geared_model():
    """It is in no manifest: the runtime sets the dims, and nothing of the step is bound to it."""
    model, _, _ = linear_model()
    desc = TensorDesc("int32", (2,), "ascend_mbatch_shape_data")
    hidden = Node("ascend_mbatch_shape_data", "Data", [], {"index": 1}, [desc], [desc])
    model.graph.nodes.insert(1, hidden)
    geared = replace(MANIFEST, gears=({"T": 2, "R": 2}, {"T": 8, "R": 2}))
    assert list(binding_problems(geared, model)) == []
    assert "not in the manifest" in "".join(binding_problems(MANIFEST, model))


def test_verify_of_a_damaged_container(run, tmp_path, model_file):
    os.truncate(model_file, 1000)
    result = run(verify, model_file)
    assert result.exit_code == 1
    assert "wrong container" in result.output


def test_verify_finds_a_constant_outside_the_weights(run, tmp_path):
    model, _, _ = linear_model()
    desc = model.graph.node("w").output_descs[0]
    assert isinstance(desc, TensorDesc)
    path = tmp_path / "m.om"
    path.write_bytes(file_of(wide([(MODEL_DEF, model.to_bytes()), (WEIGHTS, bytes(520))])))
    result = run(verify, path)
    assert result.exit_code == 1
    assert "outside WEIGHTS_DATA" in result.output


def test_a_malformed_edge_in_a_file_is_a_format_error(run, tmp_path):
    path = tmp_path / "m.om"
    # Broken in the message: the writer would refuse such an edge.
    broken = linear_model()[0].to_bytes().replace(b"mm:0", b"mm\x000")
    path.write_bytes(file_of(wide([(MODEL_DEF, broken)])))
    result = run(inspect, path)
    assert result.exit_code == 1
    assert "producer:index" in result.output

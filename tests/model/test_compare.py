"""`compare` finds a fault that was put into a copy of an artefact or into an executor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pagedom.runtime.acl import AclOptions, HostAcl
from pagedom.runtime.acl.executor import ExecutorOptions
from pagedom.runtime.acl.executors.oracle import OracleExecutor
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.cli import run_om
from pagedom.runtime.compare import CompareError, CompareOptions, Side, compare
from pagedom.runtime.om_file.om_reader import read_om

Compile = Callable[..., Path]


@pytest.fixture(scope="module")
def plain(compile_to: Compile, toy_model: Any) -> Artifact:
    """The random model of two layers on pages that both executors take."""
    return Artifact.open(compile_to(toy_model.folder, page_size=32))


def with_wrong_weight(artifact: Artifact, name: str, folder: Path, row: int = 3) -> Artifact:
    """Copy an artefact and change one row of one of its weights."""
    shutil.copytree(artifact.folder, folder)
    with read_om(artifact.model_path) as om:
        model = om.models[0]
        ref = model.model_def.graph.node(name).attrs["value"]
        weights = bytes(model.weights)
        start = artifact.model_path.read_bytes().index(weights) + ref.offset
    raw = bytearray((folder / "model.om").read_bytes())
    table = np.frombuffer(raw, np.float32, ref.nbytes // 4, start).reshape(ref.desc.shape)
    table[row] *= -3.0
    (folder / "model.om").write_bytes(raw)
    return Artifact.open(folder)


@pytest.mark.parametrize("executor", ["oracle", "openvino"])
@pytest.mark.parametrize(("weight", "layer", "operator"), [
    ("model.layers.1.mlp.down_proj.weight", "layer 1", "/layers.1/mlp/down_proj/MatMul"),
    ("model.layers.0.self_attn.k_proj.weight", "layer 0", "/layers.0/attn/k_proj/MatMul"),
    ("model.layers.1.mlp.gate_up_proj.weight", "layer 1", "/layers.1/mlp/gate_up_proj/MatMul"),
    ("lm_head.weight", "head", "/lm_head/MatMul"),
])  # fmt: skip
def test_a_wrong_weight_is_found(
    plain: Artifact, tmp_path: Path, weight: str, layer: str, operator: str, executor: str
) -> None:
    wrong = with_wrong_weight(plain, weight, tmp_path / "wrong")
    found = compare(Side(plain), Side(wrong, executor), CompareOptions(max_tokens=3))
    assert not found.agrees
    assert found.divergence is not None
    point = found.divergence.agreement.point
    assert (point.place, point.node) == (layer, operator)
    assert found.divergence.between[-1] == operator
    assert found.divergence.weights[weight] > 0


class WrongRope(OracleExecutor):
    """Rotates the keys of layer 1 the other way round."""

    def _run(self, node: Any, values: Any) -> Any:
        results = super()._run(node, values)
        if node.name == "/layers.1/attn/k_rotary/Rotary":
            edges = node.edges()
            x, cos, sin = (values[(edge.producer, edge.index)] for edge in edges[:3])
            low, high = np.split(x, 2, axis=-1)
            return [(x * cos + np.concatenate([high, -low], axis=-1) * sin).astype(np.float32)]
        return results


class ForgetfulPages(OracleExecutor):
    """Attention of layer 1 sees a zero where the first token's value should be, when decoding."""

    def _run(self, node: Any, values: Any) -> Any:
        if node.name == "/layers.1/attn/PagedAttention" and len(values[("input_ids", 0)]) == 4:
            page = values[("block_table", 0)][0, 0]
            values[("/layers.1/attn/PagedAttention/value_pages", 0)][page, 0] = 0
        return super()._run(node, values)


def test_an_executor_with_a_wrong_rope(plain: Artifact) -> None:
    side = Side(plain, make=lambda om: WrongRope(om, ExecutorOptions()))
    found = compare(Side(plain), side, CompareOptions(max_tokens=2, memory_bytes=1))
    assert found.divergence is not None
    point = found.divergence.agreement.point
    assert (point.place, point.node) == ("layer 1", "/layers.1/attn/k_rotary/Rotary")
    assert found.divergence.between == ("/layers.1/attn/k_rotary/Rotary",)
    assert found.divergence.agreement.first.position > 0  # at position 0 nothing is rotated
    assert not found.complete


def test_a_fault_that_only_decode_steps_show(plain: Artifact) -> None:
    side = Side(plain, make=lambda om: ForgetfulPages(om, ExecutorOptions()))
    found = compare(Side(plain), side, CompareOptions(max_tokens=4))
    assert found.divergence is not None
    assert found.divergence.agreement.point.node == "/layers.1/attn/PagedAttention"
    assert found.divergence.agreement.first.step > 0
    assert "/layers.1/attn/KVUpdate" in found.divergence.between


class OneBadToken(OracleExecutor):
    """Spoils the first norm of the token with id 7 alone."""

    def _run(self, node: Any, values: Any) -> Any:
        results = super()._run(node, values)
        if node.name == "/layers.0/input_layernorm/RmsNorm":
            results[0][values[("input_ids", 0)] == 7] *= 2
        return results


def test_the_place_names_step_prompt_and_position(plain: Artifact) -> None:
    side = Side(plain, make=lambda om: OneBadToken(om, ExecutorOptions()))
    prompts = [np.array(ids, np.int32) for ids in ([1, 2, 3], [4, 5, 6, 7, 8], [9] * 40)]
    options = CompareOptions(prompts, max_tokens=1, batch_tokens=6)
    found = compare(Side(plain), side, options)
    assert found.divergence is not None
    first = found.divergence.agreement.first
    assert (first.prompt, first.position) == (1, 3)
    assert found.divergence.agreement.rows == 3 + 5 + 40
    assert found.steps == 8


@pytest.mark.parametrize("memory", [1 << 29, 1])
def test_the_executors_agree_in_one_run_or_many(plain: Artifact, memory: int) -> None:
    runs = []
    options = CompareOptions(max_tokens=3, memory_bytes=memory, batch_tokens=16)
    found = compare(
        Side(plain), Side(plain, "openvino"), options, lambda d, t, s: runs.append((d, t))
    )
    assert found.agrees
    assert found.complete
    assert found.token is None
    assert found.logits.rows == 4 * 3
    assert len(set(runs)) == (1 if memory > 1 else 4)  # input, two layers, head


def test_another_dtype_is_near(compile_to: Compile, toy_model: Any, plain: Artifact) -> None:
    short = Artifact.open(compile_to(toy_model.folder, page_size=32, dtype="bfloat16"))
    found = compare(Side(plain), Side(short), CompareOptions(max_tokens=3))
    assert found.agrees
    assert found.logits.worst > 1e-4
    exact = compare(Side(plain), Side(short), CompareOptions(max_tokens=3, tolerance=1e-5))
    assert exact.divergence is not None
    assert exact.divergence.agreement.point.place == "input"


def test_artefacts_that_are_no_twins(compile_to: Compile, toy_model: Any, plain: Artifact) -> None:
    other = Artifact.open(compile_to(toy_model.folder, page_size=64))
    with pytest.raises(CompareError, match="page size 32 and 64"):
        compare(Side(plain), Side(other))


FORMS = {
    "plain": {},
    "gears": {"gears": "16,4;64,5"},
    "rows": {"cache_write": "rows"},
    "rows gears": {"cache_write": "rows", "gears": "16,4;64,5"},
}
PAGES = ["key_cache.0", "value_cache.0", "key_cache.1", "value_cache.1"]


@pytest.fixture(scope="module", params=FORMS)
def other(request: Any, compile_to: Compile, toy_model: Any, plain: Artifact) -> Artifact:
    """The model of `plain` in each form: caches a layer, stacked pools, rows of all layers."""
    if request.param == "plain":
        return plain
    return Artifact.open(compile_to(toy_model.folder, page_size=32, **FORMS[request.param]))


def on_device(artifact: Artifact) -> Side:
    """The host device in the place of CANN."""
    return Side(artifact, "npu", acl=HostAcl(AclOptions(executor="oracle")))


def test_other_forms_of_a_model_agree(plain: Artifact, other: Artifact) -> None:
    found = compare(Side(plain), Side(other, "openvino"), CompareOptions(max_tokens=3))
    assert found.agrees
    assert found.notes == []
    layers = [each.point.place for each in found.agreements]
    assert layers.count("layer 0") == layers.count("layer 1") == 13
    assert found.logits.rows == 4 * 3


def test_one_form_on_two_executors(other: Artifact) -> None:
    found = compare(Side(other), Side(other, "openvino"), CompareOptions(max_tokens=3))
    assert found.agrees
    layers = [each.point.place for each in found.agreements]
    assert layers.count("layer 0") == layers.count("layer 1") >= 13
    assert found.logits.rows == 4 * 3


def test_a_wrong_weight_is_found_in_every_form(other: Artifact, tmp_path: Path) -> None:
    weight = "model.layers.1.self_attn.v_proj.weight"
    wrong = with_wrong_weight(other, weight, tmp_path / "wrong")
    found = compare(Side(other), Side(wrong, "openvino"), CompareOptions(max_tokens=2))
    assert found.divergence is not None
    assert found.divergence.agreement.point.node == "/layers.1/attn/v_proj/MatMul"
    assert found.divergence.weights[weight] > 0


@pytest.mark.parametrize("first", ["plain on openvino", "the same on a device"])
def test_a_device_shows_its_pages_and_logits(plain: Artifact, other: Artifact, first: str) -> None:
    """Layer by layer through the pages, in each of their layouts, on either side."""
    side = Side(plain, "openvino") if first.startswith("plain") else on_device(other)
    found = compare(side, on_device(other), CompareOptions(max_tokens=2))
    assert found.agrees
    assert [each.point.node for each in found.agreements] == PAGES
    assert all(each.rows > 60 and each.largest < 1e-4 for each in found.agreements)


@pytest.mark.parametrize(("weight", "sound"), [
    ("model.layers.0.self_attn.k_proj.weight", ["value_cache.0"]),
    ("model.layers.0.self_attn.v_proj.weight", ["key_cache.0"]),
    ("model.layers.0.mlp.down_proj.weight", ["key_cache.0", "value_cache.0"]),
    ("model.layers.1.self_attn.v_proj.weight", ["key_cache.0", "value_cache.0", "key_cache.1"]),
])  # fmt: skip
def test_a_fault_on_a_device_is_found_to_a_layer(
    plain: Artifact, other: Artifact, tmp_path: Path, weight: str, sound: list[str]
) -> None:
    wrong = with_wrong_weight(other, weight, tmp_path / "wrong")
    options = CompareOptions(max_tokens=2, every=True)
    found = compare(Side(plain), on_device(wrong), options)
    assert found.divergence is not None
    first = found.divergence.agreement.point.node
    assert first == next(name for name in PAGES if name not in sound)
    right = [each.point.node for each in found.agreements if each.worst <= found.tolerance]
    assert right == sound


def test_the_command(plain: Artifact, tmp_path: Path) -> None:
    run = CliRunner().invoke
    good = run(run_om, ["compare", str(plain.folder), "--prompt", "w5 w9 w1", "--max-tokens", "2"])
    assert good.exit_code == 0, good.output
    assert "No divergence" in good.output
    assert all(line == line.rstrip() for line in good.output.splitlines())
    one = run(run_om, ["compare", str(plain.folder), "--prompt", "w5", "--max-tokens", "1"])
    assert "1 step, 1 token. " in one.output
    assert "The next token is the same." in one.output
    wrong = with_wrong_weight(plain, "model.layers.1.mlp.down_proj.weight", tmp_path / "wrong")
    argv = ["compare", str(plain.folder), str(wrong.folder), "--executor-b", "oracle"]
    bad = run(run_om, [*argv, "--json"])
    assert bad.exit_code == 1
    data = json.loads(bad.stdout)
    assert data["first_divergence"]["operator"] == "/layers.1/mlp/down_proj/MatMul"
    assert data["first_token"]["a"] != data["first_token"]["b"]
    shown = run(run_om, [*argv, "--operators", "--every"])
    assert "First divergence: layer 1" in shown.output
    assert "The two files differ in model.layers.1.mlp.down_proj.weight" in " ".join(
        shown.output.split()
    )
    same = run(run_om, ["compare", str(plain.folder), "--executor-b", "oracle"])
    assert same.exit_code == 2

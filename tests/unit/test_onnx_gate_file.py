"""The gate on files: external data, imports that only the file shows, broken files."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx_samples import save_tiny, tiny_model

from pagedom.compiler.onnx_gate import GateContext, check_onnx_file, own_plugin

STATIC = GateContext(plugin=own_plugin(), fixed={"T": 8, "R": 2})


def rules(path: Path) -> list[str]:
    return [problem.rule for problem in check_onnx_file(path, STATIC)]


def test_a_saved_model_passes(tmp_path: Path) -> None:
    assert rules(save_tiny(tmp_path / "m.onnx")) == []


def test_external_data_that_is_absent_short_or_elsewhere(tmp_path: Path) -> None:
    path = save_tiny(tmp_path / "m.onnx")
    data = tmp_path / "m.onnx.data"
    data.write_bytes(data.read_bytes()[:-4])
    assert rules(path) == ["external-data"]
    assert "which has 76" in str(check_onnx_file(path, STATIC)[0])
    data.unlink()
    assert "absent" in str(check_onnx_file(path, STATIC)[0])
    model = onnx.load_model(str(path), load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "/elsewhere/m.data"
    onnx.save_model(model, str(path))
    assert "/elsewhere/m.data" in str(check_onnx_file(path, STATIC)[0])


def test_one_spelling_of_a_domain_twice(tmp_path: Path) -> None:
    model = tiny_model(opsets=[("", 18), ("", 17), ("pagedom", 1)])
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    assert "opset-import" in rules(tmp_path / "m.onnx")
    assert "E16005" in str(check_onnx_file(tmp_path / "m.onnx", STATIC)[0])


def test_a_sparse_constant_and_a_missing_graph(tmp_path: Path) -> None:
    model = tiny_model()
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(model.graph.initializer[1])
    sparse.values.name = "s"
    sparse.indices.dims.append(4)
    sparse.indices.data_type = onnx.TensorProto.INT64
    sparse.indices.int64_data.extend(range(4))
    sparse.dims.append(4)
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    found = check_onnx_file(tmp_path / "m.onnx", STATIC)
    assert [problem.rule for problem in found] == ["sparse-initializer"]


def test_a_file_that_is_no_onnx(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\xff\xff not a protobuf")
    assert rules(tmp_path / "m.onnx") == ["onnx"]


def test_a_file_at_the_protobuf_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_tiny(tmp_path / "m.onnx")
    monkeypatch.setattr("pagedom.compiler.onnx_gate.PROTOBUF_LIMIT_BYTES", path.stat().st_size)
    assert rules(path) == ["protobuf-size"]

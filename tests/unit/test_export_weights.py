"""Weights into external data: layout, laziness, all or nothing."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from pagedom.compiler.export import ExportOptions, export_onnx
from pagedom.compiler.onnx_weights import WeightsError, attach_weights, save_onnx
from pagedom.models.config import ModelConfig
from pagedom.models.expected import expected_tensors
from pagedom.models.rope import RopeConfig

CONFIG = ModelConfig(
    family="llama",
    name="tiny",
    vocab_size=70,
    hidden_size=24,
    intermediate_size=40,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=12,
    rms_norm_eps=1e-5,
    max_positions=64,
    rope=RopeConfig(dim=12),
    tie_embeddings=True,
    qkv_bias=True,
    o_bias=False,
    mlp_bias=False,
    windows=(-1,),
    bos_id=None,
    eos_ids=(),
    checkpoint_dtype="float32",
)
KINDS = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


class Counted:
    """A checkpoint of random tensors that counts how often each is read."""

    def __init__(self, config: ModelConfig = CONFIG) -> None:
        rng = np.random.default_rng(0)
        shapes = expected_tensors(config)
        self.tensors = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
        self.expected = dict(shapes)
        self.reads: Counter[str] = Counter()

    def cast(self, name: str, dtype: str) -> np.ndarray:
        self.reads[name] += 1
        return self.tensors[name].astype(KINDS[dtype])


@cache
def _export(dtype: str) -> ir.Model:
    return export_onnx(CONFIG, ExportOptions(dtype, 32, 4))


def exported(dtype: str = "float32") -> ir.Model:
    return _export(dtype).clone()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_files_hold_every_tensor_in_its_layout(tmp_path: Path, dtype: str) -> None:
    model, source = exported(dtype), Counted()
    attach_weights(model, source, dtype)
    assert not source.reads  # nothing is read before it is written
    steps: list[tuple[str, int, int]] = []
    paths = save_onnx(model, tmp_path / "deep" / "m.onnx", lambda *step: steps.append(step))
    assert [path.name for path in paths] == ["m.onnx", "m.onnx.data"]
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert set(source.reads.values()) == {1}
    assert steps[0][1] == 0
    assert steps[-1][1] == steps[-1][2] > 0

    onnx.checker.check_model(str(paths[0]), full_check=True)
    proto = onnx.load(str(paths[0]), load_external_data=False)
    offsets = [
        int(entry.value)
        for tensor in proto.graph.initializer
        for entry in tensor.external_data
        if entry.key == "offset"
    ]
    assert offsets
    assert all(offset % 4096 == 0 for offset in offsets)
    for tensor in onnx.load(str(paths[0])).graph.initializer:
        facts = {entry.key: entry.value for entry in tensor.metadata_props}
        if "pagedom.weight" in facts:
            stored = source.tensors[facts["pagedom.weight"]].astype(KINDS[dtype])
            wanted = stored.T if facts.get("pagedom.transposed") == "1" else stored
            array = onnx.numpy_helper.to_array(tensor)
            assert array.dtype == KINDS[dtype]
            np.testing.assert_array_equal(array, wanted)


def test_saving_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = exported()
    attach_weights(model, Counted())
    save_onnx(model, tmp_path / "one.onnx")
    save_onnx(model, tmp_path / "two.onnx")
    assert (tmp_path / "one.onnx.data").read_bytes() == (tmp_path / "two.onnx.data").read_bytes()


def test_a_failure_leaves_the_old_files_and_nothing_else(tmp_path: Path) -> None:
    model, source = exported(), Counted()
    attach_weights(model, source)
    save_onnx(model, tmp_path / "m.onnx")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    del source.tensors["model.norm.weight"]
    source.tensors["model.layers.0.mlp.up_proj.weight"] = "broken"  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        save_onnx(model, tmp_path / "m.onnx")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_all_mismatches_are_named() -> None:
    model, source = exported(), Counted()
    source.expected["model.norm.weight"] = (25,)
    source.expected["model.layers.0.self_attn.o_proj.bias"] = (24,)
    del source.expected["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(WeightsError) as caught:
        attach_weights(model, source, "float16")
    text = str(caught.value)
    assert "model.norm.weight is [25] in the checkpoint, [24] in the graph" in text
    assert "model.layers.0.mlp.up_proj.weight is not in the checkpoint" in text
    assert "model.layers.0.self_attn.o_proj.bias of the checkpoint is not in the graph" in text
    assert "is float32 in the graph, float16 is asked for" in text


def test_saving_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"weights have no data, model.*: attach_weights"):
        save_onnx(exported(), tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_tied_embedding_is_stored_once(tmp_path: Path) -> None:
    sizes = {}
    for tied in (True, False):
        config = dataclasses.replace(CONFIG, tie_embeddings=tied, vocab_size=500)
        model = export_onnx(config, ExportOptions("float32", 32, 4))
        attach_weights(model, Counted(config))
        sizes[tied] = save_onnx(model, tmp_path / f"{tied}.onnx")[1].stat().st_size
    assert sizes[False] - sizes[True] >= 500 * 24 * 4

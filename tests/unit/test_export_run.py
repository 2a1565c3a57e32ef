"""An exported model in stock onnxruntime against the dense forward of `dense_llama`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from lowered_model import LLAMA, Weights, exported
from toy_scheduler import GEARS, NUM_PAGES, TABLE_WIDTH, TRACE, ToyScheduler

from pagedom.compiler.onnx_weights import attach_weights, save_onnx
from pagedom.graph_ops.bodies import to_torch
from pagedom.models.config import ModelConfig
from pagedom.models.decoder import Decoder
from pagedom.models.rope import RopeConfig, cos_sin

PAGE_SIZE = 8
CONFIGS = {
    "gqa tied": dataclasses.replace(LLAMA, head_dim=6, rope=RopeConfig(dim=6, theta=100.0)),
    "mha biased untied": dataclasses.replace(
        LLAMA, num_kv_heads=4, tie_embeddings=False, qkv_bias=True, o_bias=True, mlp_bias=True
    ),
    "windows": dataclasses.replace(LLAMA, windows=(3, -1), qkv_bias=True),
}


def empty_caches(config: ModelConfig, dtype: str) -> dict[str, np.ndarray]:
    """Pools that are all NaN: what nobody wrote must not be seen."""
    shape = (NUM_PAGES, PAGE_SIZE, config.num_kv_heads, config.head_dim)
    kinds = [f"{kind}.{layer}" for kind in ("key_cache", "value_cache") for layer in (0, 1)]
    return {name: np.full(shape, np.nan, dtype) for name in kinds}


def export(config: ModelConfig, folder: Path, dtype: str) -> tuple[Weights, Path]:
    weights = Weights(config)
    model = exported(config, PAGE_SIZE, dtype)
    attach_weights(model, weights, dtype)
    return weights, save_onnx(model, folder / "m.onnx")[0]


@pytest.mark.parametrize("gears", [(), GEARS], ids=["as it comes", "padded"])
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("gqa tied", "float32", 2e-5),
        ("gqa tied", "float16", 5e-2),
        ("mha biased untied", "float32", 2e-5),
        ("windows", "float32", 2e-5),
    ],
)
def test_onnxruntime_follows_the_dense_model(
    tmp_path: Path, name: str, dtype: str, tolerance: float, gears: tuple[tuple[int, int], ...]
) -> None:
    config = CONFIGS[name]
    weights, path = export(config, tmp_path, dtype)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_outputs()[0].shape == ["R", config.vocab_size]
    inputs = [each.name for each in session.get_inputs()]
    outputs = [each.name for each in session.get_outputs()]
    scheduler = ToyScheduler(config.vocab_size, PAGE_SIZE, gears)
    caches = empty_caches(config, dtype)
    for step in TRACE:
        given = {**scheduler.inputs(step), **caches}
        feed = {name: _as_int32(given[name]) for name in inputs}
        results = dict(zip(outputs, session.run(None, feed)))
        caches = {name: results[name.replace("_cache.", "_cache_out.")] for name in caches}
        logits = results["logits"]
        assert logits.dtype == np.float32
        assert logits.shape == (len(given["logits_rows"]), config.vocab_size)
        wanted = scheduler.wanted(step, config, weights.tensors)
        for found, right in zip(logits, wanted):
            scale = np.abs(right).max()
            np.testing.assert_allclose(found, right, rtol=0, atol=tolerance * scale)


def _as_int32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int32) if array.dtype.kind == "i" else array


def test_the_torch_module_itself_runs() -> None:
    config = CONFIGS["mha biased untied"]
    weights = Weights(config)
    longest = PAGE_SIZE * TABLE_WIDTH
    decoder = Decoder(config, longest, torch.float32)
    tables = dict(zip(("rope.cos.weight", "rope.sin.weight"), cos_sin(config.rope, longest)))
    state = {name: to_torch(array) for name, array in {**weights.tensors, **tables}.items()}
    decoder.load_state_dict(state, strict=True)
    scheduler = ToyScheduler(config.vocab_size, PAGE_SIZE)
    given = scheduler.inputs([("a", 5)])
    names = ("input_ids", "positions", "slot_mapping", "block_table", "cu_seqlens", "kv_lens")
    feed = [torch.from_numpy(_as_int32(given[name])) for name in (*names, "logits_rows")]
    caches = [torch.from_numpy(pool) for pool in empty_caches(config, "float32").values()]
    logits, keys, _ = decoder(*feed, caches[:2], caches[2:])
    wanted = scheduler.wanted([("a", 5)], config, weights.tensors)
    np.testing.assert_allclose(logits.numpy(), wanted, rtol=1e-4, atol=1e-4)
    assert int(keys[0].isfinite().all(-1).all(-1).sum()) == 5


def test_files_can_be_moved(tmp_path: Path) -> None:
    path = export(CONFIGS["gqa tied"], tmp_path, "float32")[1]
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in (path, path.with_name(path.name + ".data")):
        file.rename(moved / file.name)
    onnxruntime.InferenceSession(moved / path.name, providers=["CPUExecutionProvider"])

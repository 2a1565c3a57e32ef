"""An exported model in stock onnxruntime against the dense forward of `dense_llama`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from dense_llama import dense_logits

from pagedom.compiler.export import ExportOptions, export_onnx
from pagedom.compiler.onnx_weights import attach_weights, save_onnx
from pagedom.graph_ops.bodies import to_torch
from pagedom.models.config import ModelConfig
from pagedom.models.decoder import Decoder
from pagedom.models.expected import expected_tensors
from pagedom.models.rope import RopeConfig, cos_sin

PAGE_SIZE, PAGES, TABLE_WIDTH, MAX_SEQ_LEN = 4, 24, 6, 24
LLAMA = ModelConfig(
    family="llama",
    name="tiny",
    vocab_size=29,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    rms_norm_eps=1e-5,
    max_positions=64,
    rope=RopeConfig(dim=6, theta=100.0),
    tie_embeddings=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    windows=(-1, -1),
    bos_id=None,
    eos_ids=(),
    checkpoint_dtype="float32",
)
CONFIGS = {
    "gqa tied": LLAMA,
    "mha biased untied": dataclasses.replace(
        LLAMA, num_kv_heads=4, tie_embeddings=False, qkv_bias=True, o_bias=True, mlp_bias=True
    ),
    "windows": dataclasses.replace(LLAMA, windows=(3, -1), qkv_bias=True),
}


class Checkpoint:
    """Random weights, large enough for biases and norms to matter."""

    def __init__(self, config: ModelConfig) -> None:
        rng = np.random.default_rng(7)
        self.expected = expected_tensors(config)
        self.tensors = {
            name: (rng.normal(size=shape) * (0.5 if len(shape) == 2 else 1.0)).astype(np.float32)
            for name, shape in self.expected.items()
        }

    def cast(self, name: str, dtype: str) -> np.ndarray:
        return self.tensors[name].astype(dtype)


class Batch:
    """A toy scheduler: sequences with pages in random order, in a pool that is all NaN."""

    def __init__(self, config: ModelConfig, dtype: str) -> None:
        shape = (PAGES, PAGE_SIZE, config.num_kv_heads, config.head_dim)
        kinds = [f"{kind}.{i}" for kind in ("key_cache", "value_cache") for i in (0, 1)]
        self.caches = {name: np.full(shape, np.nan, dtype) for name in kinds}
        self.free = list(1 + np.random.default_rng(3).permutation(PAGES - 1))
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def step_inputs(self, step: dict[str, list[int]], padding: int) -> dict[str, np.ndarray]:
        """Return the graph inputs that append tokens to sequences, plus a padding sequence."""
        ids, positions, slots, q_lens = [], [], [], []
        for name, tokens in step.items():
            table = self.tables.setdefault(name, [])
            for token in tokens:
                position = self.lengths.get(name, 0)
                if position % PAGE_SIZE == 0:
                    table.append(int(self.free.pop()))
                slots.append(table[-1] * PAGE_SIZE + position % PAGE_SIZE)
                ids.append(token)
                positions.append(position)
                self.lengths[name] = position + 1
            q_lens.append(len(tokens))
        rows = [self.tables[name] + [0] * (TABLE_WIDTH - len(self.tables[name])) for name in step]
        kv_lens = [self.lengths[name] for name in step]
        if padding:
            q_lens, kv_lens = [*q_lens, padding], [*kv_lens, 1]
            rows.append([0] * TABLE_WIDTH)
            ids, positions = ids + [0] * padding, positions + [0] * padding
            slots = slots + [-1] * padding
        ends = np.cumsum(q_lens)
        named = {
            "input_ids": ids,
            "positions": positions,
            "slot_mapping": slots,
            "block_table": rows,
            "cu_seqlens": [0, *ends],
            "kv_lens": kv_lens,
            "logits_rows": ends[: len(step)] - 1,
        }
        return {name: np.array(value, np.int32) for name, value in named.items()} | self.caches


# A mixed trace: prefill, decode, prefill in two chunks beside decode, a sequence that pauses.
STEPS: list[tuple[dict[str, list[int]], int]] = [
    ({"a": [3, 1, 4, 1, 5], "b": [9, 2]}, 0),
    ({"a": [6], "b": [5], "c": [3, 5, 8, 9, 7, 9]}, 2),
    ({"c": [3, 2, 3], "a": [8]}, 1),
    ({"a": [4], "b": [6], "c": [2]}, 0),
    ({"a": [6], "b": [4], "c": [3]}, 3),
    ({"d": [0], "a": [2]}, 1),
]


def export(config: ModelConfig, folder: Path, dtype: str) -> tuple[Checkpoint, Path]:
    checkpoint = Checkpoint(config)
    model = export_onnx(config, ExportOptions(dtype, MAX_SEQ_LEN, PAGE_SIZE))
    attach_weights(model, checkpoint, dtype)
    return checkpoint, save_onnx(model, folder / "m.onnx")[0]


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
    tmp_path: Path, name: str, dtype: str, tolerance: float
) -> None:
    config = CONFIGS[name]
    checkpoint, path = export(config, tmp_path, dtype)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_outputs()[0].shape == ["R", config.vocab_size]
    batch = Batch(config, dtype)
    texts: dict[str, list[int]] = {}
    for step, padding in STEPS:
        feed = batch.step_inputs(step, padding)
        names = [output.name for output in session.get_outputs()]
        results = dict(zip(names, session.run(None, feed)))
        for name in batch.caches:
            kind, _, layer = name.partition(".")
            batch.caches[name] = results[f"{kind}_out.{layer}"]
        assert results["logits"].dtype == np.float32
        assert results["logits"].shape == (len(step), config.vocab_size)
        for row, (name, tokens) in enumerate(step.items()):
            texts[name] = texts.get(name, []) + tokens
            expected = dense_logits(config, checkpoint.tensors, texts[name])[-1]
            scale = np.abs(expected).max()
            np.testing.assert_allclose(results["logits"][row], expected, atol=tolerance * scale)


def test_the_torch_module_itself_runs() -> None:
    config = CONFIGS["mha biased untied"]
    checkpoint = Checkpoint(config)
    decoder = Decoder(config, MAX_SEQ_LEN, torch.float32)
    tables = dict(zip(("rope.cos.weight", "rope.sin.weight"), cos_sin(config.rope, MAX_SEQ_LEN)))
    state = {name: to_torch(array) for name, array in {**checkpoint.tensors, **tables}.items()}
    decoder.load_state_dict(state, strict=True)
    batch = Batch(config, "float32")
    feed = [torch.from_numpy(a) for a in batch.step_inputs({"a": [3, 1, 4, 1, 5]}, 0).values()]
    logits, keys, _ = decoder(*feed[:7], feed[7:9], feed[9:])
    expected = dense_logits(config, checkpoint.tensors, [3, 1, 4, 1, 5])[-1]
    np.testing.assert_allclose(logits[0].numpy(), expected, rtol=1e-4, atol=1e-4)
    assert int(keys[0].isfinite().all(-1).all(-1).sum()) == 5


def test_files_can_be_moved(tmp_path: Path) -> None:
    path = export(LLAMA, tmp_path, "float32")[1]
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in (path, path.with_name(path.name + ".data")):
        file.rename(moved / file.name)
    onnxruntime.InferenceSession(moved / path.name, providers=["CPUExecutionProvider"])

"""An exported model in stock onnxruntime against a dense LLaMA forward that is written here."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
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


def dense_logits(config: ModelConfig, weights: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Return the logits [len(ids), V] of one sequence: whole matrices, a full mask, float64."""

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        y = x @ weights[f"{name}.weight"].astype(np.float64).T
        return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        size = np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps)
        return x / size * weights[f"{name}.weight"]

    def rotate(x: np.ndarray) -> np.ndarray:  # [n, heads, D], as complex numbers
        half = config.head_dim // 2
        frequency = config.rope.theta ** (-np.arange(half) / half)
        turn = np.exp(1j * np.outer(np.arange(len(x)), frequency))[:, None]
        spun = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([spun.real, spun.imag], axis=-1)

    count, dim = len(ids), config.head_dim
    embedding = weights["model.embed_tokens.weight"].astype(np.float64)
    x = embedding[ids]
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        normal = norm(x, f"{prefix}.input_layernorm")
        q, k, v = (linear(normal, f"{prefix}.self_attn.{n}_proj") for n in "qkv")
        q, k = rotate(q.reshape(count, -1, dim)), rotate(k.reshape(count, -1, dim))
        repeat = config.num_heads // config.num_kv_heads
        k = np.repeat(k, repeat, axis=1)
        v = np.repeat(v.reshape(count, -1, dim), repeat, axis=1)
        age = np.arange(count)[:, None] - np.arange(count)[None]
        hidden = age < 0
        if config.windows[layer] > 0:
            hidden |= age >= config.windows[layer]
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(dim)
        scores = np.exp(np.where(hidden, -np.inf, scores))
        mixed = np.einsum("hij,jhd->ihd", scores / scores.sum(-1, keepdims=True), v)
        x = x + linear(mixed.reshape(count, -1), f"{prefix}.self_attn.o_proj")
        normal = norm(x, f"{prefix}.post_attention_layernorm")
        gate, up = (linear(normal, f"{prefix}.mlp.{n}_proj") for n in ("gate", "up"))
        x = x + linear(gate / (1 + np.exp(-gate)) * up, f"{prefix}.mlp.down_proj")
    head = weights.get("lm_head.weight", embedding)
    return norm(x, "model.norm") @ head.astype(np.float64).T


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


@pytest.fixture(scope="module", params=list(CONFIGS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    config = CONFIGS[request.param]
    checkpoint = Checkpoint(config)
    paths = {}
    for dtype in ("float32", "float16"):
        model = export_onnx(config, ExportOptions(dtype, MAX_SEQ_LEN, PAGE_SIZE))
        attach_weights(model, checkpoint, dtype)
        paths[dtype] = save_onnx(model, tmp_path_factory.mktemp("onnx") / f"{dtype}.onnx")[0]
    return config, checkpoint, paths


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("float16", 5e-2)])
def test_onnxruntime_follows_the_dense_model(  # type: ignore[no-untyped-def]
    saved, dtype: str, tolerance: float
) -> None:
    config, checkpoint, paths = saved
    session = onnxruntime.InferenceSession(paths[dtype], providers=["CPUExecutionProvider"])
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


def test_the_torch_module_itself_runs(saved) -> None:  # type: ignore[no-untyped-def]
    config, checkpoint, _ = saved
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


def test_files_can_be_moved(saved, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = saved[2]["float32"]
    for file in (path, path.with_name(path.name + ".data")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    onnxruntime.InferenceSession(tmp_path / path.name, providers=["CPUExecutionProvider"])

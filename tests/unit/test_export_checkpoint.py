"""From a checkpoint on disk to tokens in stock onnxruntime."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import pytest
from dense_llama import dense_logits

from pagedom.compiler.export import ExportOptions, export_onnx
from pagedom.compiler.onnx_weights import attach_weights, save_onnx
from pagedom.models.checkpoint import open_checkpoint

PAGE_SIZE, TABLE_WIDTH = 8, 6
LILY = [432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338]
LILY += [401, 396, 267, 337, 410, 408, 419, 292, 411, 322, 265, 282]


def export(source: Path, target: Path, dtype: str = "float32") -> Path:
    with open_checkpoint(source) as checkpoint:
        options = ExportOptions(dtype, PAGE_SIZE * TABLE_WIDTH, PAGE_SIZE)
        model = export_onnx(checkpoint.config, options)
        attach_weights(model, checkpoint, dtype)
        return save_onnx(model, target)[0]


class Chat:
    """One sequence in pages 1 … of an onnxruntime session that carries the caches."""

    def __init__(self, model: Path | bytes) -> None:
        self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        self.caches = {
            value.name: np.full((TABLE_WIDTH + 1, *value.shape[1:]), np.nan, kinds[value.type])
            for value in self.session.get_inputs()[7:]
        }
        self.length = 0

    def feed(self, tokens: list[int]) -> np.ndarray:
        """Append tokens; return the logits [V] after the last."""
        positions = np.arange(self.length, self.length + len(tokens))
        self.length += len(tokens)
        inputs = {
            "input_ids": tokens,
            "positions": positions,
            "slot_mapping": positions + PAGE_SIZE,
            "block_table": [range(1, TABLE_WIDTH + 1)],
            "cu_seqlens": [0, len(tokens)],
            "kv_lens": [self.length],
            "logits_rows": [len(tokens) - 1],
        }
        arrays = {name: np.array(value, np.int32) for name, value in inputs.items()}
        outputs = self.session.run(None, arrays | self.caches)
        self.caches = dict(zip(self.caches, outputs[1:], strict=True))
        return outputs[0][0]

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        found = [int(self.feed(prompt).argmax())]
        while len(found) < count:
            found.append(int(self.feed(found[-1:]).argmax()))
        return found


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("qwen2", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("mistral", {"sliding_window": 4, "head_dim": 16}),
    ],
)
def test_families_match_the_dense_model(
    toy: ModuleType, tmp_path: Path, model_type: str, changes: dict[str, object]
) -> None:
    values = toy.config(model_type, **changes)
    weights = toy.tensors(values)
    folder = toy.write_folder(tmp_path / "model", values, weights)
    with open_checkpoint(folder) as checkpoint:
        config = checkpoint.config
    chat = Chat(export(folder, tmp_path / "m.onnx"))
    ids = [1, 40, 7, 7, 23, 2, 19, 33, 11]
    expected = dense_logits(config, weights, ids)
    for part in (slice(0, 6), slice(6, 7), slice(7, 9)):
        logits = chat.feed(ids[part])
        np.testing.assert_allclose(logits, expected[part.stop - 1], atol=1e-4)


def test_inlined_bodies_are_the_same_model(toy: ModuleType, tmp_path: Path) -> None:
    # What a chip without our operators gets: base operators alone, attributes resolved.
    values = toy.config("mistral", sliding_window=4)
    folder = toy.write_folder(tmp_path / "model", values, toy.tensors(values))
    path = export(folder, tmp_path / "m.onnx")
    inlined = onnx.inliner.inline_local_functions(onnx.load(str(path)))
    assert {node.domain for node in inlined.graph.node} == {""}
    assert not inlined.functions
    onnx.checker.check_model(inlined, full_check=True)
    ids = [1, 40, 7, 7, 23, 2, 19]
    whole, parts = Chat(path), Chat(inlined.SerializeToString())
    np.testing.assert_allclose(whole.feed(ids), parts.feed(ids), atol=1e-5)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        ("stories260K", "float32"),
        ("stories260K", "float16"),
        ("stories260K-gguf/stories260K-f32.gguf", "float32"),
    ],
)
def test_stories_tell_the_known_text(
    shared_data: Path, tmp_path: Path, source: str, dtype: str
) -> None:
    chat = Chat(export(shared_data / source, tmp_path / "m.onnx", dtype))
    assert chat.greedy([1, 403, 407, 261, 378], len(LILY)) == LILY

"""A small model in any form of a host artefact, run on an executor through a trace of steps.

The trace is that of `toy_scheduler`. Rows artefacts get their new rows copied into the pool, token
by token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
from toy_scheduler import GEARS, NUM_PAGES, TABLE_WIDTH, TRACE, Step, ToyScheduler

from pagedom.compiler.export import ExportOptions, export_onnx
from pagedom.compiler.ge_import import import_onnx
from pagedom.compiler.host import HostGraph, lower_for_host, write_host_om
from pagedom.compiler.host_forms import HostForm
from pagedom.compiler.lower.infra import run_passes
from pagedom.compiler.lower.onnx_infra import OnnxPass, run_onnx_passes
from pagedom.models.config import ModelConfig
from pagedom.models.expected import expected_tensors
from pagedom.models.rope import RopeConfig
from pagedom.runtime.acl.executor import ExecutorOptions
from pagedom.runtime.acl.executors import make_executor
from pagedom.runtime.dtypes import dtype
from pagedom.runtime.om_file.om_reader import read_om

LLAMA = ModelConfig(
    family="llama",
    name="tiny",
    vocab_size=29,
    hidden_size=32,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    max_positions=512,
    rope=RopeConfig(dim=16, theta=100.0),
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
    "gqa": LLAMA,
    "mha": dataclasses.replace(
        LLAMA, num_kv_heads=4, tie_embeddings=False, qkv_bias=True, o_bias=True, mlp_bias=True
    ),
    "windows": dataclasses.replace(LLAMA, windows=(5, -1), qkv_bias=True),
}


class Weights:
    """Random weights that depend on the name alone, large enough for every part to matter."""

    def __init__(self, config: ModelConfig) -> None:
        rng = np.random.default_rng(7)
        self.expected = expected_tensors(config)
        self.tensors = {
            name: (rng.normal(size=shape) * (0.3 if len(shape) == 2 else 1.0)).astype(np.float32)
            for name, shape in self.expected.items()
        }

    def cast(self, name: str, kind: str) -> np.ndarray:
        return self.tensors[name].astype(dtype(kind).numpy)


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A compiled model with all that is needed to run and to judge it."""

    config: ModelConfig
    page_size: int
    weights: Weights
    graph: HostGraph
    path: Path
    gears: Sequence[tuple[int, int]] = ()
    padding_slot: int = -1


@lru_cache
def _export(config: ModelConfig, page_size: int, kind: str) -> ir.Model:
    return export_onnx(config, ExportOptions(kind, page_size * TABLE_WIDTH, page_size))


def exported(config: ModelConfig, page_size: int = 16, kind: str = "float32") -> ir.Model:
    """Return an exported model of the test's own, to be changed at will."""
    return _export(config, page_size, kind).clone()


def lower(
    config: ModelConfig, form: HostForm, page_size: int, folder: Path, kind: str = "float32"
) -> Lowered:
    """Export, lower and write a model."""
    graph = lower_for_host(exported(config, page_size, kind), "tiny", form)
    weights = Weights(config)
    path = folder / "model.om"
    write_host_om(path, graph, weights, "test")
    return Lowered(config, page_size, weights, graph, path, form.gears)


def lower_by(
    passes: Sequence[OnnxPass],
    config: ModelConfig,
    page_size: int,
    path: Path,
    padding_slot: int = -1,
) -> Lowered:
    """Lower with passes of a chip; where it writes by slots, padding has slot 0."""
    model = exported(config, page_size)
    run_onnx_passes(model, passes)
    build = import_onnx(model, "tiny")
    graph = HostGraph(build, run_passes(build, []), {}, {})
    weights = Weights(config)
    write_host_om(path, graph, weights, "test")
    return Lowered(config, page_size, weights, graph, path, GEARS, padding_slot)


class Run:
    """An executor with its caches, and the steps that it runs."""

    def __init__(self, kind: str, lowered: Lowered) -> None:
        self.lowered = lowered
        self.om = read_om(lowered.path)
        self.executor = make_executor(kind, self.om, ExecutorOptions(threads=1))
        self.scheduler = ToyScheduler(
            lowered.config.vocab_size, lowered.page_size, lowered.gears, lowered.padding_slot
        )
        self.caches = {
            desc.name: np.full(
                [NUM_PAGES if extent < 0 else extent for extent in desc.shape],
                np.nan if "rows" in desc.name else 0,
                dtype(desc.dtype).numpy,
            )
            for desc in self.executor.inputs
            if "cache" in desc.name or "pool" in desc.name
        }

    def steps(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (found, wanted) logits of the real sequences, step by step."""
        for step in TRACE:
            yield self.step(step), self.wanted(step)

    def wanted(self, step: Step) -> np.ndarray:
        """Return the dense model's logits for the sequences of a step that was just run."""
        return self.scheduler.wanted(step, self.lowered.config, self.lowered.weights.tensors)

    def step(self, step: Step) -> np.ndarray:
        """Run one step; returns its logits [sequences, V]."""
        inputs = self.scheduler.inputs(step)
        arrays = []
        for desc in self.executor.inputs:
            array = self.caches.get(desc.name)
            if array is None:
                array = np.ascontiguousarray(inputs[desc.name], dtype(desc.dtype).numpy)
            arrays.append(array)
        rows, tokens = len(inputs["logits_rows"]), len(inputs["input_ids"])
        vocab = self.lowered.config.vocab_size
        sizes = [rows * vocab * 4, rows * 4, tokens * 4 * 4096]
        outputs = [np.zeros(n, np.uint8) for n in sizes[: len(self.executor.outputs)]]
        shapes = self.executor.execute(arrays, outputs)
        assert shapes[0] == (rows, vocab)
        if len(outputs) == 3:
            self._copy_rows(outputs[2], shapes[2], inputs["slot_mapping"])
        logits = outputs[0].view(np.float32).reshape(-1, vocab)
        np.testing.assert_array_equal(outputs[1].view(np.int32), logits.argmax(-1))
        return logits[: len(step)]

    def _copy_rows(self, buffer: np.ndarray, shape: tuple[int, ...], slots: np.ndarray) -> None:
        pool = self.caches["kv_rows_pool"]
        count = int(np.prod(shape))
        rows = buffer[: count * pool.itemsize].view(pool.dtype).reshape(shape)
        flat = pool.reshape(-1, pool.shape[-1])
        flat[slots[slots >= 0]] = rows[slots >= 0]

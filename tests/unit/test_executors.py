"""The two host executors on small graphs: they agree; the oracle reports garbage reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pagedom.compiler.ge_build import GeBuild
from pagedom.compiler.ge_import import FIA_INPUTS, causal_mask
from pagedom.compiler.ge_weights import place_weights
from pagedom.compiler.lower.infra import run_passes
from pagedom.compiler.lower.merge_gate_up import MergeGateUp
from pagedom.runtime.acl.executor import ExecutorError, ExecutorOptions
from pagedom.runtime.acl.executors import make_executor
from pagedom.runtime.om_file.ge_graph import Graph, Node, TensorDesc
from pagedom.runtime.om_file.model_def import ModelDef
from pagedom.runtime.om_file.om_reader import read_om
from pagedom.runtime.om_file.om_writer import write_om

H, K, D, V, F = 4, 2, 64, 48, 96
HIDDEN = H * D
OPTIONS = ExecutorOptions(threads=1)


@dataclass(frozen=True)
class Spec:
    page_size: int
    window: int = -1
    dtype: str = "float32"
    layers: int = 2


class RandomWeights:
    """Stands for a checkpoint: every weight is random but depends on its name alone."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.shapes = shapes

    def cast(self, name: str, dtype: str) -> np.ndarray:
        rng = np.random.default_rng(sum(name.encode()))
        kind = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
        return (rng.standard_normal(self.shapes[name]) * 0.15).astype(kind)


class TinyModel:
    """A decoder as the importer would build it, without ONNX."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.build = GeBuild(Graph("tiny"))
        self.shapes: dict[str, tuple[int, ...]] = {}
        caches = [f"{kind}_cache.{n}" for kind in ("key", "value") for n in range(spec.layers)]
        ints = {
            "input_ids": ("int32", (-1,)),
            "positions": ("int32", (-1,)),
            "slot_mapping": ("int32", (-1,)),
            "block_table": ("int32", (-1, -1)),
            "seq_ends": ("int64", (-1,)),
            "kv_lens": ("int64", (-1,)),
            "logits_rows": ("int32", (-1,)),
        }
        self.inputs = {name: TensorDesc(*row) for name, row in ints.items()}
        for name in caches:
            self.inputs[name] = TensorDesc(spec.dtype, (-1, spec.page_size, K, D))
        for index, (name, desc) in enumerate(self.inputs.items()):
            self.build.add(Node(name, "Data", [], {"index": index}, [desc], [desc], ["x"], ["y"]))
        self._decoder()

    def weight(self, name: str, *shape: int) -> str:
        from pagedom.compiler.ge_build import WeightParts

        self.shapes[name] = shape
        return self.build.weight(name, WeightParts((name,)), TensorDesc(self.spec.dtype, shape))

    def op(self, name: str, kind: str, inputs: list[str], shape: tuple[int, ...], **attrs) -> str:
        desc = TensorDesc(attrs.pop("out", self.spec.dtype), shape)
        pairs = [(f"x{place}", edge) for place, edge in enumerate(inputs)]
        return f"{self.build.operator(name, kind, pairs, [('y', desc)], **attrs).name}:0"

    def linear(self, name: str, x: str, rows: int, columns: int) -> str:
        weight = self.weight(f"{name}.weight", rows, columns)
        return self.op(name, "MatMulV2", [x, weight], (-1, rows), transpose_x2=True)

    def norm(self, name: str, x: str) -> str:
        gamma = self.weight(f"{name}.weight", HIDDEN)
        return self.op(name, "RmsNorm", [x, gamma], (-1, HIDDEN), epsilon=1e-5)

    def gather(self, name: str, table: str, ids: str, shape: tuple[int, ...]) -> str:
        axis = self.build.constant("axis", np.array(0, np.int32))
        return self.op(name, "GatherV2", [table, ids, axis], shape)

    def heads(self, name: str, x: str, count: int) -> str:
        shape = self.build.constant(f"{name}.shape", np.array([-1, count, D], np.int64))
        return self.op(name, "Reshape", [x, shape], (-1, count, D))

    def _decoder(self) -> None:
        angle = np.arange(256)[:, None] / 100.0 ** (np.arange(0, D, 2) / D)
        both = np.concatenate([angle, angle], axis=1)[:, None]
        kind = {"bfloat16": ml_dtypes.bfloat16}.get(self.spec.dtype, np.float32)
        cos = self.build.constant("cos", np.cos(both).astype(kind))
        sin = self.build.constant("sin", np.sin(both).astype(kind))
        cos = self.gather("cos_rows", cos, "positions:0", (-1, 1, D))
        sin = self.gather("sin_rows", sin, "positions:0", (-1, 1, D))
        embed = self.weight("embed", V, HIDDEN)
        x = self.gather("embedding", embed, "input_ids:0", (-1, HIDDEN))
        for layer in range(self.spec.layers):
            x = self._layer(layer, x, cos, sin)
        x = self.gather("rows", x, "logits_rows:0", (-1, HIDDEN))
        logits = self.op(
            "head", "MatMulV2", [self.norm("norm", x), embed], (-1, V), transpose_x2=True
        )
        logits = self.op("logits", "Cast", [logits], (-1, V), dst_type=0, out="float32")
        axis = self.build.constant("last", np.array(-1, np.int32))
        best = self.op("next_ids", "ArgMaxV2", [logits, axis], (-1,), out="int32")
        self.build.add(Node("Node_Output", "NetOutput", [logits, best]))

    def _layer(self, n: int, x: str, cos: str, sin: str) -> str:
        h = self.norm(f"{n}.norm1", x)
        q, k, v = (
            self.heads(f"{n}.{name}.heads", self.linear(f"{n}.{name}", h, count * D, HIDDEN), count)
            for name, count in (("q", H), ("k", K), ("v", K))
        )
        q = self.op(f"{n}.q.rope", "RotaryPositionEmbedding", [q, cos, sin], (-1, H, D), mode=0)
        k = self.op(f"{n}.k.rope", "RotaryPositionEmbedding", [k, cos, sin], (-1, K, D), mode=0)
        attended = self._attention(n, q, k, v)
        shape = self.build.constant("flat", np.array([-1, HIDDEN], np.int64))
        flat = self.op(f"{n}.flat", "Reshape", [attended, shape], (-1, HIDDEN))
        x = self.op(
            f"{n}.add1", "Add", [x, self.linear(f"{n}.o", flat, HIDDEN, HIDDEN)], (-1, HIDDEN)
        )
        h = self.norm(f"{n}.norm2", x)
        gate = self.linear(f"{n}.gate_proj", h, F, HIDDEN)
        up = self.linear(f"{n}.up_proj", h, F, HIDDEN)
        both = self.op(f"{n}.concat", "ConcatD", [gate, up], (-1, 2 * F), concat_dim=1, N=2)
        mlp = self.op(f"{n}.swiglu", "SwiGlu", [both], (-1, F), dim=-1)
        return self.op(
            f"{n}.add2", "Add", [x, self.linear(f"{n}.down", mlp, HIDDEN, F)], (-1, HIDDEN)
        )

    def _attention(self, n: int, q: str, k: str, v: str) -> str:
        spec = self.spec
        caches = [f"key_cache.{n}", f"value_cache.{n}"]
        write = self.build.operator(
            f"{n}.write",
            "ScatterPaKvCache",
            zip("abcde", [k, f"{caches[0]}:0", "slot_mapping:0", v, f"{caches[1]}:0"]),
            [("key_cache", self.inputs[caches[0]]), ("value_cache", self.inputs[caches[1]])],
        )
        pages = self.build.constant("pages", np.array([-1, spec.page_size, K * D], np.int64))
        views = [
            self.op(
                f"{n}.pages{i}",
                "Reshape",
                [f"{write.name}:{i}", pages],
                (-1, spec.page_size, K * D),
            )
            for i in (0, 1)
        ]
        given = {
            "query": q,
            "key": views[0],
            "value": views[1],
            "atten_mask": self.build.constant("mask", causal_mask()),
            "actual_seq_lengths": "seq_ends:0",
            "actual_seq_lengths_kv": "kv_lens:0",
            "block_table": "block_table:0",
        }
        windowed = spec.window > 0
        node = self.build.operator(
            f"{n}.attention",
            "FusedInferAttentionScore",
            [(name, given.get(name, "")) for name in FIA_INPUTS],
            [
                ("attention_out", TensorDesc(spec.dtype, (-1, H, D))),
                ("softmax_lse", TensorDesc("float32", (-1, H, 1))),
            ],
            num_heads=H,
            num_key_value_heads=K,
            scale=D**-0.5,
            input_layout="TND",
            sparse_mode=4 if windowed else 3,
            pre_tokens=spec.window - 1 if windowed else 2147483647,
            next_tokens=0 if windowed else 2147483647,
            block_size=spec.page_size,
        )
        return f"{node.name}:0"

    def write(self, path: Path) -> Path:
        run_passes(self.build, [MergeGateUp()])
        blobs = place_weights(self.build, RandomWeights(self.shapes))
        write_om(path, ModelDef("tiny", [self.build.graph]), blobs)
        return path


class Run:
    """One executor with its caches: two sequences on scattered pages."""

    def __init__(self, kind: str, path: Path, spec: Spec, table: np.ndarray) -> None:
        self.om = read_om(path)
        self.executor = make_executor(kind, self.om, OPTIONS)
        self.table = table
        self.spec = spec
        cache_type = {"bfloat16": ml_dtypes.bfloat16}.get(spec.dtype, spec.dtype)
        shape = (int(table.max()) + 1, spec.page_size, K, D)
        self.caches = [np.zeros(shape, cache_type) for _ in range(2 * spec.layers)]

    def step(self, ids: list[list[int]], past: list[int]) -> tuple[np.ndarray, np.ndarray]:
        lengths = [len(row) for row in ids]
        positions = np.concatenate([np.arange(p, p + n) for p, n in zip(past, lengths)])
        rows = np.repeat(np.arange(len(ids)), lengths)
        size = self.spec.page_size
        slots = self.table[rows, positions // size] * size + positions % size
        ends = np.cumsum(lengths)
        arrays = [
            np.concatenate(ids).astype(np.int32),
            positions.astype(np.int32),
            slots.astype(np.int32),
            self.table,
            ends.astype(np.int64),
            (np.array(past) + lengths).astype(np.int64),
            (ends - 1).astype(np.int32),
            *self.caches,
        ]
        outputs = [np.zeros(4 * V * len(ids), np.uint8), np.zeros(4 * len(ids), np.uint8)]
        shapes = self.executor.execute(arrays, outputs)
        assert [tuple(shape) for shape in shapes] == [(len(ids), V), (len(ids),)]
        return outputs[0].view(np.float32).reshape(-1, V), outputs[1].view(np.int32)


def table_for(spec: Spec) -> np.ndarray:
    return np.array([[3, 1, 5, 7], [2, 6, 4, 8]], np.int32)


@pytest.mark.parametrize(
    "spec",
    [
        Spec(32),
        Spec(64),
        Spec(128),
        Spec(32, window=20),
        Spec(64, window=33),
    ],
    ids=str,
)
def test_openvino_agrees_with_oracle(tmp_path: Path, spec: Spec) -> None:
    path = TinyModel(spec).write(tmp_path / "model.om")
    runs = [Run(kind, path, spec, table_for(spec)) for kind in ("oracle", "openvino")]
    rng = np.random.default_rng(1)
    past = [0, 0]
    for lengths in ([40, 7], [1, 30], [1, 1], [25, 1], [1, 1]):
        ids = [rng.integers(0, V, n).tolist() for n in lengths]
        (wanted, best), (found, best_found) = (run.step(ids, past) for run in runs)
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
        np.testing.assert_array_equal(best, best_found)
        past = [p + n for p, n in zip(past, lengths)]


def test_bfloat16_is_near(tmp_path: Path) -> None:
    spec = Spec(32, dtype="bfloat16")
    path = TinyModel(spec).write(tmp_path / "model.om")
    runs = [Run(kind, path, spec, table_for(spec)) for kind in ("oracle", "openvino")]
    ids = [list(range(40)), list(range(7))]
    wanted, found = (run.step(ids, [0, 0])[0] for run in runs)
    scale = np.abs(wanted).max()
    assert np.abs(found - wanted).max() < 0.05 * scale


def test_page_16_only_on_oracle(tmp_path: Path) -> None:
    spec = Spec(16)
    path = TinyModel(spec).write(tmp_path / "model.om")
    Run("oracle", path, spec, table_for(spec)).step([[1, 2, 3], [4]], [0, 0])
    with pytest.raises(ExecutorError, match=r"page size 16.*multiple of 32"):
        Run("openvino", path, spec, table_for(spec))


def test_oracle_reports_unwritten_slot(tmp_path: Path) -> None:
    spec = Spec(32)
    path = TinyModel(spec).write(tmp_path / "model.om")
    run = Run("oracle", path, spec, table_for(spec))
    run.step([[1, 2, 3], [4, 5]], [0, 0])
    with pytest.raises(ExecutorError, match=r"sequence 1 reads position 2 \(page 2, offset 2\)"):
        run.step([[1], [2]], [3, 3])


def test_merged_gate_up_is_one_constant(tmp_path: Path) -> None:
    model = TinyModel(Spec(32))
    results = run_passes(model.build, [MergeGateUp()])
    assert results["merge-gate-up"].modified == 2
    kinds = [node.type for node in model.build.graph.nodes]
    assert "ConcatD" not in kinds
    desc = model.build.graph.node("0.gate_up_proj.weight").output_descs[0]
    assert desc.shape == (2 * F, HIDDEN)

"""A tiny paged model for the tests of the ACL side: its .om, its artefact and its executor.

The model says: the next token is (token + 1) % V. It writes the token into the key page and the
position into the value page, in place, like a real cache update.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pagedom.runtime.acl import ExecutorError
from pagedom.runtime.artifact import Artifact, building_artifact
from pagedom.runtime.manifest import Binding, Manifest, ModelGeometry, OutputBinding
from pagedom.runtime.om_file import Graph, Node, TensorDesc
from pagedom.runtime.om_file.ge_graph import ListListInt
from pagedom.runtime.om_file.model_def import ModelDef
from pagedom.runtime.om_file.om_writer import write_om

VOCAB, PAGE, HEADS, DIM, WIDTH = 16, 4, 1, 32, 8
CACHES = ("key_cache.0", "value_cache.0")

# name -> (dtype, symbolic shape)
STEP_INPUTS = {
    "input_ids": ("int32", ("T",)),
    "positions": ("int32", ("T",)),
    "slot_mapping": ("int32", ("T",)),
    "block_table": ("int32", ("B", "M")),
    "seq_ends": ("int64", ("B",)),
    "kv_lens": ("int64", ("B",)),
    "logits_rows": ("int32", ("R",)),
}
CACHE_SHAPE = ("P", PAGE, HEADS, DIM)
OUTPUTS = {"logits": ("float32", ("R", VOCAB)), "argmax": ("int32", ("R",))}


class FakeExecutor:
    """Executes the sample model. `delay_s`: duration of a run; `fail_with`: codes to fail with."""

    def __init__(self, om: Any = None, delay_s: float = 0.0) -> None:
        self.inputs = [TensorDesc(dtype, (), name) for name, (dtype, _) in STEP_INPUTS.items()]
        self.inputs += [TensorDesc("float32", (), name) for name in CACHES]
        self.outputs = [TensorDesc(dtype, (), name) for name, (dtype, _) in OUTPUTS.items()]
        self.delay_s = delay_s
        self.fail_with: list[int] = []
        self.runs = 0
        self.shapes: list[tuple[int, ...]] = []
        self.closed = False

    def execute(
        self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> list[tuple[int, ...]]:
        time.sleep(self.delay_s)
        self.runs += 1
        if self.fail_with:
            raise ExecutorError("the sample model was told to fail", self.fail_with.pop())
        self.shapes = [array.shape for array in inputs]
        ids, positions, slots, _, _, _, rows, key, value = inputs
        live = slots >= 0
        key.reshape(-1, HEADS * DIM)[slots[live]] = ids[live, None]
        value.reshape(-1, HEADS * DIM)[slots[live]] = positions[live, None]
        best = ((ids[rows] + 1) % VOCAB).astype(np.int32)
        logits = np.zeros((rows.size, VOCAB), np.float32)
        logits[np.arange(rows.size), best] = 1 + np.arange(rows.size)
        for target, array in zip(outputs, (logits, best)):
            target[: array.nbytes] = array.reshape(-1).view(np.uint8)
        return [logits.shape, best.shape]

    def close(self) -> None:
        self.closed = True


def sample_model(
    extents: dict[str, int] | None = None,
    gears: Sequence[dict[str, int]] = (),
    dtypes: dict[str, str] | None = None,
) -> ModelDef:
    """Return the graph; symbols in `extents` are fixed, the others are -1."""
    known = {"M": WIDTH, **(extents or {})}

    def desc(name: str, dtype: str, shape: tuple[Any, ...]) -> TensorDesc:
        dims = tuple(known.get(e, -1) if isinstance(e, str) else e for e in shape)
        return TensorDesc((dtypes or {}).get(name, dtype), dims, name)

    table = [(name, *row) for name, row in STEP_INPUTS.items()]
    table += [(name, "float32", CACHE_SHAPE) for name in CACHES]
    nodes = []
    for index, row in enumerate(table):
        one = desc(*row)
        nodes.append(Node(row[0], "Data", [], {"index": index}, [one], [one]))
    attrs: dict[str, Any] = {}
    if gears:
        rows = tuple(
            tuple(gear[e] for row in table for e in row[2] if e in gear and e not in known)
            for gear in gears
        )
        shape = TensorDesc("int32", (len(rows[0]),), "ascend_mbatch_shape_data")
        nodes.append(Node(shape.name, "Data", [], {"index": len(nodes)}, [shape], [shape]))
        attrs["_pagedom_gears"] = ListListInt(rows)
        attrs["_pagedom_gear_outputs"] = ListListInt(
            tuple(
                tuple(gear[e] for _, shape in OUTPUTS.values() for e in shape if e in gear)
                for gear in gears
            )
        )
    outs = [desc(name, *row) for name, row in OUTPUTS.items()]
    nodes.append(Node("head", "Sample", [f"{row[0]}:0" for row in table], {}, [], outs))
    nodes.append(Node("Node_Output", "NetOutput", ["head:0", "head:1"], {}, outs))
    return ModelDef("sample", [Graph("sample", nodes)], attrs)


def sample_manifest(gears: Sequence[dict[str, int]] = ()) -> Manifest:
    """Return the manifest that belongs to sample_model."""
    inputs = [Binding(name, name, dtype, shape) for name, (dtype, shape) in STEP_INPUTS.items()]
    inputs += [Binding(name, name, "float32", CACHE_SHAPE) for name in CACHES]
    return Manifest(
        schema=1,
        name="sample",
        target="host",
        soc=None,
        dtype="float32",
        page_size=PAGE,
        max_seq_len=PAGE * WIDTH,
        max_batch=8,
        table_width=WIDTH,
        cache_layout="PSKD",
        model=ModelGeometry("sample", VOCAB, 32, 1, HEADS, HEADS, DIM, None, ()),
        inputs=tuple(inputs),
        outputs=tuple(OutputBinding(name, name, *row) for name, row in OUTPUTS.items()),
        gears=tuple(gears),
    )


def write_sample_om(path: Path, **model: Any) -> str:
    """Write model.om alone and return its path."""
    write_om(path, sample_model(**model))
    return str(path)


def sample_artifact(folder: Path, gears: Sequence[dict[str, int]] = (), **model: Any) -> Artifact:
    """Write and open an artefact of the sample model."""
    with building_artifact(folder) as build:
        write_om(build.folder / "model.om", sample_model(gears=gears, **model))
        build.manifest = sample_manifest(gears)
    return Artifact.open(folder)

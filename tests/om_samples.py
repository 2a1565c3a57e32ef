"""Small model files for the tests of the container: built from bytes here, not by the product."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import numpy as np

from pagedom.runtime.artifact import building_artifact
from pagedom.runtime.manifest import Binding, Manifest, ModelGeometry, OutputBinding
from pagedom.runtime.om_file import Graph, Node, TensorDesc, WeightLayout, WeightRef, write_om
from pagedom.runtime.om_file.model_def import ModelDef

MANIFEST = Manifest(
    schema=1,
    name="demo",
    target="host",
    soc=None,
    dtype="float32",
    page_size=32,
    max_seq_len=64,
    max_batch=2,
    table_width=2,
    cache_layout="P,K,S,D",
    model=ModelGeometry("llama", 4, 3, 1, 1, 1, 3, None, ()),
    inputs=(Binding("x", "input_ids", "float32", ("T", 3)),),
    outputs=(OutputBinding("y", "logits", "float32", ("R", 4)),),
)

MODEL_DEF, WEIGHTS, TASKS, TBE, INOUT = 0, 1, 2, 3, 8


def header(body_bytes: int, **fields: int) -> bytes:
    """Return a header by offsets (facts of the format), independent of the product's struct."""
    raw = bytearray(256)
    old = fields.get("old", 0)
    struct.pack_into("<III", raw, 0, 0x444F4D49, 256, 0x10000000 if old else 0x20000000)
    struct.pack_into("<I", raw, 76, body_bytes if old else 0)
    raw[82] = fields.get("model_type", 0)
    raw[84:88] = b"demo"
    struct.pack_into("<I", raw, 152, 2)
    struct.pack_into("<I", raw, 156, 0 if old else fields.get("model_num", 1))
    struct.pack_into("<Q", raw, 184, 0 if old else body_bytes)
    raw[193] = fields.get("unknown", 0)
    return bytes(raw)


def wide(parts: list[tuple[int, bytes]]) -> bytes:
    """Return a 64-bit table and its partitions."""
    out, offset = struct.pack("<II", len(parts), 0), 0
    for kind, data in parts:
        out += struct.pack("<IIQQ", kind, 0, offset, len(data))
        offset += len(data)
    return out + b"".join(data for _, data in parts)


def tiny(parts: list[tuple[int, bytes]]) -> bytes:
    """Return a 32-bit table and its partitions."""
    out, offset = struct.pack("<I", len(parts)), 0
    for kind, data in parts:
        out += struct.pack("<III", kind, offset, len(data))
        offset += len(data)
    return out + b"".join(data for _, data in parts)


def file_of(*models: bytes, **fields: int) -> bytes:
    """Return a whole file of models made by wide() or tiny()."""
    body = b"".join(models)
    return header(len(body), **fields) + body


def linear_model(rows: int = -1) -> tuple[ModelDef, WeightLayout, np.ndarray]:
    """Return y = x @ w with x [rows, 3] and w [3, 4], its weights and w itself."""
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    layout = WeightLayout()
    offset = layout.add(weight.nbytes, lambda: weight, key="w")
    x = TensorDesc("float32", (rows, 3), "x")
    w = TensorDesc("float32", (3, 4))
    y = TensorDesc("float32", (rows, 4), "y")
    graph = Graph(
        "demo",
        [
            Node("x", "Data", [], {"index": 0}, [x], [x]),
            Node("w", "Const", [], {"value": WeightRef(offset, weight.nbytes, w)}, [], [w]),
            Node("mm", "MatMulV2", ["x:0", "w:0"], {"transpose_x1": False}, [x, w], [y]),
            Node("Node_Output", "NetOutput", ["mm:0"], {}, [y]),
        ],
    )
    return ModelDef("demo", [graph]), layout, weight


def build_artifact(output: Path, name: str = "demo") -> Path:
    """Write an artefact around linear_model() with one more file in a sub-folder."""
    model, layout, _ = linear_model()
    with building_artifact(output) as builder:
        write_om(builder.folder / "model.om", model, layout.blobs)
        (builder.folder / "tokenizer").mkdir()
        (builder.folder / "tokenizer" / "t.json").write_text("{}")
        builder.manifest = dataclasses.replace(MANIFEST, name=name)
    return output

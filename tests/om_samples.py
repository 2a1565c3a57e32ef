"""Small model files for the tests of the container: built from bytes here, not by the product."""

from __future__ import annotations

import struct

import numpy as np

from pagedom.runtime.om_file import Graph, Node, TensorDesc, WeightLayout, WeightRef
from pagedom.runtime.om_file.model_def import ModelDef

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

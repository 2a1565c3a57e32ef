"""A one-layer GE-IR artefact whose next token is a closed formula of all tokens it attends to.

    q = Q[token]      k = K[token] * KP[position]      v = V[token] * VP[position]
    next = argmax( softmax(q k / 8) v  W )        over positions 0 .. own position

Token and position multiply, so order counts; the reference is ten lines of float64 numpy that know
nothing of pages. A mixed-up row, table, slot or length gives another token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from pagedom.runtime.artifact import building_artifact
from pagedom.runtime.manifest import Binding, Manifest, ModelGeometry, OutputBinding
from pagedom.runtime.om_file.ge_graph import Graph, Node, TensorDesc
from pagedom.runtime.om_file.model_def import ModelDef
from pagedom.runtime.om_file.om_writer import write_om

VOCAB, HEADS, KV_HEADS, DIM = 89, 2, 1, 64
MAX_SEQ_LEN = 192
SCALE = 0.125
FIA_PLACES = 15  # up to and with block_table

STEP_INPUTS = {
    "input_ids": ("int32", ("T",)),
    "positions": ("int32", ("T",)),
    "slot_mapping": ("int32", ("T",)),
    "block_table": ("int32", ("B", "M")),
    "seq_ends": ("int64", ("B",)),
    "kv_lens": ("int64", ("B",)),
    "logits_rows": ("int32", ("R",)),
}


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


TABLES = {
    "q_table": _random(1, VOCAB, HEADS, DIM),
    "k_table": _random(2, VOCAB, KV_HEADS, DIM),
    "v_table": _random(3, VOCAB, KV_HEADS, DIM),
    "k_place": _random(4, MAX_SEQ_LEN, KV_HEADS, DIM),
    "v_place": _random(5, MAX_SEQ_LEN, KV_HEADS, DIM),
    "head": _random(6, VOCAB, HEADS * DIM),
}
EXACT = {name: table.astype(np.float64) for name, table in TABLES.items()}


@cache
def _next(tokens: tuple[int, ...]) -> int:
    t = EXACT
    ids, places = np.array(tokens), np.arange(len(tokens))
    keys = (t["k_table"][ids] * t["k_place"][places])[:, 0]
    values = (t["v_table"][ids] * t["v_place"][places])[:, 0]
    scores = t["q_table"][ids[-1]] @ keys.T * SCALE  # [HEADS, n]
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    attended = (weights / weights.sum(axis=1, keepdims=True)) @ values
    logits = t["head"] @ attended.reshape(-1)
    best, second = np.sort(logits)[[-1, -2]]
    assert best - second > 1e-4, "the formula is no judge of this sequence: take another prompt"
    return int(logits.argmax())


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """Return the answer of a sequence that runs alone; fails where two logits are too close."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(_next(tuple(tokens)))
    return tokens[len(prompt) :]


class _Builder:
    """Nodes in order; every tensor is float32 unless said otherwise."""

    def __init__(self, page_size: int) -> None:
        self.nodes: list[Node] = []
        self.page_size = page_size
        cache = ("float32", (-1, page_size, KV_HEADS, DIM))
        inputs = {name: (dtype, (-1,) * len(shape)) for name, (dtype, shape) in STEP_INPUTS.items()}
        inputs |= {"key_cache.0": cache, "value_cache.0": cache}
        for index, (name, (dtype, shape)) in enumerate(inputs.items()):
            desc = TensorDesc(dtype, shape, name)
            self.nodes.append(Node(name, "Data", [], {"index": index}, [desc], [desc]))

    def constant(self, name: str, array: np.ndarray) -> str:
        if all(node.name != name for node in self.nodes):
            desc = TensorDesc(array.dtype.name, array.shape)
            self.nodes.append(Node(name, "Const", [], {"value": array}, [], [desc]))
        return f"{name}:0"

    def op(
        self, name: str, kind: str, inputs: list[str], outputs: list[TensorDesc], **attrs: object
    ) -> str:
        known = {node.name: node for node in self.nodes}
        descs = []
        for text in inputs:
            producer, _, index = text.rpartition(":")
            absent = TensorDesc("float32", ())
            descs.append(known[producer].output_descs[int(index)] if producer else absent)
        self.nodes.append(Node(name, kind, inputs, dict(attrs), descs, outputs))
        return f"{name}:0"

    def rows(self, name: str, table: str, index: str, *shape: int) -> str:
        axis = self.constant("axis", np.array(0, np.int32))
        source = self.constant(table, TABLES[table]) if table in TABLES else f"{table}:0"
        desc = TensorDesc("float32", (-1, *shape))
        return self.op(name, "GatherV2", [source, index, axis], [desc])

    def reshape(self, name: str, source: str, *shape: int) -> str:
        target = self.constant(f"{name}.shape", np.array(shape, np.int64))
        return self.op(name, "Reshape", [source, target], [TensorDesc("float32", shape)])


def graph(page_size: int) -> Graph:
    """Return the graph."""
    b = _Builder(page_size)
    query = b.rows("query", "q_table", "input_ids:0", HEADS, DIM)
    written = []
    for short in ("k", "v"):
        content = b.rows(f"{short}_content", f"{short}_table", "input_ids:0", KV_HEADS, DIM)
        place = b.rows(f"{short}_rows", f"{short}_place", "positions:0", KV_HEADS, DIM)
        desc = TensorDesc("float32", (-1, KV_HEADS, DIM))
        written.append(b.op(f"{short}_new", "Mul", [content, place], [desc]))
    cache = TensorDesc("float32", (-1, page_size, KV_HEADS, DIM))
    b.op(
        "write",
        "ScatterPaKvCache",
        [written[0], "key_cache.0:0", "slot_mapping:0", written[1], "value_cache.0:0"],
        [cache, cache],
    )
    pages = [b.reshape(f"pages{i}", f"write:{i}", -1, page_size, KV_HEADS * DIM) for i in (0, 1)]
    inputs = [query, *pages] + [""] * (FIA_PLACES - 3)
    inputs[5], inputs[6], inputs[14] = "seq_ends:0", "kv_lens:0", "block_table:0"
    attended = b.op(
        "attention",
        "FusedInferAttentionScore",
        inputs,
        [TensorDesc("float32", (-1, HEADS, DIM)), TensorDesc("float32", (-1, HEADS, 1))],
        num_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        scale=SCALE,
        input_layout="TND",
        sparse_mode=3,
        pre_tokens=2147483647,
        next_tokens=2147483647,
        block_size=page_size,
    )
    flat = b.reshape("flat", attended, -1, HEADS * DIM)
    wanted = b.rows("wanted", flat[:-2], "logits_rows:0", HEADS * DIM)
    head = b.constant("head", TABLES["head"])
    logits = TensorDesc("float32", (-1, VOCAB))
    b.op("logits", "MatMulV2", [wanted, head], [logits], transpose_x2=True)
    last = b.constant("last", np.array(-1, np.int32))
    best = TensorDesc("int32", (-1,))
    b.op("next_ids", "ArgMaxV2", ["logits:0", last], [best])
    b.nodes.append(Node("Node_Output", "NetOutput", ["logits:0", "next_ids:0"], {}, [logits, best]))
    return Graph("formula", b.nodes)


def manifest(page_size: int) -> Manifest:
    """Return the manifest that belongs to the graph."""
    inputs = [Binding(name, name, dtype, shape) for name, (dtype, shape) in STEP_INPUTS.items()]
    inputs += [
        Binding(name, name, "float32", ("P", page_size, KV_HEADS, DIM))
        for name in ("key_cache.0", "value_cache.0")
    ]
    return Manifest(
        schema=1,
        name="formula",
        target="host",
        soc=None,
        dtype="float32",
        page_size=page_size,
        max_seq_len=MAX_SEQ_LEN,
        max_batch=8,
        table_width=-(-MAX_SEQ_LEN // page_size),
        cache_layout="BnBsH",
        model=ModelGeometry("formula", VOCAB, HEADS * DIM, 1, HEADS, KV_HEADS, DIM, None, ()),
        inputs=tuple(inputs),
        outputs=(
            OutputBinding("logits", "logits", "float32", ("R", VOCAB)),
            OutputBinding("next_ids", "argmax", "int32", ("R",)),
        ),
    )


def write_artifact(folder: Path, page_size: int) -> Path:
    """Write the artefact and return its folder."""
    with building_artifact(folder) as build:
        write_om(build.folder / "model.om", ModelDef("formula", [graph(page_size)]))
        build.manifest = manifest(page_size)
    return folder

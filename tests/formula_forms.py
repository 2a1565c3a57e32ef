"""Two layers of the closed formula of `formula_graph`, compiled to every kind of artefact.

    layer l    q = Q_l[token]   k = K_l[token] * KP_l[position]   v = V_l[token] * VP_l[position]
    next     = argmax( (attended_0 + attended_1) W )

    kind          model.om                                     cache
    plain         ranges                                       key_cache.l, value_cache.l, in place
    static        one shape, everything compiled in            key_cache.l, value_cache.l, in place
    gears         gears                                        key_pool, value_pool, in place
    rows          ranges                                       kv_rows_pool; new rows are outputs
    rows static   one shape                                    kv_rows_pool; new rows are outputs
    rows gears    gears                                        kv_rows_pool; new rows are outputs
    tokens static one shape; each token a sequence (310P)      key_cache.l, value_cache.l, in place
    tokens gears  gears; the same                              key_pool, value_pool, in place

The two of 310P are executed by the oracle alone: no host artefact has IncreFlashAttention.
The second layer makes a mixed-up layer visible: neither formula alone gives the answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
from formula_graph import DIM, HEADS, KV_HEADS, MAX_SEQ_LEN, SCALE, VOCAB

from pagedom.compiler.host import HostGraph, lower_by_passes, lower_for_host, write_host_om
from pagedom.compiler.host_forms import HostForm
from pagedom.compiler.lower.slot_update import SlotUpdate
from pagedom.compiler.lower.stack_caches import StackCaches
from pagedom.compiler.lower.token_attention import TokenAttention, TokenLimits
from pagedom.runtime.acl.constants import GEAR_INPUT_NAME
from pagedom.runtime.artifact import building_artifact
from pagedom.runtime.manifest import Binding, Manifest, ModelGeometry, OutputBinding

LAYERS = 2
GEARS = ((4, 4), (16, 5), (24, 5))
STATIC = (24, 5)
KINDS = ("plain", "static", "gears", "rows", "rows static", "rows gears")
TOKEN_KINDS = ("tokens static", "tokens gears")  # the oracle alone executes these
TOKEN_LIMITS = TokenLimits(("float32",), DIM, 1, HEADS)  # of no chip: the formula is in float32
INT32, FLOAT = ir.DataType.INT32, ir.DataType.FLOAT
Shape = tuple[int | str | None, ...]


def _random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


TABLES = {
    name: _random(place, *shape)
    for place, (name, shape) in enumerate(
        [("head", (HEADS * DIM, VOCAB))]
        + [
            (f"{stem}.{layer}", shape)
            for layer in range(LAYERS)
            for stem, shape in (
                ("q", (VOCAB, HEADS, DIM)),
                ("k", (VOCAB, KV_HEADS, DIM)),
                ("v", (VOCAB, KV_HEADS, DIM)),
                ("kp", (MAX_SEQ_LEN, KV_HEADS, DIM)),
                ("vp", (MAX_SEQ_LEN, KV_HEADS, DIM)),
            )
        ],
        start=40,
    )
}
EXACT = {name: table.astype(np.float64) for name, table in TABLES.items()}


@cache
def _next(tokens: tuple[int, ...]) -> int:
    ids, places = np.array(tokens), np.arange(len(tokens))
    total = np.zeros((HEADS, DIM))
    for layer in range(LAYERS):
        t = {stem: EXACT[f"{stem}.{layer}"] for stem in ("q", "k", "v", "kp", "vp")}
        keys = (t["k"][ids] * t["kp"][places])[:, 0]
        values = (t["v"][ids] * t["vp"][places])[:, 0]
        scores = t["q"][ids[-1]] @ keys.T * SCALE
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        total += (weights / weights.sum(axis=1, keepdims=True)) @ values
    logits = total.reshape(-1) @ EXACT["head"]
    best, second = np.sort(logits)[[-1, -2]]
    assert best - second > 1e-4, "the formula is no judge of this sequence: take another prompt"
    return int(logits.argmax())


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """Return the answer of a sequence that runs alone."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(_next(tuple(tokens)))
    return tokens[len(prompt) :]


class _Tape:
    """ONNX nodes in order."""

    def __init__(self, page_size: int) -> None:
        shapes: dict[str, Shape] = {
            "input_ids": ("T",),
            "positions": ("T",),
            "slot_mapping": ("T",),
            "block_table": ("B", "M"),
            "cu_seqlens": ("B+1",),
            "kv_lens": ("B",),
            "logits_rows": ("R",),
        }
        self.cache: Shape = ("P", page_size, KV_HEADS, DIM)
        caches = [f"{kind}_cache.{n}" for kind in ("key", "value") for n in range(LAYERS)]
        inputs = [_value(name, shape, INT32) for name, shape in shapes.items()]
        inputs += [_value(name, self.cache, FLOAT) for name in caches]
        self.inputs = {value.name: value for value in inputs}
        self.nodes: list[ir.Node] = []
        self.constants: dict[str, ir.Value] = {}

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        if name not in self.constants:
            kind = ir.DataType.from_numpy(array.dtype)
            value = _value(name, array.shape, kind)
            value.const_value = ir.tensor(array, name=name)
            self.constants[name] = value
        return self.constants[name]

    def op(
        self,
        kind: str,
        name: str,
        inputs: list[ir.Value],
        *shapes: Shape,
        domain: str = "",
        **attrs: object,
    ) -> ir.Value:
        outputs = [_value(f"{name}.{n}", shape, FLOAT) for n, shape in enumerate(shapes)]
        given = ir.convenience.convert_attributes(attrs)
        self.nodes.append(ir.Node(domain, kind, inputs, given, name=name, outputs=outputs))
        return outputs[0]

    def rows(self, name: str, table: str, index: str, *shape: int) -> ir.Value:
        source = self.constant(table, TABLES[table])
        return self.op("Gather", name, [source, self.inputs[index]], ("T", *shape), axis=0)

    def layer(self, n: int) -> ir.Value:
        """Attended rows [T, HEADS*DIM] of one layer."""
        query = self.rows(f"query.{n}", f"q.{n}", "input_ids", HEADS, DIM)
        new = []
        for stem in ("k", "v"):
            content = self.rows(f"{stem}_content.{n}", f"{stem}.{n}", "input_ids", KV_HEADS, DIM)
            place = self.rows(f"{stem}_place.{n}", f"{stem}p.{n}", "positions", KV_HEADS, DIM)
            new.append(self.op("Mul", f"{stem}_new.{n}", [content, place], ("T", KV_HEADS, DIM)))
        i = self.inputs
        written = [new[0], i[f"key_cache.{n}"], i["slot_mapping"], new[1], i[f"value_cache.{n}"]]
        self.op("KVUpdate", f"write.{n}", written, self.cache, self.cache, domain="pagedom")
        pages = list(self.nodes[-1].outputs)
        lengths = [i["block_table"], i["cu_seqlens"], i["kv_lens"]]
        attended = self.op(
            "PagedAttention",
            f"attention.{n}",
            [query, *pages, *lengths],
            ("T", HEADS, DIM),
            domain="pagedom",
            scale=SCALE,
        )
        shape = self.constant("flat", np.array([-1, HEADS * DIM], np.int64))
        return self.op("Reshape", f"flat.{n}", [attended, shape], ("T", HEADS * DIM))


def _value(name: str, shape: Shape, kind: ir.DataType) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(list(shape)), type=ir.TensorType(kind))


def onnx_model(page_size: int) -> ir.Model:
    """Return the formula as an exported model: our operators, caches as inputs."""
    tape = _Tape(page_size)
    both = tape.op("Add", "both", [tape.layer(0), tape.layer(1)], ("T", HEADS * DIM))
    rows = [both, tape.inputs["logits_rows"]]
    wanted = tape.op("Gather", "wanted", rows, ("R", HEADS * DIM), axis=0)
    head = tape.constant("head", TABLES["head"])
    logits = tape.op("MatMul", "logits_node", [wanted, head], ("R", VOCAB))
    logits.name = "logits"
    graph = ir.Graph(
        list(tape.inputs.values()),
        [logits],
        nodes=tape.nodes,
        initializers=list(tape.constants.values()),
        opset_imports={"": 18, "pagedom": 1},
        name="formula",
    )
    return ir.Model(graph, ir_version=9)


def _lower(kind: str, page_size: int, num_pages: int) -> HostGraph:
    width = -(-MAX_SEQ_LEN // page_size)
    model = onnx_model(page_size)
    cache_write = "rows" if kind.startswith("rows") else "inplace"
    geared = HostForm(GEARS, num_pages, cache_write, width)
    if kind.startswith("tokens"):
        gears = kind.endswith("gears")
        stack = [StackCaches(num_pages)] if gears else []
        passes = [TokenAttention(width, TOKEN_LIMITS), *stack, SlotUpdate(num_pages)]
        form = geared if gears else HostForm((), 0, cache_write, width)
        graph = lower_by_passes(model, "formula", form, passes)
        return graph if gears else _static(graph, num_pages, width)
    if kind.endswith("gears"):
        return lower_for_host(model, "formula", geared)
    form = HostForm((), 0, cache_write, width if cache_write == "rows" else 0)
    graph = lower_for_host(model, "formula", form)
    return _static(graph, num_pages, width) if kind.endswith("static") else graph


def _static(graph: HostGraph, num_pages: int, width: int) -> HostGraph:
    """Compile the one shape into inputs and outputs."""
    tokens, seqs = STATIC
    known = {"T": tokens, "B": seqs, "B+1": seqs + 1, "R": seqs, "P": num_pages, "M": width}

    def fixed(shape: Shape) -> tuple[int, ...]:
        return tuple(known.get(extent, extent) for extent in shape)

    inputs = {name: fixed(shape) for name, shape in graph.inputs.items()}
    outputs = {name: fixed(shape) for name, shape in graph.outputs.items()}
    ge = graph.build.graph
    for node in ge.data_nodes:
        desc = dataclasses.replace(node.output_descs[0], shape=inputs[node.name])
        node.input_descs[0] = node.output_descs[0] = desc
    for text, shape in zip(ge.net_output.inputs, outputs.values()):
        producer, _, index = text.rpartition(":")
        descs = ge.node(producer).output_descs
        descs[int(index)] = dataclasses.replace(descs[int(index)], shape=shape)
    return dataclasses.replace(graph, inputs=inputs, outputs=outputs)


def _manifest(kind: str, graph: HostGraph, page_size: int, num_pages: int) -> Manifest:
    gears = {"gears": GEARS, "static": (STATIC,)}.get(kind.split()[-1], ())
    data = {n.name: n.output_descs[0] for n in graph.build.graph.data_nodes}
    edges = graph.build.graph.net_output.inputs
    roles = {"logits": "logits", "next_ids": "argmax", "new_rows": "new_rows"}
    return Manifest(
        schema=1,
        name=kind,
        target="host",
        soc=None,
        dtype="float32",
        page_size=page_size,
        max_seq_len=MAX_SEQ_LEN,
        max_batch=max((seqs for _, seqs in gears), default=8),
        table_width=-(-MAX_SEQ_LEN // page_size),
        cache_layout=kind,
        model=ModelGeometry("formula", VOCAB, DIM, LAYERS, HEADS, KV_HEADS, DIM, None, ()),
        inputs=tuple(
            Binding(name, name, data[name].dtype, shape)
            for name, shape in graph.inputs.items()
            if name != GEAR_INPUT_NAME
        ),
        outputs=tuple(
            OutputBinding(name, roles[name], graph.build.graph.input_desc(edge).dtype, shape)
            for edge, (name, shape) in zip(edges, graph.outputs.items())
        ),
        gears=tuple({"T": tokens, "B": seqs, "R": seqs} for tokens, seqs in gears),
        num_pages=num_pages if gears else 0,
        padding_slot=0 if kind.startswith("tokens") else -1,
    )


def write_artifact(folder: Path, kind: str, page_size: int, num_pages: int) -> Path:
    """Write an artefact of a kind and return its folder; P is compiled in where it has gears."""
    graph = _lower(kind, page_size, num_pages)
    with building_artifact(folder) as build:
        write_host_om(build.folder / "model.om", graph, _NoCheckpoint(), "test")
        build.manifest = _manifest(kind, graph, page_size, num_pages)
    return folder


class _NoCheckpoint:
    """The tables are constants of the graph."""

    def cast(self, name: str, dtype: str) -> np.ndarray:
        raise KeyError(name)

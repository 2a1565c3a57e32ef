"""From a GE-IR graph to an OpenVINO model around its PagedAttentionExtension.

That operator writes the step's keys and values itself, so ScatterPaKvCache and the reshapes
between it and FusedInferAttentionScore vanish:

    q ─────────────────────────────┐
    k, v ─> ScatterPaKvCache ─> Reshape x2 ─> FusedInferAttentionScore     becomes
    q, k, v, caches, CSR tables ─> PagedAttentionExtension

The block size of the kernel is fixed at 32 tokens; a page of 64 or 128 is 2 or 4 neighbouring
blocks. The order of tokens and heads inside a page is the kernel's own: [K,32,D] a block.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op import Constant, Parameter, _PagedAttentionExtension

from ...om_file.ge_graph import Node
from ..error_table import GE_LOAD_MODEL
from ..executor import Array, ExecutorError
from .graph_view import GraphView, Source, refuse_unknown_operators
from .openvino_ops import KERNELS, constant, swiglu
from .oracle_attention import ACTUAL_SEQ_LENGTHS, ACTUAL_SEQ_LENGTHS_KV, BAND, BLOCK_TABLE

BLOCK = 32  # tokens of a kernel block
FUSED = frozenset({"ScatterPaKvCache", "FusedInferAttentionScore"})
KNOWN = frozenset(KERNELS) | FUSED | {"Cast"}
FLOATS = frozenset({"float32", "float16", "bfloat16"})

ELEMENT = {
    "float32": ov.Type.f32,
    "float16": ov.Type.f16,
    "bfloat16": ov.Type.bf16,
    "int32": ov.Type.i32,
    "int64": ov.Type.i64,
    "bool": ov.Type.boolean,
}
# float16 caches hold bf16 values (see openvino.py): the bytes of a page are the executor's own.
CACHE_ELEMENT = {"float32": ov.Type.f32, "float16": ov.Type.bf16, "bfloat16": ov.Type.bf16}


@dataclass(frozen=True)
class Tables:
    """The names of the Data nodes from which the kernel's tables are made."""

    seq_ends: str
    kv_lens: str
    block_table: str


@dataclass
class Translation:
    """An OpenVINO model and how to feed it."""

    model: ov.Model
    direct: list[str]  # Data nodes that are parameters as they are
    caches: list[str]  # Data nodes that are caches
    page_size: int
    tables: Tables | None
    argmaxes: dict[int, int]  # output position -> position of the logits output it is taken of
    results: list[int]  # output position of each result of the model
    keep: list[Any] = field(default_factory=list)  # arrays whose memory the model's constants use


class Translator:
    """Translates one graph; see the module's text."""

    def __init__(self, view: GraphView) -> None:
        refuse_unknown_operators(view, KNOWN, "openvino")
        self.view = view
        self.nodes = {node.name: node for node in view.graph.nodes}
        self.values: dict[Source, Any] = {}
        self.parameters: dict[str, Any] = {}
        self.table_parameters: dict[str, Any] = {}
        self.keep: list[Any] = []
        self.caches: dict[str, None] = {}  # in order of first use
        self.tables: Tables | None = None
        self.page_size = 0

    def translate(self) -> Translation:
        """Return the model; raises ExecutorError for a form that the kernel cannot run."""
        results, argmaxes, places = self._split_results()
        for node in self.view.operators:
            if node.type != "ScatterPaKvCache" and not self._is_argmax_result(node):
                self._emit(node)
        outputs = [ops.result(self._value(source)) for source in results]
        parameters = list(self.parameters.values()) + list(self.table_parameters.values())
        model = ov.Model(outputs, parameters, self.view.graph.name)
        direct = [name for name in self.parameters if name not in self.caches]
        return Translation(
            model,
            direct,
            list(self.caches),
            self.page_size,
            self.tables,
            argmaxes,
            places,
            self.keep,
        )

    def _split_results(self) -> tuple[list[Source], dict[int, int], list[int]]:
        """Set ArgMaxV2 results apart: numpy takes them from the logits buffer, without a copy."""
        argmaxes: dict[int, int] = {}
        results, places = [], []
        for place, (name, index) in enumerate(self.view.results):
            node = self.nodes[name]
            edge = node.edges()[0] if node.type == "ArgMaxV2" else None
            if edge is not None and (edge.producer, edge.index) in self.view.results:
                argmaxes[place] = self.view.results.index((edge.producer, edge.index))
            else:
                results.append((name, index))
                places.append(place)
        return results, argmaxes, places

    def _is_argmax_result(self, node: Node) -> bool:
        edge = node.edges()[0] if node.type == "ArgMaxV2" else None
        return (
            edge is not None
            and (node.name, 0) in self.view.results
            and (edge.producer, edge.index) in self.view.results
        )

    def _emit(self, node: Node) -> None:
        if node.type == "FusedInferAttentionScore":
            self.values[(node.name, 0)] = self._attention(node)
            return
        if node.type == "Reshape" and self._is_cache_reshape(node):
            return
        if node.type == "SwiGlu" and (halves := self._split_gate_up(node)):
            self.values[(node.name, 0)] = swiglu(*halves)[0]
            return
        if node.type == "MatMulV2" and self._feeds_only_swiglu(node):
            return
        inputs = [None if e is None else self._value((e.producer, e.index)) for e in node.edges()]
        if node.type == "Cast":
            outputs = self._cast(node, inputs)
        else:
            outputs = KERNELS[node.type](node, inputs)
        for index, output in enumerate(outputs):
            self.values[(node.name, index)] = output

    def _value(self, source: Source) -> Any:
        """Return the output of an edge; parameters and constants are made at their first use."""
        if source not in self.values:
            node = self.nodes[source[0]]
            if node.type in ("Const", "Constant"):
                self.values[source] = self._constant(node)
            elif node.type == "Data":
                self.values[source] = self._parameter(node)
            else:
                raise ExecutorError(
                    f"{source[0]} ({node.type}) output {source[1]} is used in a way that the "
                    "openvino executor does not run",
                    GE_LOAD_MODEL,
                )
        return self.values[source]

    def _parameter(self, node: Node) -> Any:
        desc = node.output_descs[0]
        parameter = self._new_parameter(node.name, ELEMENT[desc.dtype], list(desc.shape))
        self.parameters[node.name] = parameter
        return parameter.output(0)

    def _new_parameter(self, name: str, element: Any, shape: list[int]) -> Any:
        parameter = Parameter(element, ov.PartialShape(shape))
        parameter.set_friendly_name(name)
        parameter.output(0).get_tensor().set_names({name})
        return parameter

    def _constant(self, node: Node) -> Any:
        return self._shared_constant(self.view.constant(node))

    def _shared_constant(self, array: Array) -> Any:
        """A constant on the file's own memory; floats other than f32 are converted when compiled.

        The array must live until the model is compiled: two constants on one freed buffer would
        be merged as equal.
        """
        array = np.ascontiguousarray(array)
        self.keep.append(array)
        element = ELEMENT[array.dtype.name]
        # OpenVINO shares writeable memory only; it never writes to a constant, and the file's
        # map is read-only, so the same bytes are shown to it through their address.
        size = max(array.nbytes, 1)
        raw = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(array.ctypes.data))
        shown = raw[: array.nbytes].view(np.dtype(f"u{array.itemsize}"))
        tensor = ov.Tensor(shown, ov.Shape(array.shape), element)
        node = Constant(tensor, shared_memory=True)
        if array.dtype.name in FLOATS and element != ov.Type.f32:
            return ops.convert(node, "f32").output(0)
        return node.output(0)

    def _cast(self, node: Node, inputs: list[Any]) -> list[Any]:
        """All floats are f32 in the model (the precision hint decides what is computed)."""
        wanted = node.output_descs[0].dtype
        if wanted in FLOATS:
            wanted = "float32"
        if ELEMENT[wanted] == inputs[0].get_element_type():
            return [inputs[0]]
        return [ops.convert(inputs[0], ELEMENT[wanted].to_string()).output(0)]

    # -- SwiGlu on one merged projection: gate and up rows are two views of the same constant.

    def _merged_projection(self, node: Node) -> Node | None:
        edge = node.edges()[0]
        producer = self.nodes[edge.producer] if edge else None
        return producer if producer is not None and producer.type == "MatMulV2" else None

    def _split_gate_up(self, node: Node) -> tuple[Any, Any] | None:
        """Two products with half of the weight's rows each, instead of one and a split (a copy)."""
        projection = self._merged_projection(node)
        if projection is None or not self._feeds_only_swiglu(projection):
            return None
        x = self._value(_source(projection.inputs[0]))
        weight = self.view.constant(self.nodes[_source(projection.inputs[1])[0]])
        bias = None
        if len(projection.inputs) > 2:
            bias = self.view.constant(self.nodes[_source(projection.inputs[2])[0]])
        half = weight.shape[0] // 2
        products = []
        for rows in (slice(0, half), slice(half, None)):
            product = ops.matmul(x, self._shared_constant(weight[rows]), False, True)
            if bias is not None:
                product = ops.add(product, self._shared_constant(bias[rows]))
            products.append(product.output(0))
        return products[0], products[1]

    def _feeds_only_swiglu(self, node: Node) -> bool:
        uses = self.view.graph.consumers(node.name)
        weight = self.nodes[node.inputs[1].rpartition(":")[0]]
        return (
            len(uses) == 1
            and uses[0][0].type == "SwiGlu"
            and bool(node.attrs.get("transpose_x2"))
            and weight.type in ("Const", "Constant")
        )

    # -- attention

    def _is_cache_reshape(self, node: Node) -> bool:
        edge = node.edges()[0]
        return edge is not None and self.nodes[edge.producer].type == "ScatterPaKvCache"

    def _writer(self, node: Node, place: int) -> Node:
        """The ScatterPaKvCache behind input `place` of an attention node."""
        name = node.inputs[place].rpartition(":")[0]
        while self.nodes[name].type == "Reshape":
            name = self.nodes[name].inputs[0].rpartition(":")[0]
        if self.nodes[name].type != "ScatterPaKvCache":
            raise ExecutorError(
                f"{node.name}: input {place} comes from {name} ({self.nodes[name].type}); the "
                "openvino executor runs attention only on the outputs of ScatterPaKvCache",
                GE_LOAD_MODEL,
            )
        return self.nodes[name]

    def _data_name(self, node: Node, place: int) -> str:
        name = node.inputs[place].rpartition(":")[0]
        if self.nodes[name].type != "Data":
            raise ExecutorError(
                f"{node.name}: input {place} must be a graph input, is {name} "
                f"({self.nodes[name].type})",
                GE_LOAD_MODEL,
            )
        return name

    def _attention(self, node: Node) -> Any:
        writer = self._writer(node, 1)
        tables = Tables(
            self._data_name(node, ACTUAL_SEQ_LENGTHS),
            self._data_name(node, ACTUAL_SEQ_LENGTHS_KV),
            self._data_name(node, BLOCK_TABLE),
        )
        if self.tables not in (None, tables):
            raise ExecutorError(
                f"{node.name} uses other tables than the layers before", GE_LOAD_MODEL
            )
        self.tables = tables
        self.page_size = int(node.attrs["block_size"])
        if self.page_size % BLOCK:
            raise ExecutorError(
                f"page size {self.page_size}: the openvino executor needs a multiple of {BLOCK} "
                "(its attention kernel's block); compile with such a page size or use the oracle",
                GE_LOAD_MODEL,
            )
        heads = int(node.attrs["num_heads"])
        kv_heads = int(node.attrs.get("num_key_value_heads", 0)) or heads
        dim = int(node.output_descs[0].shape[-1])
        q, k, v = (
            self._rows(self._value(_source(text)), count * dim)
            for text, count in (
                (node.inputs[0], heads),
                (writer.inputs[0], kv_heads),
                (writer.inputs[3], kv_heads),
            )
        )
        caches = [self._cache(writer, place, kv_heads, dim) for place in (1, 4)]
        window = 0
        if node.attrs.get("sparse_mode") == BAND:
            window = int(node.attrs["pre_tokens"]) + 1
        extension = self._extension([q, k, v, *caches], float(node.attrs["scale"]), window)
        info = extension.get_rt_info()
        info["k_head_size"] = info["v_head_size"] = dim
        info["num_k_heads"] = info["num_v_heads"] = kv_heads
        out = ops.reshape(extension.output(0), constant([-1, heads, dim], np.int64), False)
        return out.output(0)

    def _rows(self, value: Any, width: int) -> Any:
        return ops.reshape(value, constant([-1, width], np.int64), False).output(0)

    def _cache(self, writer: Node, place: int, kv_heads: int, dim: int) -> Any:
        name = self._data_name(writer, place)
        if name not in self.caches:
            desc = self.nodes[name].output_descs[0]
            self.caches[name] = None
            self.parameters[name] = self._new_parameter(
                name, CACHE_ELEMENT[desc.dtype], [-1, kv_heads, BLOCK, dim]
            )
        return self.parameters[name].output(0)

    def _table(self, name: str, rank: int = 1) -> Any:
        if name not in self.table_parameters:
            shape = [-1] * rank
            self.table_parameters[name] = self._new_parameter(name, ov.Type.i32, shape)
        return self.table_parameters[name].output(0)

    def _extension(self, rows_and_caches: list[Any], scale: float, window: int) -> Any:
        """The 28 inputs of openvino 2026.4's PagedAttentionExtension; the unused ones are empty."""

        def empty(kind: type, rank: int = 1) -> Any:
            return ops.constant(np.zeros((0,) * rank, kind)).output(0)

        def scalar(value: float, kind: type) -> Any:
            return constant(value, kind).output(0)

        i32, f32, u8 = np.int32, np.float32, np.uint8
        return _PagedAttentionExtension(
            [
                *rows_and_caches,
                self._table("past_lens"),
                self._table("subsequence_begins"),
                self._table("block_indices"),
                self._table("block_indices_begins"),
                scalar(scale, f32),
                scalar(window, i32),  # sliding_window
                empty(f32),  # alibi_slopes
                self._table("max_context_len", 0),
                empty(i32),  # score_aggregation_window
                empty(i32),  # rotated_block_indices
                empty(i32, 2),  # rotation_deltas
                empty(f32, 2),  # rotation_trig_lut
                empty(f32),  # xattention_threshold
                scalar(128, i32),  # xattention_block_size
                scalar(16, i32),  # xattention_stride
                empty(f32),  # sinks
                scalar(0, i32),  # adaptive_rkv_start_size
                empty(i32),  # adaptive_rkv_evictable_sizes
                empty(i32),  # adaptive_rkv diversity indices
                empty(i32),  # their begins
                empty(i32),  # token_type_ids
                empty(u8),  # qq_bias
                empty(i32),  # qq_bias_begins
            ]
        )


def _source(text: str) -> Source:
    producer, _, index = text.rpartition(":")
    return producer, int(index)

"""From a GE-IR graph to an OpenVINO model around its PagedAttentionExtension.

That operator writes the step's keys and values itself, so ScatterPaKvCache and the reshapes
between it and FusedInferAttentionScore vanish:

    q ─────────────────────────────┐
    k, v ─> ScatterPaKvCache ─> Reshape x2 ─> FusedInferAttentionScore     becomes
    q, k, v, caches, CSR tables ─> PagedAttentionExtension

The block size of the kernel is fixed at 32 tokens; a page of 64 or 128 is 2 or 4 neighbouring
blocks. The order of tokens and heads inside a page is the kernel's own: [K,32,D] a block.
Only what the results need is translated, so what stands in front of tables and slots vanishes too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.op import Constant, Parameter

from ...om_file.ge_graph import Node
from ..error_table import GE_LOAD_MODEL
from ..executor import Array, ExecutorError
from .graph_view import GraphView, Source, refuse_unknown_operators
from .openvino_attention import KEYS, VALUES, AttentionGraph, CacheView, Tables, extension
from .openvino_base import KERNELS as BASE_KERNELS
from .openvino_ops import KERNELS as FUSIBLE_KERNELS
from .openvino_ops import Kernel, constant, swiglu
from .oracle_attention import BAND
from .page_sizes import OPENVINO_BLOCK

KERNELS: Mapping[str, Kernel] = MappingProxyType({**BASE_KERNELS, **FUSIBLE_KERNELS})
FUSED = frozenset({"ScatterPaKvCache", "FusedInferAttentionScore"})
KNOWN = frozenset(KERNELS) | FUSED | {"Cast"}
TABLE_NAMES = (
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
)
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


@dataclass
class Translation:
    """An OpenVINO model and how to feed it."""

    model: ov.Model
    direct: list[str]  # Data nodes that are parameters as they are
    caches: dict[str, list[CacheView]]  # Data nodes that are caches, their views by first page
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
        self.around = AttentionGraph(view)
        self.nodes = self.around.nodes
        self.values: dict[Source, Any] = {}
        self.parameters: dict[str, Any] = {}
        self.table_parameters: dict[str, Any] = {}
        self.keep: list[Any] = []
        self.caches: dict[str, list[CacheView]] = {}  # in order of first use
        self.tables: Tables | None = None
        self.page_size = 0

    def translate(self) -> Translation:
        """Return the model; raises ExecutorError for a form that the kernel cannot run."""
        results, argmaxes, places = self._split_results()
        needed = self._needed(results)
        for node in self.view.operators:
            if node.name in needed:
                self._emit(node)
        outputs = [ops.result(self._value(source)) for source in results]
        parameters = list(self.parameters.values()) + list(self.table_parameters.values())
        model = ov.Model(outputs, parameters, self.view.graph.name)
        views = {each.parameter for group in self.caches.values() for each in group}
        direct = [name for name in self.parameters if name not in views]
        for group in self.caches.values():
            group.sort(key=lambda each: each.first_page)
        return Translation(
            model,
            direct,
            self.caches,
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

    def _needed(self, results: list[Source]) -> set[str]:
        """Names of the nodes that results depend on; attention needs q, and its writer's k, v."""
        needed: set[str] = set()
        waiting = [name for name, _ in results]
        while waiting:
            node = self.nodes[waiting.pop()]
            if node.name in needed:
                continue
            needed.add(node.name)
            texts = list(node.inputs)
            if node.type == "FusedInferAttentionScore":
                writer = self.around.writer(node)
                texts = [node.inputs[0], writer.inputs[0], writer.inputs[3]]
            waiting += [_source(text)[0] for text in texts if text]
        return needed

    def _emit(self, node: Node) -> None:
        if node.type == "FusedInferAttentionScore":
            self.values[(node.name, 0)] = self._attention(node)
            return
        if node.type == "SwiGlu" and (halves := self._split_gate_up(node)):
            self.values[(node.name, 0)] = swiglu(*halves)[0]
            return
        if node.type == "MatMulV2" and self._feeds_only_swiglu(node):
            return
        inputs = [None if e is None else self._value((e.producer, e.index)) for e in node.edges()]
        if node.type not in _KEEP_SHORT:
            inputs = [_as_f32(value) for value in inputs]
        if node.type == "Cast":
            outputs = self._cast(node, inputs)
        else:
            outputs = KERNELS[node.type](node, inputs)
        if node.type == "GatherV2":
            outputs = [_as_f32(value) for value in outputs]
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
        array = np.ascontiguousarray(array).reshape(array.shape)  # a scalar would become [1]
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

    def _attention(self, node: Node) -> Any:
        writer = self.around.writer(node)
        tables, first_page = self.around.tables(node)
        if self.tables not in (None, tables):
            raise ExecutorError(
                f"{node.name} uses other tables than the layers before", GE_LOAD_MODEL
            )
        self.tables = tables
        self.page_size = int(node.attrs["block_size"])
        if self.page_size % OPENVINO_BLOCK:
            raise ExecutorError(
                f"page size {self.page_size}: the openvino executor needs a multiple of "
                f"{OPENVINO_BLOCK} (its attention kernel's block); compile with such a page size "
                "or use the oracle",
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
        caches = []
        for place in (KEYS, VALUES):
            cache = self.around.cache(writer, place, first_page)
            caches.append(self._cache(cache, kv_heads, dim))
        window = 0
        if node.attrs.get("sparse_mode") == BAND:
            window = int(node.attrs["pre_tokens"]) + 1
        made = {name: self._table(name) for name in TABLE_NAMES}
        attention = extension([q, k, v, *caches], made, float(node.attrs["scale"]), window)
        info = attention.get_rt_info()
        info["k_head_size"] = info["v_head_size"] = dim
        info["num_k_heads"] = info["num_v_heads"] = kv_heads
        out = ops.reshape(attention.output(0), constant([-1, heads, dim], np.int64), False)
        return out.output(0)

    def _rows(self, value: Any, width: int) -> Any:
        return ops.reshape(value, constant([-1, width], np.int64), False).output(0)

    def _cache(self, view: CacheView, kv_heads: int, dim: int) -> Any:
        if view.parameter not in self.parameters:
            desc = self.nodes[view.data].output_descs[0]
            self.caches.setdefault(view.data, []).append(view)
            self.parameters[view.parameter] = self._new_parameter(
                view.parameter, CACHE_ELEMENT[desc.dtype], [-1, kv_heads, OPENVINO_BLOCK, dim]
            )
        return self.parameters[view.parameter].output(0)

    def _table(self, name: str) -> Any:
        if name not in self.table_parameters:
            shape = [] if name == "max_context_len" else [-1]
            self.table_parameters[name] = self._new_parameter(name, ov.Type.i32, shape)
        return self.table_parameters[name].output(0)


# A pool in 16 bits is gathered as it is: converted first, all of its pages would be.
_KEEP_SHORT = frozenset({"Reshape", "GatherV2"})
_SHORT = (ov.Type.f16, ov.Type.bf16)


def _as_f32(value: Any) -> Any:
    """All floats are f32 in the model (the precision hint decides what is computed)."""
    if value is None or value.get_element_type() not in _SHORT:
        return value
    return ops.convert(value, "f32").output(0)


def _source(text: str) -> Source:
    producer, _, index = text.rpartition(":")
    return producer, int(index)

"""OpenVINO's PagedAttentionExtension, and how its caches and tables are found in a GE-IR graph.

Layers whose pools are chained share one Data and have a page offset each:

    key_pool ─> ScatterPaKvCache 0 ─> ScatterPaKvCache 1 …   block_table + l*P, slots + l*P*S

The kernel gets a view of the pool that starts at the layer's first page, so its block ids need no
offset: the Add and SelectV2 in front of tables and slots are not executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from openvino import opset13 as ops
from openvino.op import _PagedAttentionExtension

from ...om_file.ge_graph import CONST_TYPES, Node
from ..error_table import GE_LOAD_MODEL
from ..executor import ExecutorError
from .graph_view import GraphView, table_source
from .openvino_ops import constant
from .oracle_attention import ACTUAL_SEQ_LENGTHS, ACTUAL_SEQ_LENGTHS_KV, BLOCK_TABLE

KEYS, SLOTS, VALUES = 1, 2, 4  # inputs of ScatterPaKvCache


@dataclass(frozen=True)
class Tables:
    """The names of the Data nodes from which the kernel's tables are made."""

    seq_ends: str
    kv_lens: str
    block_table: str


@dataclass(frozen=True)
class CacheView:
    """A parameter of the model: the pages of a Data from `first_page` on."""

    parameter: str
    data: str
    first_page: int


class AttentionGraph:
    """Answers what stands around an attention node; raises ExecutorError for other forms."""

    def __init__(self, view: GraphView) -> None:
        self.view = view
        self.nodes = {node.name: node for node in view.graph.nodes}

    def writer(self, node: Node) -> Node:
        """The ScatterPaKvCache whose pages an attention node reads."""
        name = self._producer(node, 1)
        while self.nodes[name].type == "Reshape":
            name = self._producer(self.nodes[name], 0)
        if self.nodes[name].type != "ScatterPaKvCache":
            raise ExecutorError(
                f"{node.name}: input 1 comes from {name} ({self.nodes[name].type}); the "
                "openvino executor runs attention only on the outputs of ScatterPaKvCache",
                GE_LOAD_MODEL,
            )
        return self.nodes[name]

    def tables(self, node: Node) -> tuple[Tables, int]:
        """The Data behind an attention node's tables, and the first page of its layer."""
        table, first_page = table_source(self.view, node, BLOCK_TABLE)
        lengths = [self._data(node, at) for at in (ACTUAL_SEQ_LENGTHS, ACTUAL_SEQ_LENGTHS_KV)]
        return Tables(lengths[0], lengths[1], table), first_page

    def cache(self, writer: Node, place: int, first_page: int) -> CacheView:
        """The pool that a writer updates at `place`, through the writers before it."""
        node = writer
        while self.nodes[self._producer(node, place)].type == "ScatterPaKvCache":
            node = self.nodes[self._producer(node, place)]
        data = self._data(node, place)
        slots, wanted = self._slot_offset(writer), first_page * self._page_size(data)
        if slots != wanted:
            raise ExecutorError(
                f"{writer.name} writes {slots} slots behind slot_mapping, its attention reads "
                f"{wanted} behind: the openvino executor writes where it reads",
                GE_LOAD_MODEL,
            )
        return CacheView(f"{data}@{first_page}" if first_page else data, data, first_page)

    def _page_size(self, data: str) -> int:
        return int(self.nodes[data].output_descs[0].shape[1])

    def _slot_offset(self, writer: Node) -> int:
        """Slots added to slot_mapping: SelectV2(slot >= 0, slot + offset, slot), or none."""
        node = self.nodes[self._producer(writer, SLOTS)]
        if node.type != "SelectV2":
            return 0
        moved = self.nodes[self._producer(node, 1)]
        shift = self.nodes[self._producer(moved, 1)] if moved.type == "Add" else moved
        if shift.type not in CONST_TYPES:
            raise ExecutorError(f"{writer.name}: slots come from {node.name}", GE_LOAD_MODEL)
        return int(self.view.constant(shift).reshape(-1)[0])

    def _producer(self, node: Node, place: int) -> str:
        return node.inputs[place].rpartition(":")[0]

    def _data(self, node: Node, place: int) -> str:
        name = self._producer(node, place)
        if self.nodes[name].type != "Data":
            raise ExecutorError(
                f"{node.name}: input {place} must be a graph input, is {name} "
                f"({self.nodes[name].type})",
                GE_LOAD_MODEL,
            )
        return name


def extension(
    rows_and_caches: list[Any], tables: Mapping[str, Any], scale: float, window: int
) -> Any:
    """The 28 inputs of openvino 2026.4's PagedAttentionExtension; the unused ones are empty.

    Args:
        rows_and_caches: q, k, v as rows, key cache, value cache.
        tables: past_lens, subsequence_begins, block_indices, block_indices_begins and
            max_context_len.
        scale: of the scores.
        window: tokens a row sees, 0 = all.
    """

    def empty(kind: type, rank: int = 1) -> Any:
        return ops.constant(np.zeros((0,) * rank, kind)).output(0)

    def scalar(value: float, kind: type) -> Any:
        return constant(value, kind).output(0)

    i32, f32, u8 = np.int32, np.float32, np.uint8
    return _PagedAttentionExtension(
        [
            *rows_and_caches,
            tables["past_lens"],
            tables["subsequence_begins"],
            tables["block_indices"],
            tables["block_indices_begins"],
            scalar(scale, f32),
            scalar(window, i32),  # sliding_window
            empty(f32),  # alibi_slopes
            tables["max_context_len"],
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

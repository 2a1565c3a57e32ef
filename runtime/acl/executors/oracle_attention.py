"""Cache writers and paged attention of GE-IR for the oracle executor.

The rules are those of the operators' documents (aclnnFusedInferAttentionScoreV4,
aclnnIncreFlashAttentionV4, scatter_pa_kv_cache_proto.h, matrix_calculation_ops.h); each refusal
names the rule that the graph or the step breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ....graph_ops import oracles
from ...om_file.ge_graph import Node
from ..executor import Array, ExecutorError
from .oracle_math import Kernel

# Which inputs of a cache-writing operator are updated in place.
CACHE_INPUTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"ScatterPaKvCache": (1, 4), "ScatterNdUpdate": (0,)}
)

# Inputs of FusedInferAttentionScore and IncreFlashAttention by their IR positions.
ACTUAL_SEQ_LENGTHS, ACTUAL_SEQ_LENGTHS_KV, BLOCK_TABLE = 5, 6, 14
INCRE_SEQ_LENGTHS, INCRE_BLOCK_TABLE = 5, 13
TABLE_INPUTS: Mapping[str, int] = MappingProxyType(
    {"FusedInferAttentionScore": BLOCK_TABLE, "IncreFlashAttention": INCRE_BLOCK_TABLE}
)
NULL_PAGE = "_pagedom_null_page"  # attribute that the executor sets on attention nodes
CAUSAL, BAND = 3, 4  # sparse_mode: right-down causal, band


def _scatter_pa_kv_cache(node: Node, inputs: list[Any]) -> list[Array]:
    key, key_cache, slots, value, value_cache = inputs[:5]
    mode = node.attrs.get("cache_mode", "Norm")
    if mode != "Norm":
        raise ValueError(f"cache_mode {mode!r} is not supported, only 'Norm'")
    real = slots[slots >= 0]
    if np.unique(real).size != real.size:
        raise ExecutorError(f"{node.name}: a slot is written twice in one step: slots {slots}")
    oracles.kv_update(key, key_cache, slots, value, value_cache)
    return [key_cache, value_cache]


def _fused_infer_attention_score(node: Node, inputs: list[Any]) -> list[Array]:
    query, key_cache, value_cache = inputs[:3]
    seq_ends, kv_lens = inputs[ACTUAL_SEQ_LENGTHS], inputs[ACTUAL_SEQ_LENGTHS_KV]
    table = inputs[BLOCK_TABLE]
    heads = int(node.attrs["num_heads"])
    kv_heads = int(node.attrs.get("num_key_value_heads", 0)) or heads
    window = _window(node)
    if node.attrs.get("input_layout") != "TND":
        raise ValueError(f"input_layout {node.attrs.get('input_layout')!r}, only 'TND' is executed")
    pages, page_size = key_cache.shape[:2]
    if page_size != node.attrs.get("block_size"):
        raise ValueError(
            f"block_size is {node.attrs.get('block_size')}, the cache's pages hold {page_size}"
        )
    if seq_ends.size and int(seq_ends[-1]) != query.shape[0]:
        raise ValueError(
            f"the last actual_seq_lengths is {int(seq_ends[-1])}, query has {query.shape[0]} tokens"
        )
    shape = (pages, page_size, kv_heads, -1)
    keys, values = key_cache.reshape(shape), value_cache.reshape(shape)
    cu_seqlens = np.concatenate([[0], seq_ends]).astype(np.int64)
    _refuse_unwritten(node, keys, table, cu_seqlens, kv_lens, window)
    scale = float(node.attrs.get("scale", 1.0))
    out = oracles.paged_attention(
        query.astype(np.float32), keys, values, table, cu_seqlens, kv_lens, scale, window
    )
    return [out, np.zeros((query.shape[0], heads, 1), np.float32)]


def _scatter_nd_update(node: Node, inputs: list[Any]) -> list[Array]:
    var, indices, updates = inputs
    if indices.ndim != 2 or indices.shape[1] != 1:
        raise ValueError(f"indices have shape {indices.shape}, only [T,1] is executed")
    rows = indices[:, 0]
    if rows.size and (int(rows.min()) < 0 or int(rows.max()) >= var.shape[0]):
        raise ValueError(
            f"index {int(rows.min())}..{int(rows.max())} is outside 0..{var.shape[0] - 1}: no "
            "negative index is documented, padding has to point into the null page"
        )
    var[rows] = updates
    return [var]


def _incre_flash_attention(node: Node, inputs: list[Any]) -> list[Array]:
    query, key_cache, value_cache = inputs[:3]
    kv_lens, table = inputs[INCRE_SEQ_LENGTHS], inputs[INCRE_BLOCK_TABLE]
    heads = int(node.attrs["num_heads"])
    kv_heads = int(node.attrs.get("num_key_value_heads", 0)) or heads
    if node.attrs.get("input_layout") != "BSH" or query.ndim != 3 or query.shape[1] != 1:
        raise ValueError(
            f"layout {node.attrs.get('input_layout')!r} with query {query.shape}: only 'BSH' with "
            "one token a sequence, [B,1,H*D], is executed"
        )
    if kv_lens is None or len(kv_lens) != len(query):
        raise ValueError("actual_seq_lengths is required with a block table, one a sequence")
    _check_block_size(node, key_cache, 512)
    shape = (*key_cache.shape[:2], kv_heads, -1)
    keys, values = key_cache.reshape(shape), value_cache.reshape(shape)
    cu_seqlens = np.arange(len(query) + 1)
    _refuse_unwritten(node, keys, table, cu_seqlens, kv_lens, -1)
    out = oracles.paged_attention(
        query.astype(np.float32).reshape(len(query), heads, -1),
        keys,
        values,
        table,
        cu_seqlens,
        kv_lens,
        float(node.attrs.get("scale_value", 1.0)),
    )
    return [out.reshape(query.shape)]


def _check_block_size(node: Node, cache: Array, largest: int) -> None:
    """Raise ValueError for a page size that the operator's document excludes."""
    page_size, given = cache.shape[1], node.attrs.get("block_size")
    if page_size != given:
        raise ValueError(f"block_size is {given}, the cache's pages hold {page_size}")
    if page_size % 16 or page_size > largest:
        raise ValueError(f"block_size {page_size} is not a multiple of 16, at most {largest}")


def _window(node: Node) -> int:
    """Translate sparse_mode and pre_tokens to the window of graph_ops (-1 = all)."""
    mode = node.attrs.get("sparse_mode", 0)
    if mode == CAUSAL:
        return -1
    if mode == BAND and node.attrs.get("next_tokens") == 0:
        return int(node.attrs["pre_tokens"]) + 1
    raise ValueError(
        f"sparse_mode {mode} with next_tokens {node.attrs.get('next_tokens')}: paged causal "
        "attention needs 3, or 4 with next_tokens 0"
    )


def _refuse_unwritten(
    node: Node, keys: Array, table: Array, cu_seqlens: Array, kv_lens: Array, window: int
) -> None:
    """Raise ExecutorError where a sequence sees a slot that is still poisoned with NaN."""
    page_size = keys.shape[1]
    for b, kv_len in enumerate(kv_lens.tolist()):
        q_len = int(cu_seqlens[b + 1] - cu_seqlens[b])
        lowest = 0 if window < 0 else max(0, kv_len - q_len - window + 1)
        position = np.arange(lowest, kv_len)
        page = table[b][position // page_size]
        if page.size and (page == node.attrs.get(NULL_PAGE, 0)).all():
            continue  # a padding sequence lives on the null page, whose content nobody uses
        poisoned = np.isnan(keys[page, position % page_size, 0, 0].astype(np.float32))
        if poisoned.any():
            at = int(np.argmax(poisoned))
            raise ExecutorError(
                f"{node.name}: sequence {b} reads position {int(position[at])} (page "
                f"{int(page[at])}, offset {int(position[at]) % page_size}), which no step wrote"
            )


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "ScatterPaKvCache": _scatter_pa_kv_cache,
        "ScatterNdUpdate": _scatter_nd_update,
        "IncreFlashAttention": _incre_flash_attention,
        "FusedInferAttentionScore": _fused_infer_attention_score,
    }
)

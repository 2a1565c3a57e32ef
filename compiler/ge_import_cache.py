"""KVUpdate and PagedAttention as GE-IR: the operators that touch the paged cache.

KVUpdate         ScatterPaKvCache
SlotUpdate       two ScatterNdUpdate over the cache as slots
PagedAttention   FusedInferAttentionScore in layout TND; the cache as [P,S,K*D] (BnBsH)
TokenAttention   IncreFlashAttention in layout BSH, a token as a sequence; the cache likewise
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from ..runtime.om_file.ge_graph import Node, TensorDesc
from .ge_errors import GeImportError
from .ge_import_ops import attribute as _attr

if TYPE_CHECKING:
    from .ge_import import Importer

MASK_NAME = "causal_mask"
MASK_SIZE = 2048  # the compressed mask of sparse modes 2, 3, 4 (aclnnFusedInferAttentionScoreV4)
CAUSAL, BAND = 3, 4
EVERYTHING = 2147483647  # default of pre_tokens and next_tokens
FIA_INPUTS = (
    "query",
    "key",
    "value",
    "pse_shift",
    "atten_mask",
    "actual_seq_lengths",
    "actual_seq_lengths_kv",
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
    "quant_scale2",
    "quant_offset2",
    "antiquant_scale",
    "antiquant_offset",
    "block_table",
)
INCRE_INPUTS = (
    "query",
    "key",
    "value",
    "pse_shift",
    "atten_mask",
    "actual_seq_lengths",
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
    "quant_scale2",
    "quant_offset2",
    "antiquant_scale",
    "antiquant_offset",
    "block_table",
)


def causal_mask() -> np.ndarray:
    """bool [2048,2048], true above the diagonal: 1 = masked."""
    return np.triu(np.ones((MASK_SIZE, MASK_SIZE), np.bool_), 1)


def kv_update(importer: Importer, node: ir.Node) -> None:
    """ScatterPaKvCache has the same inputs and outputs in the same order."""
    names = ("key", "key_cache", "slot_mapping", "value", "value_cache")
    edges = [importer.edge(value) for value in node.inputs]
    outputs = [importer.desc(value) for value in node.outputs]
    made = importer.build.operator(
        str(node.name),
        "ScatterPaKvCache",
        zip(names, edges),
        zip(("key_cache", "value_cache"), outputs),
        cache_mode="Norm",
    )
    importer.carry(node, made)


def slot_update(importer: Importer, node: ir.Node) -> None:
    """Two ScatterNdUpdate, whose indices are a column of slots."""
    key, key_slots, slots, value, value_slots = (importer.edge(each) for each in node.inputs)
    column = _reshape(importer, f"{node.name}/slots", slots, (-1, 1))
    pairs = (("key", key, key_slots), ("value", value, value_slots))
    for output, (which, rows, cache) in zip(node.outputs, pairs):
        update = importer.build.operator(
            f"{node.name}/write_{which}",
            "ScatterNdUpdate",
            [("var", cache), ("indices", column), ("updates", rows)],
            [("var", importer.build.desc(cache))],
        )
        assert output.name is not None
        importer.edges[output.name] = f"{update.name}:0"


def _reshape(importer: Importer, name: str, edge: str, target: tuple[int, ...]) -> str:
    """View an edge; the -1 in front of `target` is the edge's own first extent."""
    shape_name = "view." + "x".join(str(extent) for extent in target)
    shape = importer.build.constant(shape_name, np.array(target, np.int64))
    given = importer.build.desc(edge)
    extents = (given.shape[0], *target[1:])
    inputs = [("x", edge), ("shape", shape)]
    outputs = [("y", TensorDesc(given.dtype, extents))]
    return f"{importer.build.operator(name, 'Reshape', inputs, outputs).name}:0"


def paged_attention(importer: Importer, node: ir.Node) -> None:
    """Attention over the pages as [P,S,K*D]."""
    if float(_attr(node, "softcap", 0.0)) != 0.0:
        raise GeImportError(
            f"node {node.name} has softcap {_attr(node, 'softcap')}; FusedInferAttentionScore has "
            "no such attribute (op doc); --cache-write rows or `--emit onnx` can carry it"
        )
    importer.carry(node, _fused(importer, node, _views(importer, node)))


def _views(importer: Importer, node: ir.Node) -> list[str]:
    return [_pages(importer, node, place) for place in (1, 2)]


def _pages(importer: Importer, node: ir.Node, place: int) -> str:
    cache = importer.edge(node.inputs[place])
    desc = importer.build.desc(cache)
    pages, page_size, kv_heads, dim = desc.shape
    shape = importer.build.constant(
        "cache.shape", np.array([-1, page_size, kv_heads * dim], np.int64)
    )
    which = ("key", "value")[place - 1]
    view = importer.build.operator(
        f"{node.name}/{which}_pages",
        "Reshape",
        [("x", cache), ("shape", shape)],
        [("y", TensorDesc(desc.dtype, (pages, page_size, kv_heads * dim)))],
    )
    return f"{view.name}:0"


def _fused(importer: Importer, node: ir.Node, views: list[str]) -> Node:
    query, key_cache, _, table, ends, lens = (importer.edge(v) for v in node.inputs)
    _, page_size, kv_heads, _ = importer.build.desc(key_cache).shape
    mask = importer.build.constant(MASK_NAME, causal_mask())
    given = {
        "query": query,
        "key": views[0],
        "value": views[1],
        "atten_mask": mask,
        "actual_seq_lengths": ends,
        "actual_seq_lengths_kv": lens,
        "block_table": table,
    }
    window = int(_attr(node, "window", -1))
    out = importer.desc(node.outputs[0])
    return importer.build.operator(
        str(node.name),
        "FusedInferAttentionScore",
        [(name, given.get(name, "")) for name in FIA_INPUTS],
        [("attention_out", out), ("softmax_lse", TensorDesc("float32", (*out.shape[:2], 1)))],
        num_heads=int(out.shape[1]),
        num_key_value_heads=int(kv_heads),
        scale=float(_attr(node, "scale")),
        input_layout="TND",
        sparse_mode=BAND if window > 0 else CAUSAL,
        pre_tokens=window - 1 if window > 0 else EVERYTHING,
        next_tokens=0 if window > 0 else EVERYTHING,
        block_size=int(page_size),
        inner_precise=0,
    )


def token_attention(importer: Importer, node: ir.Node) -> None:
    """query [T,H,D] -> [T,1,H*D] -> IncreFlashAttention -> [T,H,D]; no mask: one row sees all."""
    views = _views(importer, node)
    query, key_cache, _, table, lens = (importer.edge(v) for v in node.inputs)
    _, page_size, kv_heads, _ = importer.build.desc(key_cache).shape
    out = importer.desc(node.outputs[0])
    _, heads, dim = out.shape
    rows = _reshape(importer, f"{node.name}/query_rows", query, (-1, 1, heads * dim))
    given = {
        "query": rows,
        "key": views[0],
        "value": views[1],
        "actual_seq_lengths": lens,
        "block_table": table,
    }
    made = importer.build.operator(
        str(node.name),
        "IncreFlashAttention",
        [(name, given.get(name, "")) for name in INCRE_INPUTS],
        [("attention_out", importer.build.desc(rows))],
        num_heads=int(heads),
        num_key_value_heads=int(kv_heads),
        scale_value=float(_attr(node, "scale")),
        input_layout="BSH",
        block_size=int(page_size),
        inner_precise=1,
    )
    result = _reshape(importer, f"{node.name}/heads", f"{made.name}:0", (-1, heads, dim))
    name = node.outputs[0].name
    assert name is not None
    importer.edges[name] = result

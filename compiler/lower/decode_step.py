"""A graph for steps of one token a sequence: what IncreFlashAttention computes (310P).

    T tokens of B sequences, cu_seqlens [B+1], kv_lens int32   ->   B tokens, kv_lens int64
    PagedAttention                                             ->   PagedAttention with decode = 1

The mark says that row b is the one token of sequence b; it becomes IncreFlashAttention in layout
BSH over a BnBsH cache, whose lengths (actual_seq_lengths) are value-dependent and so a graph input
of their own.

Non-matches, each with its value: a window or a softcap (the operator has no such attribute), a head
dim above 128 or no multiple of 16, more than 32 query heads a key/value head, a page size that is
no multiple of 16 or above 512, a dtype other than float16. Limits: op doc V4 and the tiling check
of IncreFlashAttention for 310P (facts: ascend_ops 1.2).

Precondition: cu_seqlens and kv_lens are read by PagedAttention only. Postcondition: every attention
node is marked, or none; input cu_seqlens is gone and no shape has the symbol T.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ..onnx_check import dtype_name
from ..onnx_cleanup import graph_values
from .infra import PassError, PassResult, Skip
from .layers import CU_SEQLENS, KEYS, QUERY

DECODE = "decode"  # attribute of PagedAttention


@dataclass(frozen=True)
class DecodeLimits:
    """Limits of IncreFlashAttention on 310P."""

    dtypes: tuple[str, ...] = ("float16",)
    max_head_dim: int = 128
    head_dim_multiple: int = 16
    max_group: int = 32
    max_page_size: int = 512
    page_multiple: int = 16


LIMITS_310P = DecodeLimits()


class DecodeStep:
    """See the module's text."""

    name = "decode-step"

    def __init__(self, limits: DecodeLimits = LIMITS_310P) -> None:
        self.limits = limits

    def __call__(self, model: ir.Model) -> PassResult:
        """Mark every attention node or none; raises PassError where another node reads lengths."""
        result = PassResult()
        nodes = [node for node in model.graph if node.op_type == "PagedAttention"]
        for node in nodes:
            result.skipped += [Skip(str(node.name), text) for text in _reasons(node, self.limits)]
        if result.skipped:
            return result
        _drop_lengths(model.graph)
        for node in nodes:
            node.attributes[DECODE] = ir.AttrInt64(DECODE, 1)
        for value in graph_values(model.graph):
            if value.shape is not None:
                dims = [d if isinstance(d, int) else d.value for d in value.shape]
                value.shape = ir.Shape(["B" if dim in ("T", "R") else dim for dim in dims])
        result.modified = len(nodes)
        return result


def _drop_lengths(graph: ir.Graph) -> None:
    inputs = {str(value.name): value for value in graph.inputs}
    cu_seqlens, kv_lens = inputs["cu_seqlens"], inputs["kv_lens"]
    for value in (cu_seqlens, kv_lens):
        others = [use.node for use in value.uses() if use.node.op_type != "PagedAttention"]
        if others:
            raise PassError(f"{value.name} is read by {others[0].name} ({others[0].op_type})")
    for use in list(cu_seqlens.uses()):
        use.node.replace_input_with(CU_SEQLENS, None)
    graph.inputs.remove(cu_seqlens)
    kv_lens.type = ir.TensorType(ir.DataType.INT64)


def _reasons(node: ir.Node, limits: DecodeLimits) -> list[str]:
    """Return why a node cannot be IncreFlashAttention; empty when it can."""
    query, cache = node.inputs[QUERY], node.inputs[KEYS]
    if query is None or cache is None or query.shape is None or cache.shape is None:
        return ["its shapes are not known"]
    fixed = [d if isinstance(d, int) else 0 for d in (*query.shape.dims[1:], *cache.shape.dims[1:])]
    heads, dim, page_size, kv_heads = fixed[:4]
    window, softcap = node.attributes.get("window"), node.attributes.get("softcap")
    found = []
    if window is not None and window.as_int() > 0:
        found.append(f"window {window.as_int()}: IncreFlashAttention has no sparse_mode")
    if softcap is not None and softcap.as_float() > 0:
        found.append(f"softcap {softcap.as_float():g}: IncreFlashAttention has no such attribute")
    if dim > limits.max_head_dim or dim % limits.head_dim_multiple:
        found.append(
            f"head dim {dim}: must be a multiple of {limits.head_dim_multiple}, at most "
            f"{limits.max_head_dim}"
        )
    if kv_heads and heads // kv_heads > limits.max_group:
        found.append(f"{heads // kv_heads} query heads a KV head: at most {limits.max_group}")
    if page_size > limits.max_page_size or page_size % limits.page_multiple:
        found.append(
            f"page size {page_size}: must be a multiple of {limits.page_multiple}, at most "
            f"{limits.max_page_size}"
        )
    if dtype_name(query) not in limits.dtypes:
        found.append(f"dtype {dtype_name(query)}: must be {' or '.join(limits.dtypes)}")
    return found

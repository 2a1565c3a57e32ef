"""Each token of a step as a sequence of its own: packed steps through IncreFlashAttention (310P).

    PagedAttention  query [T,H,D], pages, block_table [B,M], cu_seqlens [B+1], kv_lens [B]
    TokenAttention  query [T,H,D], pages, token_tables [T,M], token_lens int64 [T]

IncreFlashAttention takes one query token a sequence, and nothing on 310P takes packed prompts over
pages. But a token of a packed step sees exactly the first `position + 1` tokens of its sequence's
pages, so it *is* a sequence of one query token: its table is its sequence's row, its length its
position + 1. One graph serves prompts, single tokens and mixed steps, and no mask is needed. What
it costs, beside composed attention for prompts: docs/design/lowerings.md.

    token_tables = Gather(block_table, token_seqs)    token_seqs int32 [T]: row of each token's
                                                      sequence, a graph input as token_lens is

The lengths (actual_seq_lengths) are value-dependent, so nothing stands between them and their graph
input (facts: ascend_ops 3.2).

Non-matches, each with its value: what TokenLimits excludes, a window, a softcap (the operator has
no such attributes).

Precondition: block_table, cu_seqlens and kv_lens are read by PagedAttention only, and the caches
are still one a layer (before stack-caches). Postcondition: every attention node is rewritten, or
none; inputs cu_seqlens and kv_lens are gone, token_seqs and token_lens stand in their places.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ...graph_ops.schema import DOMAIN
from ...graph_ops.token_attention import SCHEMA
from ..onnx_check import dims, dtype_name
from .attend_rows import window_of
from .infra import PassError, PassResult, Skip
from .layers import KEYS, QUERY, VALUES
from .onnx_infra import int_input, make_node

TOKEN_SEQS, TOKEN_LENS = "token_seqs", "token_lens"


@dataclass(frozen=True)
class TokenLimits:
    """What the chip's operator takes (facts: ascend_ops 1.2); pages have rules of their own."""

    dtypes: tuple[str, ...]
    max_head_dim: int
    head_dim_multiple: int
    max_group: int  # query heads a key/value head


class TokenAttention:
    """See the module's text; `table_width` is M."""

    name = "token-attention"

    def __init__(self, table_width: int, limits: TokenLimits) -> None:
        self.table_width, self.limits = table_width, limits

    def __call__(self, model: ir.Model) -> PassResult:
        """Rewrite every attention node or none; raises PassError where others read lengths."""
        result = PassResult()
        nodes = [node for node in model.graph if node.op_type == "PagedAttention"]
        for node in nodes:
            result.skipped += [Skip(str(node.name), text) for text in _reasons(node, self.limits)]
        if result.skipped or not nodes:
            return result
        tables, lens = _swap_inputs(model.graph, nodes[0], self.table_width)
        for node in nodes:
            _rewrite(model.graph, node, tables, lens)
        result.modified = len(nodes)
        return result


def _swap_inputs(graph: ir.Graph, first: ir.Node, width: int) -> tuple[ir.Value, ir.Value]:
    """Put the inputs of tokens in the place of those of sequences; return tables and lengths."""
    inputs = {str(value.name): value for value in graph.inputs}
    for name in ("block_table", "cu_seqlens", "kv_lens"):
        others = [u.node for u in inputs[name].uses() if u.node.op_type != "PagedAttention"]
        if others:
            raise PassError(
                f"{name} is read by {others[0].name} ({others[0].op_type}); only PagedAttention "
                "may read it"
            )
    seqs = int_input(TOKEN_SEQS, ["T"], ir.DataType.INT32)
    lens = int_input(TOKEN_LENS, ["T"], ir.DataType.INT64)
    for name, value in (("cu_seqlens", seqs), ("kv_lens", lens)):
        graph.inputs[graph.inputs.index(inputs[name])] = value
    inputs["block_table"].shape = ir.Shape(["B", width])
    node = make_node(
        "Gather",
        "/token_tables/Gather",
        [inputs["block_table"], seqs],
        ["T", width],
        ir.DataType.INT32,
        axis=0,
    )
    graph.insert_before(first, node)
    return node.outputs[0], lens


def _rewrite(graph: ir.Graph, node: ir.Node, tables: ir.Value, lens: ir.Value) -> None:
    inputs = [node.inputs[QUERY], node.inputs[KEYS], node.inputs[VALUES], tables, lens]
    old = node.outputs[0]
    out = ir.Value(shape=old.shape, type=old.type)
    scale = {"scale": ir.AttrFloat32("scale", node.attributes["scale"].as_float())}
    stem = str(node.name).removesuffix("PagedAttention")
    name = f"{stem}{SCHEMA.name}" if stem != node.name else str(node.name)
    made = ir.Node(DOMAIN, SCHEMA.name, inputs, scale.values(), name=name, outputs=[out])
    graph.insert_before(node, made)
    ir.convenience.replace_all_uses_with(old, out)
    graph.remove(node, safe=True)
    out.name = old.name


def _reasons(node: ir.Node, limits: TokenLimits) -> list[str]:
    """Return why a node cannot be IncreFlashAttention; empty when it can."""
    query, cache = node.inputs[QUERY], node.inputs[KEYS]
    if query is None or cache is None or query.shape is None or cache.shape is None:
        return ["its shapes are not known"]
    fixed = [d if isinstance(d, int) else 0 for d in (*dims(query)[1:], *dims(cache)[1:])]
    heads, dim, _, kv_heads = fixed[:4]
    window, softcap = window_of(node), node.attributes.get("softcap")
    found = []
    if window > 0:
        found.append(f"window {window}: IncreFlashAttention has no sparse_mode")
    if softcap is not None and softcap.as_float() > 0:
        found.append(f"softcap {softcap.as_float():g}: IncreFlashAttention has no such attribute")
    if dim > limits.max_head_dim or dim % limits.head_dim_multiple:
        found.append(
            f"head dim {dim}: must be a multiple of {limits.head_dim_multiple}, at most "
            f"{limits.max_head_dim}"
        )
    if kv_heads and heads // kv_heads > limits.max_group:
        found.append(f"{heads // kv_heads} query heads a KV head: at most {limits.max_group}")
    if dtype_name(query) not in limits.dtypes:
        found.append(f"dtype {dtype_name(query)}: must be {' or '.join(limits.dtypes)}")
    return found

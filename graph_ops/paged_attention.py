"""PagedAttention: causal attention of packed sequences over a paged key/value cache.

    token axis of sequence b        0 ........... kv_len - q_len ........... kv_len
                                    | in the cache | this step's rows i = 0.. |
    row i stands at position p = kv_len - q_len + i and sees positions <= p; with a window only
    positions > p - window. The pages already hold this step's keys (KVUpdate ran before).

The function body runs every query against the pages of every sequence and keeps the row of its
own: B times the work of a kernel, but shapes depend on input shapes alone (no Loop, no
data-dependent size), which is what a chip without dynamic shapes needs, and one sequence's values
can never reach another's rows, not even as 0 * NaN.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import onnxscript
import torch

from . import oracles
from .bodies import BASE, FLOAT32, OPSET, build_function, to_numpy, to_torch
from .schema import Attribute, OpSchema, Output, Param

SCHEMA = OpSchema(
    name="PagedAttention",
    inputs=(
        Param("query", "T H D"),
        Param("key_cache", "P S K D"),
        Param("value_cache", "P S K D"),
        Param("block_table", "B M", "int32"),
        Param("cu_seqlens", "B+1", "int32"),
        Param("kv_lens", "B", "int32"),
    ),
    outputs=(Output("out", like="query"),),
    attributes=(
        Attribute("scale", float),
        Attribute("window", int, -1),
        Attribute("softcap", float, 0.0),
    ),
)

_FAR = 1 << 30  # a window that reaches every position, and still adds to int32 safely
_INT32 = int(ir.DataType.INT32)


def _make(to: int) -> Any:
    op = BASE

    @onnxscript.script(OPSET, default_opset=BASE)
    def body(  # type: ignore[no-untyped-def]
        query,
        key_cache,
        value_cache,
        block_table,
        cu_seqlens,
        kv_lens,
        scale: float,
        window: int = -1,
        softcap: float = 0.0,
    ):
        first = op.Constant(value_ints=[0])
        second = op.Constant(value_ints=[1])
        last = op.Constant(value_ints=[-1])
        many = op.Constant(value_ints=[2147483647])
        rows_columns = op.Constant(value_ints=[1, 2])

        # Keys [B,K,D,N] and values [B,K,N,D] of the N = M * S positions of every sequence.
        cache_shape = op.Shape(key_cache)
        kv_heads = op.Gather(cache_shape, op.Constant(value_ints=[2]), axis=0)
        kv_dims = op.Gather(cache_shape, op.Constant(value_ints=[2, 3]), axis=0)
        batch = op.Gather(op.Shape(block_table), first, axis=0)
        by_position = op.Concat(batch, last, kv_dims, axis=0)
        key_pages = op.Gather(key_cache, block_table, axis=0)
        value_pages = op.Gather(value_cache, block_table, axis=0)
        key_rows = op.Cast(op.Reshape(key_pages, by_position), to=FLOAT32)
        value_rows = op.Cast(op.Reshape(value_pages, by_position), to=FLOAT32)
        keys = op.Transpose(key_rows, perm=[0, 2, 3, 1])
        all_values = op.Transpose(value_rows, perm=[0, 2, 1, 3])

        # Queries [1,K,G*T,D]: the G query heads of a key/value head, one after the other.
        query_shape = op.Shape(query)
        tokens = op.Gather(query_shape, first, axis=0)
        dim = op.Gather(query_shape, op.Constant(value_ints=[2]), axis=0)
        grouped = op.Reshape(
            op.Cast(query, to=FLOAT32), op.Concat(tokens, kv_heads, last, dim, axis=0)
        )
        heads_first = op.Transpose(grouped, perm=[1, 2, 0, 3])
        by_head = op.Shape(heads_first)
        queries = op.Reshape(heads_first, op.Concat(second, kv_heads, last, dim, axis=0))

        # Where every row stands in every sequence [B,G*T,1], and whether it is that one's row.
        zero = op.Cast(op.Constant(value_int=0), to=_INT32)
        one = op.Cast(op.Constant(value_int=1), to=_INT32)
        token_count = op.Cast(op.Squeeze(tokens, first), to=_INT32)
        token_line = op.Unsqueeze(op.Range(zero, token_count, one), first)
        group = op.Gather(by_head, second, axis=0)
        token_grid = op.Expand(token_line, op.Concat(group, tokens, axis=0))
        token = op.Reshape(token_grid, op.Constant(value_ints=[1, -1, 1]))
        starts = op.Slice(cu_seqlens, first, last, first)
        ends = op.Slice(cu_seqlens, second, many, first)
        past = op.Sub(kv_lens, op.Sub(ends, starts))
        position = op.Add(token, op.Unsqueeze(op.Sub(kv_lens, ends), rows_columns))
        after_start = op.GreaterOrEqual(token, op.Unsqueeze(starts, rows_columns))
        before_end = op.Less(token, op.Unsqueeze(ends, rows_columns))
        sees_any = op.GreaterOrEqual(position, zero)
        own = op.And(op.And(after_start, before_end), sees_any)

        # Which columns a row sees [B,G*T,N], and which any row of the sequence sees [B,N].
        width = op.Gather(op.Shape(key_rows), second, axis=0)
        column_count = op.Cast(op.Squeeze(width, first), to=_INT32)
        column = op.Range(zero, column_count, one)
        any_window = op.Constant(value_int=window)
        given = op.Greater(any_window, op.Constant(value_int=0))
        reach = op.Cast(op.Where(given, any_window, op.Constant(value_int=_FAR)), to=_INT32)
        causal = op.LessOrEqual(column, position)
        near = op.Greater(column, op.Sub(position, reach))
        seen = op.Unsqueeze(op.And(causal, near), second)
        written = op.Less(column, op.Unsqueeze(kv_lens, second))
        needed = op.Greater(column, op.Unsqueeze(op.Sub(past, reach), second))
        used = op.Unsqueeze(op.And(written, needed), op.Constant(value_ints=[1, 3]))

        # A masked weight is exactly 0, yet 0 * NaN of an unwritten value would be NaN.
        values = op.Where(used, all_values, op.Constant(value_float=0.0))
        scaled = op.Mul(op.MatMul(queries, keys), op.Constant(value_float=scale))
        cap = op.Constant(value_float=softcap)
        capping = op.Greater(cap, op.Constant(value_float=0.0))
        divisor = op.Where(capping, cap, op.Constant(value_float=1.0))
        capped = op.Mul(op.Tanh(op.Div(scaled, divisor)), divisor)
        scores = op.Where(capping, capped, scaled)
        masked = op.Where(seen, scores, op.Constant(value_float=-1e30))
        weights = op.Softmax(masked, axis=-1)
        of_all = op.MatMul(weights, values)

        # Of the B results of a row [B,K,G*T,D] only its own sequence's counts.
        of_own = op.Where(op.Unsqueeze(own, second), of_all, op.Constant(value_float=0.0))
        summed = op.ReduceSum(of_own, first, keepdims=0)
        result = op.Transpose(op.Reshape(summed, by_head), perm=[2, 0, 1, 3])
        out = op.Cast(op.Reshape(result, query_shape), to=to)
        return out

    return body


def function(dtype: str) -> ir.Function:
    """Return the ONNX function body for one float dtype."""
    return build_function(SCHEMA, _make, dtype)


@torch.library.custom_op("pagedom::paged_attention", mutates_args=())
def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    scale: float,
    window: int = -1,
    softcap: float = 0.0,
) -> torch.Tensor:
    """Attend query [T,H,D] to its sequence's pages; see `oracles.paged_attention`."""
    out = oracles.paged_attention(
        to_numpy(query),
        to_numpy(key_cache),
        to_numpy(value_cache),
        to_numpy(block_table),
        to_numpy(cu_seqlens),
        to_numpy(kv_lens),
        scale,
        window,
        softcap,
    )
    return to_torch(out)


@paged_attention.register_fake
def _(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    cu_seqlens: torch.Tensor,
    kv_lens: torch.Tensor,
    *,
    scale: float,
    window: int = -1,
    softcap: float = 0.0,
) -> torch.Tensor:
    return torch.empty_like(query)

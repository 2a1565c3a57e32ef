"""TokenAttention: attention over a paged cache in which each token is a sequence of its own.

    out[t] = attention of query[t] over the first token_lens[t] tokens of the pages token_tables[t]

What PagedAttention means for sequences of one query token each: a token of a packed step at
position p sees p + 1 tokens of its sequence. The exporter makes none of these; the compiler puts
them in the place of PagedAttention for a chip whose operator takes one token a sequence
(compiler/lower/token_attention.py). There is no window and no softcap, because that operator has
none.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import onnxscript

from .bodies import BASE, FLOAT32, OPSET, build_function
from .schema import Attribute, OpSchema, Output, Param

SCHEMA = OpSchema(
    name="TokenAttention",
    inputs=(
        Param("query", "T H D"),
        Param("key_cache", "P S K D"),
        Param("value_cache", "P S K D"),
        Param("token_tables", "T M", "int32"),
        Param("token_lens", "T", "int64"),
    ),
    outputs=(Output("out", like="query"),),
    attributes=(Attribute("scale", float),),
)


def _make(to: int) -> Any:
    op = BASE

    @onnxscript.script(OPSET, default_opset=BASE)
    def body(  # type: ignore[no-untyped-def]
        query, key_cache, value_cache, token_tables, token_lens, scale: float
    ):
        first = op.Constant(value_ints=[0])
        last = op.Constant(value_ints=[-1])

        # Keys [T,K,D,N] and values [T,K,N,D] of the N = M * S positions of every token's pages.
        cache_shape = op.Shape(key_cache)
        kv_heads = op.Gather(cache_shape, op.Constant(value_ints=[2]), axis=0)
        kv_dims = op.Gather(cache_shape, op.Constant(value_ints=[2, 3]), axis=0)
        tokens = op.Gather(op.Shape(token_tables), first, axis=0)
        by_position = op.Concat(tokens, last, kv_dims, axis=0)
        key_pages = op.Gather(key_cache, token_tables, axis=0)
        value_pages = op.Gather(value_cache, token_tables, axis=0)
        key_rows = op.Cast(op.Reshape(key_pages, by_position), to=FLOAT32)
        value_rows = op.Cast(op.Reshape(value_pages, by_position), to=FLOAT32)
        keys = op.Transpose(key_rows, perm=[0, 2, 3, 1])
        all_values = op.Transpose(value_rows, perm=[0, 2, 1, 3])

        # Which columns a token sees [T,1,1,N]: a masked weight is 0, yet 0 * NaN would be NaN.
        width = op.Gather(op.Shape(key_rows), op.Constant(value_ints=[1]), axis=0)
        count = op.Squeeze(width, first)
        column = op.Range(op.Constant(value_int=0), count, op.Constant(value_int=1))
        lens = op.Unsqueeze(token_lens, op.Constant(value_ints=[1, 2, 3]))
        seen = op.Less(column, lens)
        seen_rows = op.Transpose(seen, perm=[0, 1, 3, 2])
        values = op.Where(seen_rows, all_values, op.Constant(value_float=0.0))

        # Queries [T,K,G,D]: the G query heads of each key/value head.
        query_shape = op.Shape(query)
        dim = op.Gather(query_shape, op.Constant(value_ints=[2]), axis=0)
        grouped = op.Concat(tokens, kv_heads, last, dim, axis=0)
        queries = op.Reshape(op.Cast(query, to=FLOAT32), grouped)
        scaled = op.Mul(op.MatMul(queries, keys), op.Constant(value_float=scale))
        weights = op.Softmax(op.Where(seen, scaled, op.Constant(value_float=-1e30)), axis=-1)
        out = op.Cast(op.Reshape(op.MatMul(weights, values), query_shape), to=to)
        return out

    return body


def function(dtype: str) -> ir.Function:
    """Return the ONNX function body for one float dtype."""
    return build_function(SCHEMA, _make, dtype)

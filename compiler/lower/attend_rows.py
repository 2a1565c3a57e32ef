"""One layer's attention in base operators over rows of keys and values.

    query [T,H,D]    ─> [1,K,G*T,D] ─┐
    keys [B,C,K,D]   ─> [B,K,D,C]  ──┴> scores [B,K,G*T,C] ─> mask ─> softmax ─┐
    values [B,C,K,D] ─> [B,K,C,D] ─────────────────────────────────────────────┴> [B,K,G*T,D]
                          a row keeps the result of its own sequence: Where, sum over B ─> [T,H,D]

Products are computed in the model's dtype (the matrix unit of small chips has no float32), scores
are masked and normalised in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .infra import PassError
from .layers import QUERY
from .onnx_tape import FLOAT, Shape, Tape
from .step_tables import StepTables

_MASKED = -1e30  # of a score; its weight is exactly 0


@dataclass(frozen=True)
class HeadSizes:
    """H query heads over K key/value heads of D elements, in one dtype."""

    heads: int
    kv_heads: int
    dim: int
    dtype: ir.DataType

    @property
    def group(self) -> int:
        """G: query heads of a key/value head."""
        return self.heads // self.kv_heads

    @property
    def row(self) -> int:
        """Elements of one token's K (or V)."""
        return self.kv_heads * self.dim


def num_heads(attention: ir.Node) -> int:
    """Return H of an attention node; raises PassError where it is not fixed."""
    query = attention.inputs[QUERY]
    heads = None if query is None or query.shape is None else query.shape[1]
    if not isinstance(heads, int):
        raise PassError(f"the query of {attention.name} has no fixed number of heads")
    return heads


def window_of(attention: ir.Node) -> int:
    """Return the tokens that a row sees; -1 = all."""
    attribute = attention.attributes.get("window")
    return -1 if attribute is None else attribute.as_int()


def page_rows(
    tape: Tape, sizes: HeadSizes, width: int, what: str, rows: ir.Value, index: ir.Value
) -> ir.Value:
    """Gather rows [B*N] of `rows` [.., K*D] and return them by sequence: [B,N,K,D]."""
    found = tape.op("Gather", f"paged_{what}", [rows, index], [None, sizes.row], axis=0)
    target = (-1, width, sizes.kv_heads, sizes.dim)
    shape: Shape = ["B", width, sizes.kv_heads, sizes.dim]
    return tape.reshape(f"{what}_pages", found, target, shape)


def clean(
    tape: Tape, sizes: HeadSizes, what: str, keep: ir.Value, rows: ir.Value, extent: int | str
) -> ir.Value:
    """Replace what `keep` [B,n,1,1] excludes by 0: a weight of 0 times NaN would be NaN."""
    triple = [keep, rows, tape.scalar(0.0, sizes.dtype)]
    shape: Shape = ["B", extent, sizes.kv_heads, sizes.dim]
    return tape.op("Where", what, triple, shape, sizes.dtype)


def attend(
    tape: Tape,
    sizes: HeadSizes,
    attention: ir.Node,
    rows: tuple[ir.Value, ir.Value],
    tables: StepTables,
) -> ir.Value:
    """Return [T,H,D] of a PagedAttention node over `rows`, keys and values [B,C,K,D] each.

    Values that no row of the sequence sees must be finite; keys may be anything.
    """
    keys, values = rows
    kv_heads, dim = sizes.kv_heads, sizes.dim
    square: Shape = ["B", kv_heads, None, None]
    by_head = _transpose(tape, "keys_by_head", keys, [0, 2, 3, 1])
    scores = tape.op("MatMul", "scores", [_queries(tape, sizes, attention), by_head], square)
    scores = _softcap(tape, attention, tape.cast("scores32", scores, FLOAT), square)
    triple = [tables.seen(window_of(attention)), scores, tape.scalar(_MASKED, FLOAT)]
    masked = tape.op("Where", "masked", triple, square, FLOAT)
    weights = tape.op("Softmax", "weights", [masked], square, axis=-1)
    short = tape.cast("weights_short", weights, sizes.dtype)
    pair = [short, _transpose(tape, "values_by_head", values, [0, 2, 1, 3])]
    wide: Shape = ["B", kv_heads, None, dim]
    of_all = tape.op("MatMul", "of_all", pair, wide)
    triple = [tables.own_row, of_all, tape.scalar(0.0, sizes.dtype)]
    of_own = tape.op("Where", "of_own", triple, wide, sizes.dtype)
    mixed = tape.op("ReduceSum", "mixed", [of_own, tape.ints(0)], [kv_heads, None, dim], keepdims=0)
    target = (kv_heads, sizes.group, -1, dim)
    grouped = tape.reshape("groups", mixed, target, [kv_heads, sizes.group, "T", dim])
    by_token = _transpose(tape, "by_token", grouped, [2, 0, 1, 3])
    return tape.reshape("heads", by_token, (-1, sizes.heads, dim), ["T", sizes.heads, dim])


def _transpose(tape: Tape, what: str, x: ir.Value, perm: list[int]) -> ir.Value:
    assert x.shape is not None
    dims = [d if isinstance(d, int) else d.value for d in x.shape]
    return tape.op("Transpose", what, [x], [dims[axis] for axis in perm], perm=perm)


def _queries(tape: Tape, sizes: HeadSizes, attention: ir.Node) -> ir.Value:
    """[1,K,G*T,D], scaled: a 16-bit product of unscaled vectors could overflow."""
    query = attention.inputs[QUERY]
    assert query is not None
    scale = tape.scalar(attention.attributes["scale"].as_float(), sizes.dtype)
    scaled = tape.op("Mul", "query_scaled", [query, scale], ["T", sizes.heads, sizes.dim])
    split = (-1, sizes.kv_heads, sizes.group, sizes.dim)
    shape: Shape = ["T", sizes.kv_heads, sizes.group, sizes.dim]
    grouped = tape.reshape("query_groups", scaled, split, shape)
    by_head = _transpose(tape, "query_by_head", grouped, [1, 2, 0, 3])
    target = (1, sizes.kv_heads, -1, sizes.dim)
    return tape.reshape("queries", by_head, target, [1, sizes.kv_heads, None, sizes.dim])


def _softcap(tape: Tape, attention: ir.Node, scores: ir.Value, shape: Shape) -> ir.Value:
    attribute = attention.attributes.get("softcap")
    cap = 0.0 if attribute is None else attribute.as_float()
    if cap <= 0:
        return scores
    limit = tape.scalar(cap, FLOAT)
    ratio = tape.op("Div", "capped_ratio", [scores, limit], shape)
    return tape.op("Mul", "capped", [tape.op("Tanh", "tanh", [ratio], shape), limit], shape)

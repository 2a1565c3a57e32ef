"""One layer's attention in base operators over rows of keys and values: the part all forms share.

    query [T,H,D] ─> [K,G*T,D] ─┐
    keys [C,K*D]  ─> [K,D,C]  ──┴> scores [K,G*T,C] ─> mask ─> softmax ─┐
    values [C,K*D] ─> [K,C,D] ──────────────────────────────────────────┴> [T,H,D]

Products are computed in the model's dtype (the matrix unit of small chips has no float32), scores
are masked and normalised in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .infra import PassError
from .layers import QUERY
from .onnx_tape import FLOAT, Shape, Tape

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


def attend(
    tape: Tape,
    sizes: HeadSizes,
    attention: ir.Node,
    rows: tuple[ir.Value, ir.Value],
    seen: ir.Value,
) -> ir.Value:
    """Return [T,H,D] of a PagedAttention node over `rows`, keys and values [C,K*D] each.

    `seen` [G*T,C] says which columns a row sees; value rows that nobody sees must be finite.
    """
    keys, values = rows
    kv_heads, dim, heads = sizes.kv_heads, sizes.dim, sizes.heads
    square: Shape = [kv_heads, None, None]
    by_head = _by_head(tape, "key", keys, sizes, [1, 2, 0])
    scores = tape.op("MatMul", "scores", [_queries(tape, sizes, attention), by_head], square)
    scores = _softcap(tape, attention, tape.cast("scores32", scores, FLOAT), square)
    triple = [seen, scores, tape.scalar(_MASKED, FLOAT)]
    masked = tape.op("Where", "masked", triple, square, FLOAT)
    weights = tape.op("Softmax", "weights", [masked], square, axis=-1)
    pair = [
        tape.cast("weights_short", weights, sizes.dtype),
        _by_head(tape, "value", values, sizes, [1, 0, 2]),
    ]
    mixed = tape.op("MatMul", "mixed", pair, [kv_heads, None, dim])
    target = (kv_heads, sizes.group, -1, dim)
    grouped = tape.reshape("groups", mixed, target, [kv_heads, sizes.group, "T", dim])
    shape: Shape = ["T", kv_heads, sizes.group, dim]
    by_token = tape.op("Transpose", "by_token", [grouped], shape, perm=[2, 0, 1, 3])
    return tape.reshape("heads", by_token, (-1, heads, dim), ["T", heads, dim])


def _by_head(tape: Tape, what: str, rows: ir.Value, sizes: HeadSizes, perm: list[int]) -> ir.Value:
    plain: list[int | str | None] = [None, sizes.kv_heads, sizes.dim]
    heads = tape.reshape(f"{what}_heads", rows, (-1, sizes.kv_heads, sizes.dim), plain)
    shape = [plain[axis] for axis in perm]
    return tape.op("Transpose", f"{what}_by_head", [heads], shape, perm=perm)


def _queries(tape: Tape, sizes: HeadSizes, attention: ir.Node) -> ir.Value:
    """[K,G*T,D], scaled: a 16-bit product of unscaled vectors could overflow."""
    query = attention.inputs[QUERY]
    assert query is not None
    scale = tape.scalar(attention.attributes["scale"].as_float(), sizes.dtype)
    scaled = tape.op("Mul", "query_scaled", [query, scale], ["T", sizes.heads, sizes.dim])
    split = (-1, sizes.kv_heads, sizes.group, sizes.dim)
    shape: Shape = ["T", sizes.kv_heads, sizes.group, sizes.dim]
    grouped = tape.reshape("query_groups", scaled, split, shape)
    shape = [sizes.kv_heads, sizes.group, "T", sizes.dim]
    by_head = tape.op("Transpose", "query_by_head", [grouped], shape, perm=[1, 2, 0, 3])
    target = (sizes.kv_heads, -1, sizes.dim)
    return tape.reshape("queries", by_head, target, [sizes.kv_heads, None, sizes.dim])


def _softcap(tape: Tape, attention: ir.Node, scores: ir.Value, shape: Shape) -> ir.Value:
    attribute = attention.attributes.get("softcap")
    cap = 0.0 if attribute is None else attribute.as_float()
    if cap <= 0:
        return scores
    limit = tape.scalar(cap, FLOAT)
    ratio = tape.op("Div", "capped_ratio", [scores, limit], shape)
    return tape.op("Mul", "capped", [tape.op("Tanh", "tanh", [ratio], shape), limit], shape)

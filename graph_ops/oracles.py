"""Reference semantics of the operators of domain `pagedom`, in numpy alone.

The runtime's oracle executor, the torch operators and the tests all rest on these functions, so
this file imports neither torch nor onnx. Everything is computed in float32 and rounded once, at
the end, to the dtype of the first argument. Letters: T tokens, B sequences, P pages, S page size,
M pages of a block table's row, H query heads, K key/value heads, D head dim.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ints = NDArray[np.integer[Any]]

_F32 = np.float32


def kv_update(
    key: Array, key_cache: Array, slot_mapping: Ints, value: Array, value_cache: Array
) -> None:
    """Write the rows of `key` and `value` [T,K,D] into the caches [P,S,K,D], in place.

    `slot_mapping` [T] holds page * S + offset; a negative slot writes nothing (padding). Slots
    must be unique. Raises ValueError for a slot beyond the cache, which a device would not notice.
    """
    pages, page_size = key_cache.shape[:2]
    slots = np.asarray(slot_mapping)
    if slots.size and int(slots.max()) >= pages * page_size:
        raise ValueError(
            f"slot {int(slots.max())} is outside the cache: {pages} pages of {page_size} tokens "
            f"hold slots 0 to {pages * page_size - 1}"
        )
    real = slots >= 0
    page, offset = np.divmod(slots[real], page_size)
    # Two index arrays, not a reshape: a reshape of a strided cache would write into a copy.
    key_cache[page, offset] = key[real]
    value_cache[page, offset] = value[real]


def paged_attention(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    block_table: Ints,
    cu_seqlens: Ints,
    kv_lens: Ints,
    scale: float,
    window: int = -1,
    softcap: float = 0.0,
) -> Array:
    """Attend packed queries [T,H,D] to the pages of their own sequence; returns [T,H,D].

    Row i of sequence b stands at position p = kv_lens[b] - q_len + i and sees positions
    max(0, p - window + 1) .. p (window < 1: from 0). A row that sees nothing (p < 0: only a
    padding sequence can have one) gives zeros. Only positions that some row sees are read.
    Caches [P,S,K,D], block_table [B,M], cu_seqlens [B+1] (query offsets, from 0 to T), kv_lens [B].
    Raises ValueError if a sequence is longer than its row of the block table.
    """
    out = np.zeros(query.shape, query.dtype)
    for b, kv_len in enumerate(kv_lens.tolist()):
        start, stop = int(cu_seqlens[b]), int(cu_seqlens[b + 1])
        if start == stop:
            continue
        first_position = kv_len - (stop - start)
        lowest = max(0, first_position - window + 1) if window > 0 else 0
        keys, values = _visible_rows(
            key_cache, value_cache, np.asarray(block_table[b]), lowest, kv_len
        )
        rows = np.arange(first_position, kv_len)[:, None]
        columns = np.arange(lowest, kv_len)[None, :]
        seen = columns <= rows
        if window > 0:
            seen &= columns > rows - window
        out[start:stop] = _attend(query[start:stop], keys, values, seen, scale, softcap)
    return out


def _visible_rows(
    key_cache: Array, value_cache: Array, row: Ints, lowest: int, kv_len: int
) -> tuple[Array, Array]:
    """Gather positions lowest .. kv_len - 1 of one sequence as float32 [n,K,D] twice."""
    page_size = key_cache.shape[1]
    if kv_len > row.size * page_size:
        raise ValueError(
            f"a sequence of {kv_len} tokens needs {-(-kv_len // page_size)} pages of {page_size}, "
            f"its row of the block table has {row.size}"
        )
    position = np.arange(lowest, kv_len)
    page = row[position // page_size]
    offset = position % page_size
    return key_cache[page, offset].astype(_F32), value_cache[page, offset].astype(_F32)


def _attend(
    query: Array, keys: Array, values: Array, seen: Array, scale: float, softcap: float
) -> Array:
    """Masked attention of one sequence: query [q,H,D], keys and values [n,K,D], seen [q,n]."""
    num_queries, heads, dim = query.shape
    kv_heads = keys.shape[1]
    # Heads of one group are neighbours: query head h reads key/value head h // (H / K).
    grouped = query.astype(_F32).reshape(num_queries, kv_heads, heads // kv_heads, dim)
    scores = np.einsum("qkgd,nkd->kgqn", grouped, keys, optimize=True) * _F32(scale)
    if softcap > 0:
        scores = _F32(softcap) * np.tanh(scores / _F32(softcap))
    scores = np.where(seen, scores, _F32(-np.inf))
    highest = scores.max(axis=-1, keepdims=True, initial=_F32(-1e30))
    weights = np.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= np.where(total > 0, total, _F32(1))
    mixed: Array = np.einsum("kgqn,nkd->qkgd", weights, values, optimize=True)
    return mixed.reshape(query.shape)


def rms_norm(x: Array, gamma: Array, epsilon: float) -> Array:
    """Scale each last-axis row of `x` [..., n] to unit mean square, times `gamma` [n]."""
    x32 = x.astype(_F32)
    mean_square = np.mean(x32 * x32, axis=-1, keepdims=True)
    normal = x32 / np.sqrt(mean_square + _F32(epsilon))
    scaled: Array = normal * gamma.astype(_F32)
    return scaled.astype(x.dtype)


def rotary(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate `x` [T,N,D] by the angles of `cos`, `sin` [T,D]; half-split layout.

    Element i < D/2 pairs with element i + D/2; the second half of cos and sin repeats the first.
    """
    x32 = x.astype(_F32)
    low, high = np.split(x32, 2, axis=-1)
    turned = np.concatenate((-high, low), axis=-1)
    return (x32 * cos.astype(_F32)[:, None] + turned * sin.astype(_F32)[:, None]).astype(x.dtype)


def swiglu(gate: Array, up: Array) -> Array:
    """Return gate * sigmoid(gate) * up, element by element."""
    gate32 = gate.astype(_F32)
    # exp of a clipped argument: sigmoid(-88) is already 0 in float32, and nothing overflows.
    sigmoid = _F32(1) / (_F32(1) + np.exp(-np.clip(gate32, -88.0, 88.0)))
    product: Array = gate32 * sigmoid * up.astype(_F32)
    return product.astype(gate.dtype)

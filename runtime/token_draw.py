"""Draw one token a row from logits: exact top-k / top-p / min-p sets at nearly argmax cost.

Every function works row by row in a fixed order of operations, so that a row's answer never
depends on the rows it is batched with. A token set is described by its *prefix length* in the
order (logit descending, id ascending): top-k, top-p and min-p each keep a prefix, so keeping all
three is keeping the shortest one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_BLOCK = 512
_CANDIDATES = (256, 4096)


@dataclass(frozen=True)
class Rules:
    """Sampling rules of r rows, one entry a row; `draw` is the random number in [0, 1)."""

    temperature: Floats  # [r]
    top_k: Ints  # [r], 0 = all
    top_p: Floats  # [r], 1 = all
    min_p: Floats  # [r], 0 = all
    draw: Floats  # [r]

    def take(self, index: npt.NDArray[np.intp]) -> Rules:
        """Return the rules of some of the rows."""
        return Rules(
            self.temperature[index],
            self.top_k[index],
            self.top_p[index],
            self.min_p[index],
            self.draw[index],
        )


def draw_tokens(logits: Logits, rules: Rules) -> Ints:
    """Return one token id a row.

    logits: float32 [r, V], each row with a finite maximum; not modified.
    """
    ranked = (rules.top_k > 0) | (rules.top_p < 1.0)
    if ranked.all():
        return _draw_ranked(logits, rules)
    if not ranked.any():
        return _draw_from_all(logits, rules)
    tokens = np.empty(len(logits), dtype=np.int64)
    for mask, draw in ((ranked, _draw_ranked), (~ranked, _draw_from_all)):
        index = np.flatnonzero(mask)
        tokens[index] = draw(logits[index], rules.take(index))
    return tokens


def _weights(logits: Logits, rules: Rules) -> Logits:
    """Return exp((logit - row maximum) / temperature), float32 [r, V]; the best token weighs 1."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = logits - logits.max(axis=1, keepdims=True)
        scaled *= (1.0 / rules.temperature).astype(np.float32)[:, None]
        weights: Logits = np.exp(scaled, out=scaled)
    return weights


def _draw_from_all(logits: Logits, rules: Rules) -> Ints:
    """Inverse CDF over the whole vocabulary in id order: first a block of 512, then inside it."""
    weights = _weights(logits, rules)
    if rules.min_p.any():
        weights[weights < rules.min_p[:, None]] = 0.0
    num_rows, vocab = weights.shape
    whole = vocab // _BLOCK
    sums = np.zeros((num_rows, whole + 1))
    sums[:, :whole] = weights[:, : whole * _BLOCK].reshape(num_rows, whole, _BLOCK).sum(axis=2)
    sums[:, whole] = weights[:, whole * _BLOCK :].sum(axis=1)
    below = np.cumsum(sums, axis=1)
    target = rules.draw * below[:, -1]
    block = _first_above(below, target)
    rows = np.arange(num_rows)
    target = target - (below[rows, block] - sums[rows, block])
    inside = block[:, None] * _BLOCK + np.arange(_BLOCK)
    found = weights[rows[:, None], np.minimum(inside, vocab - 1)].astype(np.float64)
    found[inside >= vocab] = 0.0
    tokens: Ints = block * _BLOCK + _first_above(np.cumsum(found, axis=1), target)
    return tokens


def _first_above(running: Floats, target: Floats) -> Ints:
    """Return a row's first index whose running sum exceeds the target.

    Rounding may put the target at the last sum; then it is the last index that added anything, so
    an entry of weight zero is never chosen.
    """
    first = (running <= target[:, None]).sum(axis=1)
    last = (running < running[:, -1:]).sum(axis=1)
    chosen: Ints = np.minimum(first, last)
    return chosen


def _draw_ranked(logits: Logits, rules: Rules) -> Ints:
    """Draw under top-k and top-p from few candidates; rows that need more get more, at last all."""
    totals = _row_totals(logits, rules)
    tokens = np.empty(len(logits), dtype=np.int64)
    pending = np.arange(len(logits))
    for wanted in (*_CANDIDATES, logits.shape[1]):
        whole = len(pending) == len(logits)
        part = logits if whole else logits[pending]
        part_rules = rules if whole else rules.take(pending)
        ids, values = _candidates(part, wanted)
        drawn, complete = _draw_sorted(ids, values, part_rules, totals[pending])
        complete &= part_rules.top_k <= wanted
        complete |= wanted >= logits.shape[1]
        tokens[pending[complete]] = drawn[complete]
        pending = pending[~complete]
        if not len(pending):
            break
    return tokens


def _row_totals(logits: Logits, rules: Rules) -> Floats:
    """Return the weight of whole rows, float64 [r]: what top-p is a share of; nan under top-k."""
    totals = np.full(len(logits), np.nan)
    needed = np.flatnonzero(rules.top_k == 0)
    if len(needed) == len(logits):
        totals[:] = _weights(logits, rules).sum(axis=1)
    elif len(needed):
        totals[needed] = _weights(logits[needed], rules.take(needed)).sum(axis=1)
    return totals


def _candidates(logits: Logits, wanted: int) -> tuple[Ints, Logits]:
    """Return ids and logits of at least `wanted` best tokens a row, in id order, padded with -inf.

    Short rows are returned whole.

    The set is every token at or above a threshold, so ties at its edge are all inside. The
    threshold is the `wanted`-th largest of column maxima of the row folded to [folds, columns]:
    each of these maxima is a different token, hence at least `wanted` tokens reach it.
    """
    num_rows, vocab = logits.shape
    columns = min(8 * wanted, vocab // 2)
    folds = vocab // max(1, columns)
    if columns < 2 * wanted:
        return np.broadcast_to(np.arange(vocab), logits.shape), logits
    maxima = logits[:, : folds * columns].reshape(num_rows, folds, columns).max(axis=1)
    threshold = np.partition(maxima, columns - wanted, axis=1)[:, columns - wanted]
    flat = np.flatnonzero(logits >= threshold[:, None])
    rows, found = np.divmod(flat, vocab)
    counts = np.bincount(rows, minlength=num_rows)
    column = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
    ids = np.zeros((num_rows, int(counts.max())), dtype=np.int64)
    values = np.full(ids.shape, -np.inf, dtype=np.float32)
    ids[rows, column] = found
    values[rows, column] = logits[rows, found]
    return ids, values


def _descending_order(values: Logits) -> Ints:
    """Return each row's order by (value descending, column ascending).

    One 64-bit key holds the value's bits, made monotonic, above the column; sorting whole keys is
    several times faster than a stable argsort and has no ties.
    """
    bits = (values + np.float32(0.0)).view(np.uint32)  # -0.0 ranks as 0.0
    sign = np.uint32(1 << 31)
    ascending = np.where(bits & sign, ~bits, bits | sign)
    keys = (~ascending).astype(np.uint64) << np.uint64(32)
    keys |= np.arange(values.shape[1], dtype=np.uint64)
    keys.sort(axis=1)
    order: Ints = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return order


def _draw_sorted(
    ids: Ints, values: Logits, rules: Rules, totals: Floats
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Draw from candidates [r, c] in id order; also tell for which rows top-p ends among them.

    totals: [r], weight of the whole row; nan under top-k, where the candidates are all that counts.
    """
    order = _descending_order(values)
    ranked = np.take_along_axis(values, order, axis=1).astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((ranked - ranked[:, :1]) / rules.temperature[:, None])
    rows = np.arange(len(ids))
    size = ids.shape[1]
    running = np.cumsum(weights, axis=1)
    limit = np.where(rules.top_k > 0, np.minimum(rules.top_k, size), size)
    totals = np.where(rules.top_k > 0, running[rows, limit - 1], totals)
    reached = (running < (rules.top_p * totals)[:, None]).sum(axis=1) + 1
    keep = np.where(rules.top_p < 1.0, np.minimum(limit, reached), limit)
    keep = np.minimum(keep, (weights >= rules.min_p[:, None]).sum(axis=1))
    kept = running[rows, keep - 1]
    place = _first_above(np.minimum(running, kept[:, None]), rules.draw * kept)
    tokens: Ints = ids[rows, order[rows, place]]
    return tokens, (rules.top_k > 0) | (reached <= size)

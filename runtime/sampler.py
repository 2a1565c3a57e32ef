"""Sampling state in arrays, and one vectorised call that turns logits into tokens.

A row of the state belongs to a running request. A token depends on its request's parameters, its
logits, its seed and its position, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .counter_random import request_seed, uniform
from .sampling_params import SamplingError, SamplingParams
from .token_draw import Logits, Rules, draw_tokens

__all__ = [
    "LogitsError",
    "SamplerState",
    "SamplingError",
    "SamplingParams",
    "request_seed",
    "sample",
]

RowIndex = npt.NDArray[np.integer] | Sequence[int]

_CHUNK_ELEMENTS = 1 << 18  # 1 MiB of float32: temporaries stay in the cache


class LogitsError(ArithmeticError):
    """Logits from which no token can be chosen; `rows` are the state rows concerned."""

    def __init__(self, text: str, rows: list[int]) -> None:
        super().__init__(text)
        self.rows = rows


class SamplerState:
    """Sampling parameters of up to `max_rows` running requests, one row each, in arrays."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.greedy = np.ones(max_rows, dtype=np.bool_)
        self.temperature = np.ones(max_rows, dtype=np.float64)
        self.top_k = np.zeros(max_rows, dtype=np.int64)
        self.top_p = np.ones(max_rows, dtype=np.float64)
        self.min_p = np.zeros(max_rows, dtype=np.float64)
        self.seed = np.zeros(max_rows, dtype=np.uint64)
        self.bias_count = np.zeros(max_rows, dtype=np.int64)
        # Padded with copies of some entry of the row, so that writing the padding changes nothing.
        self.bias_ids = np.zeros((max_rows, 1), dtype=np.int64)
        self.bias_values = np.zeros((max_rows, 1), dtype=np.float32)

    def set(self, row: int, params: SamplingParams, seed: int) -> None:
        """Give a row to a request; `seed` is its 64-bit seed, see `request_seed`."""
        self.greedy[row] = params.greedy
        self.temperature[row] = 1.0 if params.greedy else params.temperature
        self.top_k[row] = params.top_k
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.seed[row] = np.uint64(seed)
        count = len(params.logit_bias)
        self.bias_count[row] = count
        if count:
            self._widen(count)
            ids = np.fromiter(params.logit_bias.keys(), dtype=np.int64, count=count)
            values = np.fromiter(params.logit_bias.values(), dtype=np.float32, count=count)
            self.bias_ids[row], self.bias_values[row] = ids[0], values[0]
            self.bias_ids[row, :count], self.bias_values[row, :count] = ids, values

    def _widen(self, count: int) -> None:
        width = self.bias_ids.shape[1]
        if count > width:
            # Never narrowed again: at most MAX_BIAS_ENTRIES columns.
            extra = ((0, 0), (0, max(count, 2 * width) - width))
            self.bias_ids = np.pad(self.bias_ids, extra, mode="edge")
            self.bias_values = np.pad(self.bias_values, extra, mode="edge")

    def clear(self, row: int) -> None:
        """Give a row back: it becomes greedy, without bias."""
        self.set(row, SamplingParams(), 0)

    def move(self, source: int, target: int) -> None:
        """Copy a request from one row to another and clear the old row."""
        if source == target:
            return
        for array in self._columns():
            array[target] = array[source]
        self.clear(source)

    def _columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        return (
            self.greedy,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.seed,
            self.bias_count,
            self.bias_ids,
            self.bias_values,
        )

    def all_greedy(self, rows: RowIndex) -> bool:
        """True when plain argmax gives every row's token, so that the device may compute it."""
        index = np.asarray(rows, dtype=np.intp)
        return bool(self.greedy[index].all() and not self.bias_count[index].any())


def sample(
    state: SamplerState,
    rows: RowIndex,
    logits: Logits,
    positions: npt.NDArray[np.int64],
) -> npt.NDArray[np.int32]:
    """Choose the next token of each row.

    rows: [R] rows of `state`; logits: float32 [R, V], not modified; positions: int64 [R], index in
    its sequence of the token that is chosen. Returns int32 [R].
    Raises LogitsError for a row whose best logit is not a finite number.
    """
    index = np.asarray(rows, dtype=np.intp)
    logits = np.ascontiguousarray(logits, dtype=np.float32)
    if logits.ndim != 2 or len(logits) != len(index) or len(positions) != len(index):
        raise ValueError(
            f"sample got {len(index)} rows, logits of shape {logits.shape} and {len(positions)} "
            "positions: logits must be [rows, vocabulary] with one position a row"
        )
    if not len(index):
        return np.empty(0, dtype=np.int32)
    biased = state.bias_count[index] > 0
    if not biased.any():
        return _sample(state, index, logits, positions)
    tokens = np.empty(len(index), dtype=np.int32)
    for mask in (biased, ~biased):
        part = np.flatnonzero(mask)
        if len(part):
            chosen = logits[part]  # a copy
            if mask is biased:
                _add_bias(state, index[part], chosen)
            tokens[part] = _sample(state, index[part], chosen, positions[part])
    return tokens


def _add_bias(state: SamplerState, index: npt.NDArray[np.intp], logits: Logits) -> None:
    ids, values = state.bias_ids[index], state.bias_values[index]
    if ids.max() >= logits.shape[1]:
        raise SamplingError(
            f"logit_bias names token {ids.max()}, but the logits have {logits.shape[1]} columns"
        )
    rows = np.arange(len(index))[:, None]
    # Read, add, write: a repeated padding entry writes the same sum again.
    logits[rows, ids] = logits[rows, ids] + values


def _sample(
    state: SamplerState,
    index: npt.NDArray[np.intp],
    logits: Logits,
    positions: npt.NDArray[np.int64],
) -> npt.NDArray[np.int32]:
    best = logits.argmax(axis=1)  # the first NaN, if there is one
    _refuse_bad_rows(index, logits, best)
    tokens: npt.NDArray[np.int32] = best.astype(np.int32)
    drawn = np.flatnonzero(~state.greedy[index])
    step = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    for start in range(0, len(drawn), step):
        part = drawn[start : start + step]
        source = index[part]
        rules = Rules(
            temperature=state.temperature[source],
            top_k=state.top_k[source],
            top_p=state.top_p[source],
            min_p=state.min_p[source],
            draw=uniform(state.seed[source], positions[part]),
        )
        tokens[part] = draw_tokens(logits[part], rules)
    return tokens


def _refuse_bad_rows(
    index: npt.NDArray[np.intp], logits: Logits, best: npt.NDArray[np.intp]
) -> None:
    peaks = logits[np.arange(len(index)), best]
    bad = np.flatnonzero(~np.isfinite(peaks))
    if not len(bad):
        return
    first = bad[0]
    problem = "contain NaN" if np.isnan(peaks[first]) else f"have the maximum {peaks[first]}"
    raise LogitsError(
        f"the logits of {len(bad)} of {len(index)} rows cannot be sampled: those of row "
        f"{index[first]} {problem} at token {best[first]}; a row needs a finite maximum. The model "
        "overflowed or its weights are damaged: try another dtype (bf16 or fp32), and "
        "`run-om verify` on the artefact",
        [int(row) for row in index[bad]],
    )

"""The state of the running sequences, in arrays: row r is one sequence, rows 0..count-1 are in use.

Rows stay compact: when a sequence leaves, the last row moves into its place. So a decode step is a
handful of slices `[:count]`, without a gather and without a Python loop. Rows past `count` are
scratch: a step may prepare admissions there, and nobody sees them until it commits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .block_table import BlockTable

if TYPE_CHECKING:
    from .request import Request, Tokens


class SequenceRows:
    """Preallocated arrays, [max_rows] unless said otherwise."""

    def __init__(self, max_rows: int, max_seq_len: int, table: BlockTable) -> None:
        """Make `max_rows` empty rows for sequences of at most `max_seq_len` + 1 tokens."""
        self.max_rows = max_rows
        self.count = 0
        self.num_prefilling = 0  # rows with more than one token to compute
        self.requests: list[Request] = []  # [count]
        # A sequence that ends at the pool limit has one token that is never computed: hence + 1.
        self.tokens = np.zeros((max_rows, max_seq_len + 1), np.int32)  # [max_rows, max_seq_len + 1]
        self.table = table  # [max_rows, M]
        self.num_tokens = np.zeros(max_rows, np.int32)  # known tokens
        self.num_computed = np.zeros(max_rows, np.int32)  # tokens whose K and V are in the pages
        self.capacity = np.zeros(max_rows, np.int32)  # tokens that fit in the row's pages
        self.last_token = np.zeros(max_rows, np.int32)  # tokens[row, num_tokens - 1]
        self.next_slot = np.zeros(max_rows, np.int32)  # where token num_computed goes, if it fits
        self.limit = np.zeros(max_rows, np.int32)  # num_tokens at which the sequence ends
        self.stops_at_eos = np.zeros(max_rows, np.bool_)
        self.arrival = np.zeros(max_rows, np.int64)  # request id: smaller is older
        self._flat_tokens = self.tokens.reshape(-1)
        self._row_starts = np.arange(max_rows, dtype=np.int64) * self.tokens.shape[1]
        self._columns = (
            self.num_tokens,
            self.num_computed,
            self.capacity,
            self.last_token,
            self.next_slot,
            self.limit,
            self.stops_at_eos,
            self.arrival,
        )

    def prepare(self, row: int, request: Request) -> None:
        """Write a waiting request's tokens into the scratch row `row`; nobody sees it yet."""
        known = request.known_tokens()
        self.tokens[row, : known.size] = known
        self.num_tokens[row] = known.size
        self.num_computed[row] = 0
        self.capacity[row] = 0
        self.last_token[row] = known[-1]
        self.limit[row] = request.limit
        self.stops_at_eos[row] = not request.params.ignore_eos
        self.arrival[row] = request.id
        self.table.clear(row)

    def enter(self, request: Request) -> int:
        """Make the prepared row `count` part of the running sequences; returns the row."""
        row = self.count
        self.requests.append(request)
        self.count += 1
        request.enter(self, row)
        return row

    def append_tokens(self, rows: slice | np.ndarray, sampled: Tokens) -> None:
        """Append one token to each of `rows` and count the token before it as computed."""
        self._flat_tokens[self._row_starts[rows] + self.num_tokens[rows]] = sampled
        self.last_token[rows] = sampled
        self.num_tokens[rows] += 1

    def remove(self, row: int) -> tuple[int, int] | None:
        """Take `row` out; returns (source, target) when the last row moved into its place."""
        self.requests[row].leave()
        self.table.clear(row)
        last = self.count - 1
        self.count = last
        if row == last:
            self.requests.pop()
            return None
        self._move(last, row)
        return last, row

    def count_prefilling(self) -> None:
        """Recount `num_prefilling`; needed after any change that is not a plain decode step."""
        n = self.count
        self.num_prefilling = int(np.count_nonzero(self.num_tokens[:n] - self.num_computed[:n] > 1))

    def _move(self, source: int, target: int) -> None:
        used = int(self.num_tokens[source])
        self.tokens[target, :used] = self.tokens[source, :used]
        for column in self._columns:
            column[target] = column[source]
        self.table.move(source, target)
        request = self.requests.pop()
        self.requests[target] = request
        request.row = target

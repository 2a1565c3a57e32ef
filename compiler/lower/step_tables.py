"""What composed attention knows of a step, computed once for all layers.

Columns of the scores, C = B*N + T, with N = M*S positions a sequence:

    | positions 0..N-1 of sequence 0 | … of sequence B-1 | this step's T tokens |
      only those before the step (< past = kv_len - q_len)

    every column has a sequence and a position; a position that is not in the pages yet belongs to
    sequence -1.  Row i sees column c   <=>   sequence equal, position c <= i, inside the window.

So one rule of three integer comparisons serves past and new tokens, packed sequences, padding and
windows. Rows are the query heads of a key/value head, one head's tokens after another's: [G*T].
Shapes follow from the inputs' shapes alone (no Loop, no data-dependent extent).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .layers import CacheGeometry
from .onnx_tape import BOOL, INT32, Shape, Tape

_END = 2**31 - 1


@dataclass(frozen=True)
class StepInputs:
    """The graph inputs that describe a step; M and S are numbers."""

    positions: ir.Value
    block_table: ir.Value
    cu_seqlens: ir.Value
    kv_lens: ir.Value
    table_width: int


class StepTables:
    """Makes the tables at their first use; `group` G = query heads of a key/value head."""

    def __init__(self, tape: Tape, inputs: StepInputs, sizes: CacheGeometry, group: int) -> None:
        self.tape, self.inputs, self.sizes, self.group = tape, inputs, sizes, group
        self.width = inputs.table_width * sizes.page_size  # N
        self._seen: dict[int, ir.Value] = {}
        self._used: dict[int, ir.Value] = {}
        self._row_index: ir.Value | None = None
        self._sequences()
        self._columns()

    def seen(self, window: int) -> ir.Value:
        """bool [G*T, C]: which columns a row sees."""
        if window not in self._seen:
            tape, shape = self.tape, [None, None]
            same = tape.op(
                "Equal", f"same_sequence.{window}", [self.column_seq, self.row_seq], shape, BOOL
            )
            pair = [self.column_pos, self.row_pos]
            causal = tape.op("LessOrEqual", f"causal.{window}", pair, shape, BOOL)
            seen = tape.op("And", f"seen_causal.{window}", [same, causal], shape)
            if window > 0:
                edge = [self.row_pos, tape.int32(window)]
                edge_row = tape.op("Sub", f"window_edge.{window}", edge, [None, 1])
                pair = [self.column_pos, edge_row]
                near = tape.op("Greater", f"near.{window}", pair, shape, BOOL)
                seen = tape.op("And", f"seen.{window}", [seen, near], shape)
            self._seen[window] = seen
        return self._seen[window]

    def used(self, window: int) -> ir.Value:
        """bool [B*N, 1]: positions of the pages that some row sees; others may hold NaN."""
        if window not in self._used:
            tape, used = self.tape, self.written
            if window > 0:
                edge = [self.past, tape.int32(window)]
                edge_seq = tape.op("Sub", f"needed_edge.{window}", edge, ["B", 1])
                pair = [self.position_line, edge_seq]
                needed = tape.op("Greater", f"needed.{window}", pair, ["B", self.width], BOOL)
                used = tape.op("And", f"used.{window}", [used, needed], ["B", self.width])
            self._used[window] = tape.reshape(f"used_rows.{window}", used, (-1, 1), [None, 1])
        return self._used[window]

    def row_index(self) -> ir.Value:
        """int32 [B*N]: row of every position in the pool seen as [P*S*2L, K*D], for layer 0's K.

        Layer l adds 2l for K and 2l+1 for V.
        """
        if self._row_index is None:
            tape, width = self.tape, self.inputs.table_width
            stride, page_size = 2 * self.sizes.layers, self.sizes.page_size
            table = tape.reshape("pages", self.inputs.block_table, (-1, width, 1), ["B", width, 1])
            page_rows = tape.int32(page_size * stride)
            first = tape.op("Mul", "page_rows", [table, page_rows], ["B", width, 1])
            offsets = (np.arange(page_size, dtype=np.int32) * stride).reshape(1, 1, page_size)
            within = tape.array("page_offsets", offsets)
            index = tape.op("Add", "token_rows", [first, within], ["B", width, page_size])
            self._row_index = tape.reshape("row_index", index, (-1,), [None])
        return self._row_index

    def _sequences(self) -> None:
        """Which sequence every token belongs to [T], and the tokens before the step [B,1]."""
        tape, cu = self.tape, self.inputs.cu_seqlens
        zero, one, axis = tape.ints(0), tape.ints(1), tape.ints(0)
        starts = tape.op("Slice", "starts", [cu, zero, tape.ints(-1), axis], ["B"])
        ends = tape.op("Slice", "ends", [cu, one, tape.ints(_END), axis], ["B"])
        q_lens = tape.op("Sub", "q_lens", [ends, starts], ["B"])
        past = tape.op("Sub", "past", [self.inputs.kv_lens, q_lens], ["B"])
        self.past = tape.reshape("past_column", past, (-1, 1), ["B", 1])
        tokens = self._range("token", self.inputs.positions, "T")
        sequences = self._range("sequence", self.inputs.kv_lens, "B")
        # The last sequence that starts at or before a token is its own: an empty one in between
        # starts with its successor, which is later.
        column = tape.reshape("token_column", tokens, (-1, 1), ["T", 1])
        begun = tape.op("LessOrEqual", "begun", [starts, column], ["T", "B"], BOOL)
        candidate = tape.op(
            "Where", "begun_sequence", [begun, sequences, tape.int32(0)], ["T", "B"], INT32
        )
        self.token_seq = tape.op(
            "ReduceMax", "token_sequence", [candidate, tape.ints(1)], ["T"], INT32, keepdims=0
        )
        self.sequence_column = tape.reshape("sequence_column", sequences, (-1, 1), ["B", 1])

    def _columns(self) -> None:
        """Sequence and position of every column [1,C] and of every row [G*T,1]."""
        tape, width = self.tape, self.width
        line = np.arange(width, dtype=np.int32).reshape(1, width)
        self.position_line = tape.array("position_line", line)
        shape: Shape = ["B", width]
        pair = [self.position_line, self.past]
        self.written = tape.op("Less", "written", pair, shape, BOOL)
        none = tape.int32(-1)
        triple = [self.written, self.sequence_column, none]
        past_seq = tape.op("Where", "past_sequence", triple, shape, INT32)
        triple = [self.written, self.position_line, none]
        past_pos = tape.op("Where", "past_position", triple, shape, INT32)
        self.column_seq = self._join("column_sequence", past_seq, self.token_seq)
        self.column_pos = self._join("column_position", past_pos, self.inputs.positions)
        self.row_seq = self._rows("row_sequence", self.token_seq)
        self.row_pos = self._rows("row_position", self.inputs.positions)

    def _join(self, what: str, past: ir.Value, new: ir.Value) -> ir.Value:
        flat = self.tape.reshape(f"{what}_past", past, (-1,), [None])
        both = self.tape.op("Concat", what, [flat, new], [None], axis=0)
        return self.tape.reshape(f"{what}_line", both, (1, -1), [1, None])

    def _rows(self, what: str, tokens: ir.Value) -> ir.Value:
        if self.group > 1:
            many = [tokens, self.tape.ints(self.group)]
            tokens = self.tape.op("Tile", f"{what}_heads", many, [None])
        return self.tape.reshape(what, tokens, (-1, 1), [None, 1])

    def _range(self, what: str, like: ir.Value, symbol: str) -> ir.Value:
        """int32 0, 1, … as long as `like`; a constant once shapes are fixed."""
        tape = self.tape
        size = tape.op("Shape", f"{what}_shape", [like], [1], ir.DataType.INT64)
        count = tape.op("Squeeze", f"{what}_count", [size, tape.ints(0)], [])
        limit = tape.cast(f"{what}_limit", count, INT32)
        bounds = [tape.int32(0), limit, tape.int32(1)]
        return tape.op("Range", what, bounds, [symbol], INT32)

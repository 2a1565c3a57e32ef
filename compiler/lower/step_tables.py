"""What composed attention knows of a step, computed once for all layers.

Columns of the scores, with N = M*S positions a sequence; C = B*N + T, or B*N without new columns:

    | positions 0..N-1 of sequence 0 | … of sequence B-1 | this step's T tokens |
      new columns: those before the step, position < past = kv_len - q_len
      else: those in the pages after the step's write, position < kv_len

    every column has a sequence and a position; a position that is not in the pages belongs to
    sequence -1.  Row i sees column c   <=>   sequence equal, position c <= i, inside the window.

So one rule of three integer comparisons serves past and new tokens, packed sequences, padding and
windows. Rows are the query heads of a key/value head, one head's tokens after another's: [G*T].
Shapes follow from the inputs' shapes alone (no Loop, no data-dependent extent).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .onnx_tape import BOOL, INT32, Shape, Tape

_END = 2**31 - 1
NULL_PAGE = 0  # the page nobody owns (runtime/page_pool.py)


@dataclass(frozen=True)
class StepInputs:
    """The graph inputs that describe a step; M and S are numbers."""

    positions: ir.Value
    block_table: ir.Value
    cu_seqlens: ir.Value
    kv_lens: ir.Value
    table_width: int
    page_size: int

    @classmethod
    def of(cls, graph: ir.Graph, table_width: int, page_size: int) -> StepInputs:
        """Take the inputs of a graph, and fix the width of its block table."""
        inputs = {str(value.name): value for value in graph.inputs}
        inputs["block_table"].shape = ir.Shape(["B", table_width])
        return cls(
            inputs["positions"],
            inputs["block_table"],
            inputs["cu_seqlens"],
            inputs["kv_lens"],
            table_width,
            page_size,
        )


class StepTables:
    """Makes the tables at their first use; `group` G = query heads of a key/value head."""

    def __init__(self, tape: Tape, inputs: StepInputs, group: int, *, new_columns: bool) -> None:
        self.tape, self.inputs, self.group = tape, inputs, group
        self.new_columns = new_columns
        self.width = inputs.table_width * inputs.page_size  # N
        self._seen: dict[int, ir.Value] = {}
        self._used: dict[int, ir.Value] = {}
        self._row_index: dict[str, ir.Value] = {}
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

    def row_index(self, table: ir.Value, stride: int, tape: Tape | None = None) -> ir.Value:
        """int32 [B*N]: row of every position of a table's pages, `stride` rows a token.

        In the pool of rows seen as [P*S*2L, K*D] the stride is 2L, and layer l adds 2l for K and
        2l+1 for V; in a cache seen as [P*S, K*D] it is 1.
        """
        name = str(table.name)
        if name not in self._row_index:
            tape, width = tape or self.tape, self.inputs.table_width
            page_size = self.inputs.page_size
            pages = tape.reshape("pages", table, (-1, width, 1), ["B", width, 1])
            rows = [pages, tape.int32(page_size * stride)]
            first = tape.op("Mul", "page_rows", rows, ["B", width, 1])
            offsets = (np.arange(page_size, dtype=np.int32) * stride).reshape(1, 1, page_size)
            within = tape.array(f"page_offsets.{page_size}x{stride}", offsets)
            index = tape.op("Add", "token_rows", [first, within], ["B", width, page_size])
            self._row_index[name] = tape.reshape("row_index", index, (-1,), [None])
        return self._row_index[name]

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
        self.written = self._written()
        none = tape.int32(-1)
        triple = [self.written, self.sequence_column, none]
        past_seq = tape.op("Where", "past_sequence", triple, shape, INT32)
        triple = [self.written, self.position_line, none]
        past_pos = tape.op("Where", "past_position", triple, shape, INT32)
        self.column_seq = self._join("column_sequence", past_seq, self.token_seq)
        self.column_pos = self._join("column_position", past_pos, self.inputs.positions)
        self.row_seq = self._rows("row_sequence", self.token_seq)
        self.row_pos = self._rows("row_position", self.inputs.positions)

    def _written(self) -> ir.Value:
        """bool [B,N]: positions that hold a token.

        The null page holds none: a padding sequence sees nothing there, so its content (anything,
        on a chip) stays out of the sums that all rows share.
        """
        tape = self.tape
        shape: Shape = ["B", self.width]
        if self.new_columns:
            pair = [self.position_line, self.past]
            return tape.op("Less", "written", pair, shape, BOOL)
        width, page_size = self.inputs.table_width, self.inputs.page_size
        limit = tape.reshape("kv_lens_column", self.inputs.kv_lens, (-1, 1), ["B", 1])
        below = tape.op("Less", "below", [self.position_line, limit], shape, BOOL)
        by_page: Shape = ["B", width, page_size]
        paged = tape.reshape("below_pages", below, (-1, width, page_size), by_page)
        pages = tape.reshape("page_ids", self.inputs.block_table, (-1, width, 1), ["B", width, 1])
        pair = [pages, tape.int32(NULL_PAGE)]
        real = tape.op("Greater", "page_is_real", pair, ["B", width, 1], BOOL)
        written = tape.op("And", "written_pages", [paged, real], by_page)
        return tape.reshape("written", written, (-1, self.width), shape)

    def _join(self, what: str, past: ir.Value, new: ir.Value) -> ir.Value:
        if not self.new_columns:
            return self.tape.reshape(f"{what}_line", past, (1, -1), [1, None])
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

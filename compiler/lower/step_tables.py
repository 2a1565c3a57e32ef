"""What composed attention knows of a step, computed once for all layers.

Every row meets the columns of every sequence and keeps the result of its own. The columns of
sequence b, with N = M*S positions of its pages, are

    | positions 0 .. N-1 of its pages | this step's T tokens |      C = N + T
      those before the step, position    those of sequence b
      < past = kv_len - q_len

A column that is not the sequence's own stands at position FAR, so one comparison (two with a
window) serves past and new tokens, packed sequences, chunks and padding:

    row sees column   <=>   position of column <= own   and   > own - window

Rows are the query heads of a key/value head, one head's tokens after another's: [G*T]. All shapes
follow from the inputs' shapes (no Loop, no data-dependent extent). One sequence's values never
reach another's rows, not even as 0 * NaN: in b's columns everything else is replaced by 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .onnx_tape import BOOL, INT32, Shape, Tape

_END = 2**31 - 1
FAR = 1 << 30  # a position that no row reaches, and that still subtracts safely


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

    def __init__(self, tape: Tape, inputs: StepInputs, group: int) -> None:
        self.tape, self.inputs, self.group = tape, inputs, group
        self.width = inputs.table_width * inputs.page_size  # N
        self._seen: dict[int, ir.Value] = {}
        self._used: dict[int, ir.Value] = {}
        self._sequences()
        self._columns()

    def seen(self, window: int) -> ir.Value:
        """bool [B,1,G*T,C]: which columns a row sees."""
        if window not in self._seen:
            tape = self.tape
            shape: Shape = ["B", 1, None, None]
            pair = [self.column_pos, self.row_pos]
            seen = tape.op("LessOrEqual", f"causal.{window}", pair, shape, BOOL)
            if window > 0:
                edge = [self.row_pos, tape.int32(window)]
                edge_row = tape.op("Sub", f"window_edge.{window}", edge, [None, 1])
                pair = [self.column_pos, edge_row]
                near = tape.op("Greater", f"near.{window}", pair, shape, BOOL)
                seen = tape.op("And", f"seen.{window}", [seen, near], shape)
            self._seen[window] = seen
        return self._seen[window]

    def used(self, window: int) -> ir.Value:
        """bool [B,N,1,1]: positions of the pages that some row sees; others may hold NaN."""
        if window not in self._used:
            tape, used = self.tape, self.written
            if window > 0:
                edge = [self.past, tape.int32(window)]
                edge_seq = tape.op("Sub", f"needed_edge.{window}", edge, ["B", 1])
                pair = [self.position_line, edge_seq]
                needed = tape.op("Greater", f"needed.{window}", pair, ["B", self.width], BOOL)
                used = tape.op("And", f"used.{window}", [used, needed], ["B", self.width])
            shape: Shape = ["B", self.width, 1, 1]
            target = (-1, self.width, 1, 1)
            self._used[window] = tape.reshape(f"used_rows.{window}", used, target, shape)
        return self._used[window]

    def row_index(self, stride: int) -> ir.Value:
        """int32 [B*N]: row of every position of the pages in the pool seen as [P*S*2L, K*D].

        A token has `stride` = 2L rows; layer l adds 2l for K and 2l+1 for V.
        """
        tape, width = self.tape, self.inputs.table_width
        page_size = self.inputs.page_size
        pages = tape.reshape("pages", self.inputs.block_table, (-1, width, 1), ["B", width, 1])
        rows = [pages, tape.int32(page_size * stride)]
        first = tape.op("Mul", "page_rows", rows, ["B", width, 1])
        offsets = (np.arange(page_size, dtype=np.int32) * stride).reshape(1, 1, page_size)
        within = tape.array("page_offsets", offsets)
        index = tape.op("Add", "token_rows", [first, within], ["B", width, page_size])
        return tape.reshape("row_index", index, (-1,), [None])

    def _sequences(self) -> None:
        """Which tokens [B,T] and rows [B,1,G*T,1] are a sequence's own, and its past [B,1]."""
        tape, cu = self.tape, self.inputs.cu_seqlens
        zero, one, axis = tape.ints(0), tape.ints(1), tape.ints(0)
        starts = tape.op("Slice", "starts", [cu, zero, tape.ints(-1), axis], ["B"])
        ends = tape.op("Slice", "ends", [cu, one, tape.ints(_END), axis], ["B"])
        q_lens = tape.op("Sub", "q_lens", [ends, starts], ["B"])
        past = tape.op("Sub", "past", [self.inputs.kv_lens, q_lens], ["B"])
        self.past = tape.reshape("past_column", past, (-1, 1), ["B", 1])
        start = tape.reshape("start_column", starts, (-1, 1), ["B", 1])
        end = tape.reshape("end_column", ends, (-1, 1), ["B", 1])
        tokens = self._tokens()
        self.own_token = self._inside("token", tokens, start, end, "T")
        rows = self._heads("row_token", tokens)
        own_row = self._inside("row", rows, start, end, None)
        shape: Shape = ["B", 1, None, 1]
        self.own_row = tape.op("Unsqueeze", "own_row", [own_row, tape.ints(1, 3)], shape)
        positions = self._heads("row_position_line", self.inputs.positions)
        self.row_pos = tape.reshape("row_position", positions, (-1, 1), [None, 1])

    def _columns(self) -> None:
        """Position of every column [B,1,1,C]; FAR where it is not the sequence's own."""
        tape, width = self.tape, self.width
        line = np.arange(width, dtype=np.int32).reshape(1, width)
        self.position_line = tape.array("position_line", line)
        self.written = self._written()
        far = tape.int32(FAR)
        triple = [self.written, self.position_line, far]
        columns = tape.op("Where", "page_position", triple, ["B", width], INT32)
        triple = [self.own_token, self.inputs.positions, far]
        new = tape.op("Where", "new_position", triple, ["B", "T"], INT32)
        columns = tape.op("Concat", "column_line", [columns, new], ["B", None], axis=1)
        shape: Shape = ["B", 1, 1, None]
        self.column_pos = tape.op("Unsqueeze", "column_position", [columns, tape.ints(1, 2)], shape)

    def _written(self) -> ir.Value:
        """bool [B,N]: positions that hold a token of an earlier step."""
        pair = [self.position_line, self.past]
        return self.tape.op("Less", "written", pair, ["B", self.width], BOOL)

    def _inside(
        self, what: str, tokens: ir.Value, start: ir.Value, end: ir.Value, extent: str | None
    ) -> ir.Value:
        """bool [B, n]: start <= token < end."""
        tape, shape = self.tape, ["B", extent]
        after = tape.op("GreaterOrEqual", f"{what}_after_start", [tokens, start], shape, BOOL)
        before = tape.op("Less", f"{what}_before_end", [tokens, end], shape, BOOL)
        return tape.op("And", f"{what}_is_own", [after, before], shape)

    def _heads(self, what: str, tokens: ir.Value) -> ir.Value:
        """Repeat values of tokens [T] for every query head of a key/value head: [G*T].

        By adding zeros [G,1], because the shape of a Tile is not inferred where T is open.
        """
        if self.group == 1:
            return tokens
        tape = self.tape
        line = tape.reshape(f"{what}_of_tokens", tokens, (1, -1), [1, "T"])
        zeros = tape.array(f"zeros.{self.group}", np.zeros((self.group, 1), np.int32))
        grid = tape.op("Add", f"{what}_of_heads", [line, zeros], [self.group, "T"])
        return tape.reshape(what, grid, (-1,), [None])

    def _tokens(self) -> ir.Value:
        """int32 0 .. T-1; a constant once shapes are fixed."""
        tape = self.tape
        size = tape.op("Shape", "token_shape", [self.inputs.positions], [1], ir.DataType.INT64)
        count = tape.op("Squeeze", "token_count", [size, tape.ints(0)], [])
        limit = tape.cast("token_limit", count, INT32)
        bounds = [tape.int32(0), limit, tape.int32(1)]
        return tape.op("Range", "token", bounds, ["T"], INT32)

"""The rules a packed batch must obey before a device sees it, checked all at once.

A device does not check: a wrong page id silently reads or overwrites another user's cache. The
checks need nothing but arrays, so a snapshot can be made by hand in a test or from a step.

| rule           | what must hold                                                                |
|----------------|-------------------------------------------------------------------------------|
| cu_start       | cu_seqlens[0] is 0                                                             |
| cu_order       | cu_seqlens never decreases                                                     |
| cu_end         | cu_seqlens[-1] is T                                                            |
| seq_ends       | seq_ends equals cu_seqlens[1:]                                                 |
| kv_len         | kv_lens[b] is at least the query length of b, and its pages fit in a row       |
| token_seq      | token_seqs[t] is the sequence whose tokens t is among                          |
| token_len      | token_lens[t] is positions[t] + 1                                              |
| position       | the last query token of b is at kv_lens[b] - 1, the others before it, in order |
| page_range     | 0 <= page id < P                                                               |
| null_page      | no token of a sequence lies in page 0                                          |
| page_owner     | every page of b is held by b                                                   |
| page_twice     | a row names a page once                                                        |
| table_tail     | entries past the pages of b are its own (reserved) or the null page            |
| slot_twice     | no two tokens write one slot                                                   |
| slot_place     | a token's slot is where the table puts its position                            |
| logits_row     | 0 <= row < T                                                                   |
| pitch          | a table row has the width that the model was compiled for                      |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .packed_batch import PackedBatch
from .page_pool import NOBODY, NULL_PAGE, PagePool, pages_for
from .sequences import SequenceRows
from .step import Step

Ints = npt.NDArray[Any]


class BatchError(RuntimeError):
    """A batch that breaks rules; `violations` has them all."""

    def __init__(self, violations: list[Violation]) -> None:
        self.violations = violations
        lines = "\n".join(f"  {violation}" for violation in violations)
        super().__init__(f"{len(violations)} violation(s) in a packed batch:\n{lines}")


@dataclass(frozen=True)
class Violation:
    """One broken rule: where (`row` a sequence or token, `column` a table column), what, whose."""

    rule: str
    row: int
    column: int | None
    value: int
    owner: int
    text: str

    def __str__(self) -> str:
        place = f"row {self.row}" + ("" if self.column is None else f", column {self.column}")
        owner = "" if self.owner == NOBODY else f" (request {self.owner})"
        return f"{self.rule}: {place}{owner}: {self.text}"


@dataclass(frozen=True)
class BatchSnapshot:
    """Everything the rules look at. Copies, so that nothing can change while they are checked."""

    num_tokens: int  # T
    num_pages: int  # P
    page_size: int  # S
    table_width: int  # M that the model was compiled for
    sequence_ids: Ints  # [B] request of each sequence
    page_owners: Ints  # [P] request that took each page, NOBODY if free
    page_shared: Ints  # bool [P] held by more than one: the owner says nothing then
    block_table: Ints  # [B, M]
    cu_seqlens: Ints  # [B+1]
    kv_lens: Ints  # [B]
    positions: Ints  # [T]
    slot_mapping: Ints  # [T]
    logits_rows: Ints  # [R]
    seq_ends: Ints | None = None  # [B]
    token_seqs: Ints | None = None  # [T]
    token_lens: Ints | None = None  # [T]

    @classmethod
    def of(
        cls, batch: PackedBatch, step: Step, rows: SequenceRows, pool: PagePool
    ) -> BatchSnapshot:
        """Copy what `step` wrote into `batch`; pages that the step takes count as taken.

        A source that the model does not read is derived from the others, so its rules hold.
        """
        index = np.concatenate(
            [np.arange(rows.max_rows)[step.decode], [chunk.row for chunk in step.chunks]]
        ).astype(np.intp)[: step.num_seqs]
        owners = pool.owners
        owners[step.pages.ids] = rows.arrival[step.pages.rows]
        table = batch.table().copy()
        views = _derived(step, rows, table, batch.layout.limits.page_size)
        views |= {name: batch.view(name).copy() for name in batch.sources}
        return cls(
            num_tokens=batch.num_tokens,
            num_pages=pool.num_pages,
            page_size=batch.layout.limits.page_size,
            table_width=batch.layout.limits.table_width,
            sequence_ids=rows.arrival[index],
            page_owners=owners,
            page_shared=pool.shared_mask(),
            block_table=table,
            cu_seqlens=views["cu_seqlens"],
            kv_lens=views["kv_lens"],
            positions=views["positions"],
            slot_mapping=views["slot_mapping"],
            logits_rows=views["logits_rows"],
            seq_ends=views.get("seq_ends"),
            token_seqs=views.get("token_seqs"),
            token_lens=views.get("token_lens"),
        )


def check_batch(snapshot: BatchSnapshot) -> None:
    """Raise BatchError listing every violation, if there is one."""
    violations = violations_of(snapshot)
    if violations:
        raise BatchError(violations)


def violations_of(snapshot: BatchSnapshot) -> list[Violation]:
    """Return every violation in `snapshot`, shape rules first."""
    found = list(_cumulative(snapshot))
    if not found:  # the other rules index with cu_seqlens
        found += _lengths(snapshot)
        found += _tables(snapshot)
        found += _tokens(snapshot)
        found += _token_rows(snapshot)
    found += [
        Violation(
            "logits_row",
            i,
            None,
            int(row),
            NOBODY,
            f"{row} is not in 0..T-1, T={snapshot.num_tokens}",
        )
        for i, row in enumerate(snapshot.logits_rows.tolist())
        if not 0 <= row < snapshot.num_tokens
    ]
    width = snapshot.block_table.shape[1]
    if width != snapshot.table_width:
        text = f"rows of {width} pages, but the model was compiled for {snapshot.table_width}"
        found.append(Violation("pitch", 0, None, width, NOBODY, text))
    return found


def _cumulative(s: BatchSnapshot) -> Iterator[Violation]:
    cu = s.cu_seqlens
    if cu[0] != 0:
        yield Violation("cu_start", 0, None, int(cu[0]), NOBODY, f"cu_seqlens starts with {cu[0]}")
    for b in np.flatnonzero(np.diff(cu) < 0).tolist():
        text = f"cu_seqlens falls from {cu[b]} to {cu[b + 1]}"
        yield Violation("cu_order", b, None, int(cu[b + 1]), int(s.sequence_ids[b]), text)
    if cu[-1] != s.num_tokens:
        text = f"cu_seqlens ends with {cu[-1]}, but the step has T={s.num_tokens} tokens"
        yield Violation("cu_end", cu.size - 1, None, int(cu[-1]), NOBODY, text)
    if s.seq_ends is not None and not np.array_equal(s.seq_ends, cu[1:]):
        b = int(np.argmax(s.seq_ends != cu[1:]))
        text = f"seq_ends is {s.seq_ends[b]}, cu_seqlens[{b + 1}] is {cu[b + 1]}"
        yield Violation("seq_ends", b, None, int(s.seq_ends[b]), int(s.sequence_ids[b]), text)


def _lengths(s: BatchSnapshot) -> Iterator[Violation]:
    query = np.diff(s.cu_seqlens)
    most = s.block_table.shape[1] * s.page_size
    for b in np.flatnonzero((s.kv_lens < query) | (s.kv_lens > most)).tolist():
        text = f"kv_len {s.kv_lens[b]} with {query[b]} query tokens and room for {most}"
        yield Violation("kv_len", b, None, int(s.kv_lens[b]), int(s.sequence_ids[b]), text)
    expected = _expected_positions(s)
    for t in np.flatnonzero(s.positions != expected).tolist():
        b = int(np.searchsorted(s.cu_seqlens, t, side="right")) - 1
        text = f"token {t} of sequence {b} has position {s.positions[t]}, expected {expected[t]}"
        yield Violation("position", t, None, int(s.positions[t]), int(s.sequence_ids[b]), text)


def _token_rows(s: BatchSnapshot) -> Iterator[Violation]:
    """Check what says the same of each token as cu_seqlens and positions do."""
    of_token = np.repeat(np.arange(s.sequence_ids.size), np.diff(s.cu_seqlens))
    for rule, name, found, expected in (
        ("token_seq", "token_seqs", s.token_seqs, of_token),
        ("token_len", "token_lens", s.token_lens, s.positions + 1),
    ):
        if found is None:
            continue
        for t in np.flatnonzero(found != expected).tolist():
            text = f"{name} is {found[t]} for token {t}, expected {expected[t]}"
            owner = int(s.sequence_ids[of_token[t]])
            yield Violation(rule, t, None, int(found[t]), owner, text)


def _tables(s: BatchSnapshot) -> Iterator[Violation]:
    for b, row in enumerate(s.block_table):
        owner = int(s.sequence_ids[b])
        used = min(pages_for(int(s.kv_lens[b]), s.page_size), row.size)
        seen: set[int] = set()
        for column, page in enumerate(row.tolist()):
            if not 0 <= page < s.num_pages:
                text = f"page {page} is not in 0..{s.num_pages - 1}"
                yield Violation("page_range", b, column, page, owner, text)
                continue
            holder = int(s.page_owners[page])
            foreign = holder != owner and not s.page_shared[page] and page != NULL_PAGE
            if foreign:
                whose = "nobody" if holder == NOBODY else f"request {holder}"
                rule = "page_owner" if column < used else "table_tail"
                text = f"page {page} belongs to {whose}"
                yield Violation(rule, b, column, page, owner, text)
            if page == NULL_PAGE and column < used:
                text = f"the null page holds tokens: kv_len {s.kv_lens[b]} needs {used} pages"
                yield Violation("null_page", b, column, page, owner, text)
            if page != NULL_PAGE and page in seen:
                text = f"page {page} is listed twice"
                yield Violation("page_twice", b, column, page, owner, text)
            seen.add(page)


def _tokens(s: BatchSnapshot) -> Iterator[Violation]:
    of_token = np.repeat(np.arange(s.sequence_ids.size), np.diff(s.cu_seqlens))
    column = np.clip(s.positions // s.page_size, 0, s.block_table.shape[1] - 1)
    expected = s.block_table[of_token, column] * s.page_size + s.positions % s.page_size
    for t in np.flatnonzero((s.slot_mapping != expected) & (s.slot_mapping >= 0)).tolist():
        owner, slot = int(s.sequence_ids[of_token[t]]), int(s.slot_mapping[t])
        text = (
            f"token {t} at position {s.positions[t]} writes slot {slot} (page "
            f"{slot // s.page_size}), but its table says slot {expected[t]}"
        )
        yield Violation("slot_place", t, int(column[t]), slot, owner, text)
    slots, first, counts = np.unique(s.slot_mapping, return_index=True, return_counts=True)
    for i in np.flatnonzero((counts > 1) & (slots >= 0)).tolist():
        owner = int(s.sequence_ids[of_token[first[i]]])
        text = f"slot {slots[i]} is written by {counts[i]} tokens"
        yield Violation("slot_twice", int(first[i]), None, int(slots[i]), owner, text)


def _expected_positions(s: BatchSnapshot) -> Ints:
    query = np.diff(s.cu_seqlens)
    start = s.kv_lens - query
    within = np.arange(s.num_tokens) - np.repeat(s.cu_seqlens[:-1], query)
    expected: Ints = np.repeat(start, query) + within
    return expected


def _derived(step: Step, rows: SequenceRows, table: Ints, page_size: int) -> dict[str, Ints]:
    """What the sources that the rules look at must be, for a model that does not read them all."""
    computed = rows.num_computed[step.decode]
    widths = [1] * step.num_decode + [chunk.width for chunk in step.chunks]
    starts = np.concatenate([computed, [chunk.start for chunk in step.chunks]]).astype(np.int64)
    cu = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    positions = np.arange(cu[-1]) + np.repeat(starts - cu[:-1], widths)
    column = np.clip(positions // page_size, 0, table.shape[1] - 1)
    pages = table[np.repeat(np.arange(len(widths)), widths), column].astype(np.int64)
    return {
        "cu_seqlens": cu,
        "kv_lens": starts + widths,
        "positions": positions,
        "slot_mapping": pages * page_size + positions % page_size,
        "logits_rows": np.zeros(0, np.int64),  # none is asked for
    }

"""How a mixed step is put together: decode rows, then running prompts, then admissions.

A draft counts with copies (`free`, `budget`) and changes nothing. Its rules:

1. Every sequence that needs one token gets it. If pages run out, the YOUNGEST running sequence goes
   back to the queue, so an older one never loses to a younger one and the oldest always advances.
2. Prompts in progress continue in order of arrival, with as many tokens as budget and pages allow.
   One that cannot compute a single token takes the place of a younger sequence, if there is one;
   otherwise it waits, and the older ones free pages as they end.
3. Waiting requests are admitted in order while their whole prompt fits beside what the running ones
   still need, and a reserve stays free: an admission should not cause a preemption right after. No
   admission in a step that preempts. If nothing runs, the first request needs no reserve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .page_pool import PageIds, PagePool, pages_for
from .sequences import SequenceRows
from .step import NO_INDEX, NO_NEW_PAGES, NO_PAGES, Chunk, Index, NewPages, Step

if TYPE_CHECKING:
    from .request import Request


@dataclass(frozen=True)
class SchedulerPolicy:
    """Limits of a step and of a sequence.

    max_batch: most running sequences. max_batch_tokens: most tokens of a step, at least max_batch.
    page_size, max_seq_len: tokens. reserve_pages: pages per running sequence that an admission has
    to leave free.
    """

    max_batch: int
    max_batch_tokens: int
    page_size: int
    max_seq_len: int
    reserve_pages: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_batch_tokens", "page_size", "max_seq_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.reserve_pages < 0:
            raise ValueError(f"reserve_pages is {self.reserve_pages}: it must be at least 0")
        if self.max_batch_tokens < self.max_batch:
            raise ValueError(
                f"max_batch_tokens is {self.max_batch_tokens} but max_batch is {self.max_batch}: "
                "each running sequence computes a token in each step, so max_batch_tokens must be "
                "at least max_batch; raise it or lower max_batch"
            )


class StepDraft:
    """A step in the making; `step()` freezes it."""

    def __init__(self, rows: SequenceRows, pool: PagePool, policy: SchedulerPolicy) -> None:
        """Start an empty draft over the present state."""
        self._rows, self._pool, self._policy = rows, pool, policy
        self._free = pool.num_free
        self._freed = 0  # pages that the victims give back
        self._budget = policy.max_batch_tokens
        self._pending = rows.num_tokens[: rows.count] - rows.num_computed[: rows.count]
        self._decode: Index = NO_INDEX
        self._short = np.empty(0, np.bool_)  # which of _decode need a page
        self._chunks: list[Chunk] = []
        self._chunk_pages: list[int] = []  # new pages of each chunk
        self._owed = 0  # pages that prompts in progress still need after this step
        self._admitted: list[Request] = []
        self._victims: list[int] = []
        by_age = np.argsort(rows.arrival[: rows.count])
        self._alive: list[int] = by_age.tolist()  # oldest first

    def add_decodes(self) -> None:
        """Rule 1."""
        rows = self._rows
        self._decode = np.flatnonzero(self._pending == 1)
        self._short = rows.capacity[self._decode] <= rows.num_computed[self._decode]
        while (need := int(np.count_nonzero(self._short))) > self._free:
            self._drop_decode(self._evict_youngest())
        self._free -= need
        self._budget -= self._decode.size

    def add_chunks(self) -> None:
        """Rule 2."""
        for row in [row for row in self._alive if self._pending[row] > 1]:
            if row in self._victims:
                break  # it was the youngest left, and all after it are younger
            length = self._fitting(row)
            while length == 0 and self._budget and self._alive[-1] != row:
                victim = self._evict_youngest()
                short = self._drop_decode(victim)
                if short is not None:
                    self._free += short
                    self._budget += 1
                length = self._fitting(row)
            if length:
                self._add_chunk(
                    self._rows.requests[row], row, int(self._rows.num_computed[row]), length
                )

    def add_admissions(self, waiting: Iterable[Request]) -> None:
        """Rule 3."""
        policy, rows = self._policy, self._rows
        if self._victims:
            return
        for request in waiting:
            running = rows.count + len(self._admitted)
            if not self._budget or running >= policy.max_batch:
                return
            known = request.known_tokens().size
            needed = pages_for(known, policy.page_size)
            if running:
                # One more page than the prompt where it will grow into it at once.
                grown = pages_for(min(known + 1, request.limit - 1), policy.page_size)
                reserve = math.ceil(policy.reserve_pages * running)
                if max(needed, grown) > self._free - self._owed - reserve:
                    return
            elif needed > self._free:
                return
            self._add_chunk(request, running, 0, min(known, self._budget))
            self._admitted.append(request)

    def step(self, version: int) -> Step | None:
        """Freeze the draft; None when it computes nothing."""
        n = self._rows.count
        if not self._decode.size and not self._chunks:
            return None
        whole = self._decode.size == n and not self._victims
        return Step(
            version=version,
            decode=slice(0, n) if whole else self._decode,
            num_decode=int(self._decode.size),
            chunks=tuple(self._chunks),
            pages=self._new_pages(),
            admitted=tuple(self._admitted),
            preempted=tuple(self._victims),
        )

    def _fitting(self, row: int) -> int:
        """Return how many pending tokens of `row` budget and free pages allow."""
        room = (int(self._rows.table.num_pages[row]) + self._free) * self._policy.page_size
        room -= int(self._rows.num_computed[row])
        return min(int(self._pending[row]), self._budget, room)

    def _add_chunk(self, request: Request, row: int, start: int, length: int) -> None:
        size = self._policy.page_size
        known = request.known_tokens().size
        held = 0 if row >= self._rows.count else int(self._rows.table.num_pages[row])
        pages = max(0, pages_for(start + length, size) - held)
        self._chunks.append(Chunk(request, row, start, length, length, start + length == known))
        self._chunk_pages.append(pages)
        self._free -= pages
        self._budget -= length
        self._owed += pages_for(known, size) - max(held, pages_for(start + length, size))

    def _evict_youngest(self) -> int:
        victim = self._alive.pop()
        self._victims.append(victim)
        freed = self._pool.would_free(self._victim_pages()).size
        self._free += freed - self._freed
        self._freed = freed
        return victim

    def _victim_pages(self) -> PageIds:
        if not self._victims:
            return NO_PAGES
        return np.concatenate([self._rows.table.pages(row) for row in self._victims])

    def _drop_decode(self, row: int) -> int | None:
        """Take `row` out of the decode rows; returns the pages it needed, None if not there."""
        keep = self._decode != row
        if keep.all():
            return None
        short = int(self._short[~keep][0])
        self._decode, self._short = self._decode[keep], self._short[keep]
        return short

    def _new_pages(self) -> NewPages:
        table = self._rows.table
        decodes = np.flatnonzero(self._short)
        seqs: list[Index] = [decodes]
        rows: list[Index] = [self._decode[decodes]]
        columns: list[Index] = [table.num_pages[self._decode[decodes]].astype(np.intp)]
        pages = zip(self._chunks, self._chunk_pages, strict=True)
        for i, (chunk, count) in enumerate(pages, self._decode.size):
            if count:
                end = pages_for(chunk.start + chunk.length, self._policy.page_size)
                seqs.append(np.full(count, i, np.intp))
                rows.append(np.full(count, chunk.row, np.intp))
                columns.append(np.arange(end - count, end, dtype=np.intp))
        seq = np.concatenate(seqs)
        if not seq.size:
            return NO_NEW_PAGES
        ids = self._pool.peek(seq.size, giving=self._victim_pages())
        if ids is None:  # the counts above make this impossible
            raise RuntimeError(f"a draft of {seq.size} new pages does not fit its own count")
        return NewPages(seq, np.concatenate(rows), np.concatenate(columns), ids.copy())

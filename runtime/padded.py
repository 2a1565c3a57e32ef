"""The contiguous, padded baseline: what serving looks like without a paged cache.

Same engine, same model, other policy, so that a comparison measures the policy alone:

* a sequence reserves neighbouring pages for max_seq_len tokens at admission, whatever it will use;
  so fewer sequences run at once;
* prompts are computed together, each padded at its end to the longest of the step; a prompt step
  does nothing else.

Padding tokens are ordinary tokens to the model: they are computed, and their K and V land behind
the sequence's own last token, inside its own reservation. Causality hides them from every real
token, and the real tokens that follow overwrite them before they could be seen.
"""

from __future__ import annotations

import numpy as np

from .page_pool import pages_for
from .request import Request, RequestError
from .scheduler import Scheduler
from .step import NO_INDEX, NO_NEW_PAGES, NO_PAGES, Chunk, NewPages, Step


class PaddedScheduler(Scheduler):
    """Static reservations and padded prompt steps behind the scheduler's interface."""

    @property
    def run_length(self) -> int:
        """Pages that one sequence reserves."""
        return pages_for(self.policy.max_seq_len, self.policy.page_size)

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue; raises RequestError when it can never run."""
        if self.run_length > self.pool.num_usable:
            raise RequestError(
                f"a contiguous cache reserves {self.run_length} neighbouring pages a sequence "
                f"(max_seq_len {self.policy.max_seq_len}, page size {self.policy.page_size}), but "
                f"the pool has {self.pool.num_usable}: give it more pages, or use cache='paged'"
            )
        super().submit(request)

    def plan(self) -> Step | None:
        """Return a prompt step if there is one to make, else a decode step."""
        admitted, runs = self._admissible()
        rows = self.rows
        running = np.flatnonzero(
            rows.num_tokens[: rows.count] - rows.num_computed[: rows.count] > 1
        )
        if not running.size and not admitted:
            return self._plan_decode()
        group = [(rows.requests[row], row, int(rows.num_computed[row])) for row in running.tolist()]
        group += [(request, rows.count + i, 0) for i, request in enumerate(admitted)]
        return Step(
            version=self.version,
            decode=NO_INDEX,
            num_decode=0,
            chunks=self._padded_chunks(group),
            pages=self._pages_of(runs, running.size),
            admitted=tuple(admitted),
            contiguous=True,
        )

    def _admissible(self) -> tuple[list[Request], list[np.ndarray]]:
        """Return the waiting requests that get a run now, and their runs."""
        admitted: list[Request] = []
        runs: list[np.ndarray] = []
        taken = NO_PAGES
        for request in self.waiting.values():
            if self.rows.count + len(admitted) >= self.policy.max_batch:
                break
            run = self.pool.peek_run(self.run_length, excluding=taken)
            if run is None:
                break
            admitted.append(request)
            runs.append(run)
            taken = np.concatenate([taken, run])
        return admitted, runs

    def _padded_chunks(self, group: list[tuple[Request, int, int]]) -> tuple[Chunk, ...]:
        pending = [request.known_tokens().size - start for request, _, start in group]
        # No segment may reach past max_seq_len, where there is neither a position nor a page.
        room = min(self.policy.max_seq_len - start for _, _, start in group)
        width = min(max(pending), self.policy.max_batch_tokens // len(group), room)
        return tuple(
            Chunk(request, row, start, min(left, width), width, samples=left <= width)
            for (request, row, start), left in zip(group, pending)
        )

    def _pages_of(self, runs: list[np.ndarray], first_seq: int) -> NewPages:
        if not runs:
            return NO_NEW_PAGES
        length, count = self.run_length, len(runs)
        order = np.repeat(np.arange(count, dtype=np.intp), length)
        ids = np.concatenate(runs)
        columns = np.tile(np.arange(length, dtype=np.intp), count)
        return NewPages(order + first_seq, order + self.rows.count, columns, ids)

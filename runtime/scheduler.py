"""Who computes what in the next step.

`plan` is pure: it returns a `Step` that fits. `commit` applies it together with the sampled tokens.
Between the two nothing has changed, so a step that fails on the device leaves no trace.

    waiting --admission--> rows (prompt in chunks, then one token a step) --> finished
       ^______________________ preemption: pages given back, recomputed later

Admission has three answers: now; later (the queue keeps its order, so it always comes); never, an
error naming the numbers, before the request holds anything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from .number_text import counted
from .page_pool import PagePool
from .request import FinishReason, Request, RequestError, Tokens
from .sequences import SequenceRows
from .step import NO_NEW_PAGES, NewPages, Step
from .step_draft import SchedulerPolicy, StepDraft

__all__ = ["Scheduler", "SchedulerPolicy", "StalePlanError"]


class StalePlanError(RuntimeError):
    """A step was committed after something else had changed what it was planned on."""


class Scheduler:
    """Continuous batching with chunked prompts over a page pool."""

    def __init__(
        self,
        rows: SequenceRows,
        pool: PagePool,
        policy: SchedulerPolicy,
        is_eos: npt.NDArray[np.bool_],
        on_move: Callable[[int, int], None] = lambda _source, _target: None,
    ) -> None:
        """Schedule over `rows` and `pool`.

        is_eos: bool [V], tokens that end a sequence. on_move(source, target) tells the owner of
        other per-row state that a sequence moved to another row.
        """
        self.rows, self.pool, self.policy = rows, pool, policy
        self.waiting: OrderedDict[int, Request] = OrderedDict()  # by id; oldest first
        self.version = 0
        self.num_preemptions = 0
        self._is_eos = is_eos
        self._on_move = on_move

    @property
    def num_unfinished(self) -> int:
        """Requests running or waiting."""
        return self.rows.count + len(self.waiting)

    @property
    def tokens_per_sequence(self) -> int:
        """Most tokens of a sequence whose K and V the pool can hold, all else being empty."""
        return self.pool.num_usable * self.policy.page_size

    def submit(self, request: Request) -> None:
        """Put a request at the end of the queue; raises RequestError when it can never run.

        The request's `limit` is set: prompt + max_tokens, cut at the model's max_seq_len and at the
        pool's size + 1 (the last token is returned but never computed, so it needs no page). A
        request that is cut ends with finish_reason "length".
        """
        prompt = request.prompt_tokens
        max_seq_len, capacity = self.policy.max_seq_len, self.tokens_per_sequence
        if not prompt:
            raise RequestError("the prompt has no tokens: at least one is needed to start from")
        if prompt >= max_seq_len:
            raise RequestError(
                f"the prompt has {prompt} tokens, but this model was compiled for sequences of "
                f"{max_seq_len} tokens including the answer, so at most {max_seq_len - 1} are "
                "allowed: shorten the prompt or compile with a larger --max-seq-len"
            )
        if prompt > capacity:
            raise RequestError(
                f"the prompt has {prompt} tokens, but the page pool holds {capacity} "
                f"({counted(self.pool.num_usable, 'page')} of {self.policy.page_size} tokens) and "
                "can never fit it: shorten the prompt or give the KV cache more pages"
            )
        request.limit = min(prompt + request.params.max_tokens, max_seq_len, capacity + 1)
        self.waiting[request.id] = request

    def plan(self) -> Step | None:
        """Return the next step, known to fit, or None when nothing is to do; changes nothing."""
        rows = self.rows
        if not rows.num_prefilling and (not self.waiting or rows.count == self.policy.max_batch):
            step = self._plan_decode()
            if step is not None:
                return step
        if not self.num_unfinished:
            return None
        draft = StepDraft(rows, self.pool, self.policy)
        draft.add_decodes()
        draft.add_chunks()
        draft.add_admissions(self.waiting.values())
        return draft.step(self.version)

    def commit(self, step: Step, sampled: Tokens) -> list[Request]:
        """Apply a step and its sampled tokens; returns the requests that ended.

        sampled: int32, one for each of `step.sampling_rows`. Raises StalePlanError.
        """
        if step.version != self.version:
            raise StalePlanError(
                f"step planned at version {step.version}, but the state is at {self.version}: "
                "plan again"
            )
        self.version += 1
        self._commit_pages(step)
        done = self._commit_decode(step, sampled[: step.num_decode])
        if not step.chunks and not step.preempted:
            return self._end(done) if done else []
        for request in step.admitted:
            del self.waiting[request.id]
            self.rows.enter(request)
        done |= self._commit_chunks(step, sampled[step.num_decode :])
        finished = self._end(done, step.preempted)
        self.rows.count_prefilling()
        return finished

    def remove(
        self, request: Request, reason: FinishReason, error: Exception | None = None
    ) -> bool:
        """End a request wherever it is; returns False, changing nothing, when it has ended."""
        if request.finished:
            return False
        if request.row >= 0:
            self.version += 1
            self._take_out(request.row)
            self.rows.count_prefilling()
        else:
            self.waiting.pop(request.id, None)
        request.finish(reason, error)
        return True

    def _plan_decode(self) -> Step | None:
        """Return the step in which every running row computes one token, if its pages fit."""
        rows = self.rows
        n = rows.count
        if not n:
            return None
        pages = NO_NEW_PAGES
        short = np.flatnonzero(rows.capacity[:n] <= rows.num_computed[:n])
        if short.size:
            ids = self.pool.peek(short.size)
            if ids is None:
                return None
            pages = NewPages(short, short, rows.table.num_pages[short].astype(np.intp), ids.copy())
        return Step(self.version, slice(0, n), n, pages=pages)

    def _commit_pages(self, step: Step) -> None:
        rows, pages = self.rows, step.pages
        if step.preempted:
            # In one piece, as the draft asked `peek`: the order on the stack depends on it.
            victims = [rows.table.pages(row) for row in step.preempted]
            self.pool.give(np.concatenate(victims))
            for row in step.preempted:
                rows.table.clear(row)
        if not pages.ids.size:
            return
        # `prepare` has reset the scratch rows of admissions, so this is right for them too.
        if step.contiguous:
            self.pool.take_exactly(pages.ids, rows.arrival[pages.rows])
        else:
            self._take_as_planned(pages)
        rows.table.append(pages.rows, pages.columns, pages.ids)
        np.add.at(rows.capacity, pages.rows, self.policy.page_size)

    def _take_as_planned(self, pages: NewPages) -> None:
        ids = self.pool.take(pages.ids.size, self.rows.arrival[pages.rows])
        if ids is None or not np.array_equal(ids, pages.ids):
            raise StalePlanError("the free list changed between plan and commit")

    def _commit_decode(self, step: Step, sampled: Tokens) -> set[int]:
        """Append the tokens of the decode rows; returns the rows that end."""
        if not step.num_decode:
            return set()
        rows, at = self.rows, step.decode
        rows.num_computed[at] += 1
        rows.next_slot[at] += 1
        if step.pages.ids.size:
            new = step.pages.seqs < step.num_decode
            first = step.pages.ids[new] * self.policy.page_size
            rows.next_slot[step.pages.rows[new]] = first + 1
        rows.append_tokens(at, sampled)
        ends = self._is_eos.take(sampled, mode="clip")
        ends &= rows.stops_at_eos[at]
        ends |= rows.num_tokens[at] >= rows.limit[at]
        if not ends.any():
            return set()
        at_end = np.flatnonzero(ends)
        ended: list[int] = (at_end if isinstance(at, slice) else at[at_end]).tolist()
        return set(ended)

    def _commit_chunks(self, step: Step, sampled: Tokens) -> set[int]:
        rows, page_size = self.rows, self.policy.page_size
        done, tokens = set(), iter(sampled.tolist())
        for chunk in step.chunks:
            row = chunk.row
            computed = chunk.start + chunk.length
            rows.num_computed[row] = computed
            if computed < rows.capacity[row]:
                page = int(rows.table.ids[row, computed // page_size])
                rows.next_slot[row] = page * page_size + computed % page_size
            if chunk.samples:
                token = next(tokens)
                rows.append_tokens(np.array([row]), np.array([token], np.int32))
                chunk.request.note_first_token()
                if self._stops(row, token) or rows.num_tokens[row] >= rows.limit[row]:
                    done.add(row)
        return done

    def _stops(self, row: int, token: int) -> bool:
        """Whether `token` ends the sequence of `row` by itself."""
        return bool(self._is_eos.take(token, mode="clip") and self.rows.stops_at_eos[row])

    def _end(self, done: set[int], preempted: Sequence[int] = ()) -> list[Request]:
        """Finish the rows `done` and queue the rows `preempted` again; returns the finished."""
        rows = self.rows
        finished, queued = [], []
        # Highest first: what moves into a hole is then a row that stays.
        for row in sorted(done.union(preempted), reverse=True):
            request = rows.requests[row]
            reason: FinishReason = "length"
            if row in done and self._stops(row, int(rows.last_token[row])):
                reason = "stop"
            self._take_out(row)
            if row in done:
                request.finish(reason)
                finished.append(request)
            else:
                queued.append(request)
        for request in sorted(queued, key=lambda request: request.id, reverse=True):
            self.num_preemptions += 1
            request.timings.preemptions += 1
            self.waiting[request.id] = request
            self.waiting.move_to_end(request.id, last=False)
        return finished

    def _take_out(self, row: int) -> None:
        self.pool.give(self.rows.table.pages(row))
        moved = self.rows.remove(row)
        if moved is not None:
            self._on_move(*moved)

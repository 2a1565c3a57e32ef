"""The engine without threads: `step()` is schedule, execute, commit.

One thread calls `step`; any thread may call the rest. The hub's lock is held while plans are made
and applied, never while the device works, so consumers read tokens during the execution.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .backend import Backend, DeviceLostError, ModelFacts, StepOutput
from .batch_bounds import BatchBounds
from .batch_validator import BatchSnapshot, check_batch
from .block_table import BlockTable
from .engine_statistics import Counters, EngineStatistics
from .packed_batch import BatchLayout, BatchLimits, PackedBatch
from .padded import PaddedScheduler
from .page_pool import PagePool
from .page_trace import PageTrace
from .request import Hub, Request, RequestError, Tokens
from .sampler import LogitsError, SamplerState, SamplingParams, request_seed, sample
from .scheduler import Scheduler, SchedulerPolicy
from .sequences import SequenceRows
from .step import Step
from .stop_check import StopChecks, TextTools

_log = logging.getLogger(__name__)

__all__ = ["CoreOptions", "EngineCore", "batch_limits"]

NO_TOKENS: Tokens = np.empty(0, np.int32)


@dataclass(frozen=True)
class CoreOptions:
    """What shapes a core: the policy, the pool's size, the cache's kind, and the extra checks.

    least_pages: pages that will do where the device has no room for num_pages; 0 = num_pages only.
    contiguous: the padded baseline. checked: check every rule of a batch before the device sees it,
    not its bounds alone.
    """

    policy: SchedulerPolicy
    num_pages: int
    contiguous: bool = False
    checked: bool = False
    least_pages: int = 0


def batch_limits(policy: SchedulerPolicy, geometry: ModelFacts) -> BatchLimits:
    """Return the largest step that a device sees: the policy's, padded to the largest gear."""
    return BatchLimits(
        max(policy.max_batch_tokens, geometry.gear_tokens),
        max(policy.max_batch, geometry.gear_seqs),
        geometry.table_width,
        policy.page_size,
    )


class EngineCore:
    """Scheduler, batch, model and sampler of one model on one device."""

    def __init__(
        self,
        backend: Backend,
        options: CoreOptions,
        hub: Hub | None = None,
        text: TextTools | None = None,
        trace: PageTrace | None = None,
    ) -> None:
        """Open `backend` (on the calling thread, which then owns the device)."""
        geometry, policy = backend.geometry, options.policy
        self.hub = hub or Hub()
        self.geometry: ModelFacts = geometry
        self.counters = Counters()
        self.listeners: list[Callable[[], None]] = []
        self._stops = StopChecks(text)
        self._trace = trace
        self._checked = options.checked
        self._next_id = 0
        self._in_step = False
        self._cancelled: list[Request] = []  # during a step; applied after it
        self._all_greedy = False
        self._backend = backend
        layout = BatchLayout.of(batch_limits(policy, geometry), geometry.bindings)
        self._batch: PackedBatch = backend.open(options.num_pages, layout, options.least_pages)
        try:
            self._build(options, backend.num_pages)
        except BaseException:
            self.close()
            raise

    def _build(self, options: CoreOptions, num_pages: int) -> None:
        """Make what depends on the pages that the device had room for."""
        geometry, policy = self.geometry, options.policy
        self.pool = PagePool(num_pages)
        # A step may admit before it commits, never beyond max_batch: no scratch rows past it.
        table = BlockTable(policy.max_batch, geometry.table_width)
        self.rows = SequenceRows(policy.max_batch, policy.max_seq_len, table)
        self.sampler = SamplerState(policy.max_batch)
        is_eos = np.zeros(geometry.vocab_size, np.bool_)
        is_eos[list(geometry.eos_ids)] = True
        kind = PaddedScheduler if options.contiguous else Scheduler
        self.scheduler = kind(self.rows, self.pool, policy, is_eos, self.sampler.move)
        self._bounds = BatchBounds(self._batch, num_pages)
        if self._trace is not None:
            self._trace.begin(num_pages, policy.page_size)

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return self.scheduler.num_unfinished > 0

    def submit(
        self, prompt: Tokens, params: SamplingParams, choice: int = 0, *, continues: bool = True
    ) -> Request:
        """Queue a prompt (int32 token ids); raises RequestError when it can never run.

        continues: the answer's text goes on from the prompt's; False: it is a text of its own.
        """
        self._check_prompt(prompt, params)
        with self.hub.lock:
            request = Request(self._next_id, prompt, params, self.hub)
            request.continues = continues
            request.seed = request_seed(params.seed, choice)
            self._stops.check_possible(params)
            self.scheduler.submit(request)
            self._next_id += 1
            self._stops.add(request)
        return request

    def cancel(self, request: Request) -> None:
        """Drop a request: at once, or right after the step in progress. Twice is once."""
        with self.hub.lock:
            if self._in_step:
                self._cancelled.append(request)
            else:
                self._drop(request)
                self._ring(True)

    def step(self) -> bool:
        """Compute one step; returns False when there was nothing to do.

        If the device fails, the requests of the step end with an error and the others go on. If
        it is lost, all of them end and DeviceLostError is raised: no later step can work.
        """
        started = time.perf_counter_ns()
        step = self._schedule()
        if step is None:
            return False
        scheduled = time.perf_counter_ns()
        try:
            sampled = self._execute(step)
        except LogitsError as error:
            # Only those rows are bad. The step is dropped, and planned again without them.
            self._fail([self._request_at(step, row) for row in error.rows], error)
            return True
        except DeviceLostError as error:
            self._fail(self._requests_of(step), error)
            self.fail_all(error)
            raise
        except Exception as error:
            self._fail(self._requests_of(step), error)
            return True
        except BaseException:
            self._in_step = False
            raise
        executed = time.perf_counter_ns()
        self._commit(step, sampled)
        counters = self.counters
        counters.schedule_ns += scheduled - started
        counters.execute_ns += executed - scheduled
        counters.commit_ns += time.perf_counter_ns() - executed
        return True

    def fail_all(self, error: Exception) -> None:
        """End every unfinished request with `error`."""
        with self.hub.lock:
            requests = [*self.rows.requests, *self.scheduler.waiting.values()]
        self._fail(requests, error)

    def statistics(self) -> EngineStatistics:
        """Return a snapshot."""
        with self.hub.lock:
            counters, pool, spec = self.counters, self.pool.statistics(), self.geometry.cache
            return EngineStatistics(
                running=self.rows.count,
                waiting=len(self.scheduler.waiting),
                steps=counters.steps,
                failed_steps=counters.failed_steps,
                preemptions=self.scheduler.num_preemptions,
                finished=counters.finished,
                computed_tokens=counters.computed_tokens,
                padding_tokens=counters.padding_tokens,
                generated_tokens=counters.generated_tokens,
                schedule_seconds=counters.schedule_ns * 1e-9,
                execute_seconds=counters.execute_ns * 1e-9,
                commit_seconds=counters.commit_ns * 1e-9,
                page_bytes=spec.bytes_per_page,
                kv_reserved_bytes=pool.held * spec.bytes_per_page,
                kv_used_bytes=int(self.rows.num_computed[: self.rows.count].sum())
                * spec.bytes_per_token,
                kv_high_water_bytes=pool.high_water * spec.bytes_per_page,
                pool=pool,
            )

    def close(self) -> None:
        """Free the device; unfinished requests stay as they are."""
        if self._trace is not None:
            self._trace.close()
        self._backend.close()

    def _schedule(self) -> Step | None:
        with self.hub.lock:
            step = self.scheduler.plan()
            if step is None:
                if self.rows.count:
                    raise RuntimeError(
                        f"{self.rows.count} sequences run but none can compute a token: the page "
                        f"pool is damaged ({'; '.join(self.pool.leaks())})"
                    )
                return None
            self._in_step = True
            for row, request in enumerate(step.admitted, self.rows.count):
                request.note_admitted()
                self.rows.prepare(row, request)
                self.sampler.set(row, request.params, request.seed)
            return step

    def _execute(self, step: Step) -> Tokens:
        """Run the model on the step's tokens and choose the next ones."""
        batch = self._batch
        batch.fill(step, self.rows)
        if self._checked:
            check_batch(BatchSnapshot.of(batch, step, self.rows, self.pool))
        elif not self._bounds.hold(batch, step):
            self._bounds.explain(batch, step, self.rows, self.pool)
        self._backend.launch(batch)
        return self._sample(step, self._backend.wait())

    def _sample(self, step: Step, output: StepOutput) -> Tokens:
        best = output.argmax()
        if best is not None and not step.chunks and self._all_greedy:
            return best[: step.num_decode]
        rows = step.sampling_rows
        if not rows.size:
            return NO_TOKENS
        # Whole rows of logits are moved only for the requests that need them.
        drawn = np.arange(rows.size)
        tokens = np.empty(rows.size, np.int32)
        if best is not None:
            tokens[:] = best[: rows.size]
            drawn = np.flatnonzero(~self.sampler.greedy[rows] | (self.sampler.bias_count[rows] > 0))
        if drawn.size:
            positions = self.rows.num_tokens[rows[drawn]].astype(np.int64)
            tokens[drawn] = sample(self.sampler, rows[drawn], output.logits(drawn), positions)
        return tokens

    def _commit(self, step: Step, sampled: Tokens) -> None:
        with self.hub.lock:
            finished = self.scheduler.commit(step, sampled)
            self.counters.count(step, sampled.size)
            if self._stops.active:
                finished += self._stops.check(self._stop)
            if self._trace is not None:
                self._trace.record(self.counters.steps, self.rows)
            self._in_step = False
            self.counters.finished += len(finished)
            ended = bool(finished)
            if self._cancelled:
                for request in self._cancelled:
                    self._drop(request)
                ended = True
                self._cancelled.clear()
            if ended or step.chunks or step.preempted:
                self._composition_changed()
            self._ring(ended)

    def _stop(self, request: Request) -> None:
        self.scheduler.remove(request, "stop")

    def _drop(self, request: Request) -> None:
        if self.scheduler.remove(request, "cancelled"):
            self._stops.forget(request)

    def _composition_changed(self) -> None:
        self._all_greedy = self.sampler.all_greedy(np.arange(self.rows.count))

    def _ring(self, finished: bool) -> None:
        """Wake the consumers, once a step; those that wait for an end only when one came."""
        self.hub.bell.notify_all()
        if finished:
            self.hub.done.notify_all()
        for listener in tuple(self.listeners):
            try:
                listener()
            except Exception:  # of an event loop that has ended, say: no reason to end requests
                _log.exception("a listener failed and is not called again")
                self.listeners.remove(listener)

    def _fail(self, requests: list[Request], error: Exception) -> None:
        with self.hub.lock:
            self._in_step = False
            self.counters.failed_steps += 1
            for request in requests:
                self._stops.forget(request)
                self.scheduler.remove(request, "error", error)
            for request in self._cancelled:
                self._drop(request)
            self._cancelled.clear()
            self._composition_changed()
            self._ring(True)

    def _requests_of(self, step: Step) -> list[Request]:
        rows = np.arange(self.rows.count)[step.decode].tolist()
        return [self.rows.requests[row] for row in rows] + [c.request for c in step.chunks]

    def _request_at(self, step: Step, row: int) -> Request:
        count = self.rows.count
        return self.rows.requests[row] if row < count else step.admitted[row - count]

    def _check_prompt(self, prompt: Tokens, params: SamplingParams) -> None:
        vocab = self.geometry.vocab_size
        outside = np.flatnonzero((prompt < 0) | (prompt >= vocab))
        if outside.size:
            at = int(outside[0])
            raise RequestError(
                f"token {prompt[at]} at place {at} of the prompt is not in the model's vocabulary "
                f"of {vocab}: ids are 0..{vocab - 1}"
            )
        params.check_vocab(vocab)

"""The two batching policies on the same requests without a model: what each would compute and hold.

The real schedulers run; only the device is left out, so the numbers are exact and the same on every
machine. A step's sampled tokens are zeros, every request runs to its full length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from workload import BenchRequest

POLICIES = ("paged", "padded")


@dataclass(frozen=True)
class CacheShape:
    """What decides the bytes of a page."""

    layers: int
    kv_heads: int
    head_dim: int
    itemsize: int
    page_size: int
    max_seq_len: int

    @property
    def page_bytes(self) -> int:
        """Bytes of K and V of all layers for one page."""
        per_token = 2 * self.layers * self.kv_heads * self.head_dim * self.itemsize
        return per_token * self.page_size


@dataclass(frozen=True)
class Limits:
    """The pool (null page included) and the largest step."""

    num_pages: int
    max_batch: int
    max_batch_tokens: int


def trace(
    policy: str, requests: Sequence[BenchRequest], shape: CacheShape, limits: Limits
) -> dict[str, Any]:
    """Run all requests to their end under one policy; returns counts, and bytes of cache."""
    scheduler = _make_scheduler(policy, shape, limits)
    _submit(scheduler, requests)
    tokens = real = steps = largest = 0
    reserved: list[int] = []  # pages held during each step
    used: list[int] = []  # tokens whose K and V are in them
    while scheduler.num_unfinished:
        step = scheduler.plan()
        if step is None:
            raise SystemExit(f"policy {policy}: no step although requests are unfinished")
        rows = scheduler.rows
        for index, request in enumerate(step.admitted):
            rows.prepare(rows.count + index, request)
        reserved.append(scheduler.pool.num_held + step.pages.ids.size)
        used.append(int(rows.num_computed[: rows.count].sum()) + step.num_real_tokens)
        tokens, real, steps = tokens + step.num_tokens, real + step.num_real_tokens, steps + 1
        running = rows.count + len(step.admitted) - len(step.preempted)
        largest = max(largest, running)
        scheduler.commit(step, np.zeros(step.sampling_rows.size, np.int32))
    token_bytes = shape.page_bytes // shape.page_size
    # The last token of an answer is returned, but nothing is computed from it.
    needed = sum(len(request.prompt) + request.num_out - 1 for request in requests)
    return {
        "steps": steps,
        "tokens_computed": tokens,
        "tokens_padding": tokens - real,
        "tokens_recomputed": real - needed,  # after a preemption
        "tokens_needed": needed,
        "largest_batch": largest,
        "preemptions": scheduler.num_preemptions,
        "reserved_bytes_peak": max(reserved) * shape.page_bytes,
        "reserved_bytes_mean": float(np.mean(reserved)) * shape.page_bytes,
        "used_bytes_peak": max(used) * token_bytes,
        "used_bytes_mean": float(np.mean(used)) * token_bytes,
    }


def batch_that_fits(
    policy: str, requests: Sequence[BenchRequest], shape: CacheShape, budget: int
) -> int:
    """How many of the requests, at their full lengths, `budget` bytes of cache hold at once."""
    pages = budget // shape.page_bytes
    longest = -(-shape.max_seq_len // shape.page_size)
    count = 0
    for request in requests:
        length = len(request.prompt) + request.num_out
        pages -= longest if policy == "padded" else -(-length // shape.page_size)
        if pages < 0:
            break
        count += 1
    return count


def _make_scheduler(policy: str, shape: CacheShape, limits: Limits) -> Any:
    from pagedom.runtime.block_table import BlockTable, table_width
    from pagedom.runtime.padded import PaddedScheduler
    from pagedom.runtime.page_pool import PagePool
    from pagedom.runtime.scheduler import Scheduler, SchedulerPolicy
    from pagedom.runtime.sequences import SequenceRows

    table = BlockTable(limits.max_batch, table_width(shape.max_seq_len, shape.page_size))
    rows = SequenceRows(limits.max_batch, shape.max_seq_len, table)
    rules = SchedulerPolicy(
        max_batch=limits.max_batch,
        max_batch_tokens=limits.max_batch_tokens,
        page_size=shape.page_size,
        max_seq_len=shape.max_seq_len,
    )
    kind = PaddedScheduler if policy == "padded" else Scheduler
    return kind(rows, PagePool(limits.num_pages), rules, np.zeros(1, np.bool_))


def _submit(scheduler: Any, requests: Sequence[BenchRequest]) -> None:
    from pagedom.runtime.request import Hub, Request
    from pagedom.runtime.sampling_params import SamplingParams

    hub = Hub()
    for index, request in enumerate(requests):
        params = SamplingParams(max_tokens=request.num_out, ignore_eos=True)
        scheduler.submit(Request(index, np.array(request.prompt, np.int32), params, hub))

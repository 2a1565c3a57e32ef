"""Counters of an engine, and the snapshot that callers get."""

from __future__ import annotations

from dataclasses import dataclass

from .page_pool import PoolStatistics
from .step import Step


@dataclass(frozen=True)
class EngineStatistics:
    """One look at an engine. Times in seconds, sizes in bytes, the rest counts since the start."""

    running: int
    waiting: int
    steps: int
    failed_steps: int
    preemptions: int
    finished: int
    computed_tokens: int  # by the model, padding included
    padding_tokens: int  # of these
    generated_tokens: int
    schedule_seconds: float
    execute_seconds: float  # filling, device, sampling
    commit_seconds: float
    page_bytes: int
    kv_reserved_bytes: int  # of pages held now
    kv_used_bytes: int  # of tokens computed now
    kv_high_water_bytes: int
    pool: PoolStatistics


@dataclass
class Counters:
    """What a core counts as it goes."""

    steps: int = 0
    failed_steps: int = 0
    finished: int = 0
    computed_tokens: int = 0
    padding_tokens: int = 0
    generated_tokens: int = 0
    schedule_ns: int = 0
    execute_ns: int = 0
    commit_ns: int = 0

    def count(self, step: Step, num_sampled: int) -> None:
        """Count one committed step."""
        tokens = step.num_tokens
        self.steps += 1
        self.computed_tokens += tokens
        self.generated_tokens += num_sampled
        if step.chunks:
            self.padding_tokens += tokens - step.num_real_tokens

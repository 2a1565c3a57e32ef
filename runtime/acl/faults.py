"""Failures on order: the n-th call of a kind fails with a given code (the host device only)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class FaultPlan:
    """For each kind of call: number of the call (the first is 1) -> code it fails with.

    `malloc` counts device allocations, `malloc_host` pinned ones, `memcpy` every copy, sync or not
    (the call itself fails), `launch` counts execute_async calls that fail at once, `execute` runs
    on the stream that fail (reported by the next synchronisation), `sync` stream synchronisations
    (which then do not wait), `load` model loads.
    """

    malloc: Mapping[int, int] = field(default_factory=dict)
    malloc_host: Mapping[int, int] = field(default_factory=dict)
    memcpy: Mapping[int, int] = field(default_factory=dict)
    launch: Mapping[int, int] = field(default_factory=dict)
    execute: Mapping[int, int] = field(default_factory=dict)
    sync: Mapping[int, int] = field(default_factory=dict)
    load: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in fields(self):
            for number, code in getattr(self, each.name).items():
                if number < 1 or code == 0:
                    raise ValueError(
                        f"FaultPlan.{each.name}[{number}] = {code}: calls are numbered from 1 and "
                        "the code must not be 0"
                    )

    def kinds(self) -> Iterable[str]:
        """Names of the kinds that have at least one fault."""
        return [each.name for each in fields(self) if getattr(self, each.name)]


class FaultCounter:
    """Counts calls and says which of them fails. Calls of a kind without faults cost nothing."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plans: dict[str, Mapping[int, int]] = {k: getattr(plan, k) for k in plan.kinds()}
        self._counts: dict[str, int] = dict.fromkeys(self._plans, 0)
        self._lock = threading.Lock()

    def next(self, kind: str) -> int:
        """Count one call of a kind and return the code it must fail with, or 0."""
        plan = self._plans.get(kind)
        if plan is None:
            return 0
        with self._lock:
            self._counts[kind] += 1
            return plan.get(self._counts[kind], 0)

"""What to change when a plan does not fit, each proposal with the numbers it leads to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .memory_ledger import MemoryPlan
from .number_text import size_text


@dataclass(frozen=True)
class Lever:
    """A number that may be lowered: its option, its value, and the plan at another value."""

    flag: str
    value: int
    plan_at: Callable[[int], MemoryPlan]
    least: int = 1  # the lowest value that means something


def needed(plan: MemoryPlan) -> str:
    """Say what the plan needs and what there is."""
    usable = size_text(plan.usable_bytes or 0)
    return f"As it is, it needs {size_text(plan.total_bytes)} and {usable} may be used."


def smaller(lever: Lever) -> list[str]:
    """Propose the largest value at which the plan fits, if there is one below the present."""
    best = _largest(lambda value: lever.plan_at(value).fits is True, lever)
    if best is None:
        return []
    total = size_text(lever.plan_at(best).total_bytes)
    return [f"{lever.flag} {best} (instead of {lever.value}): total {total}."]


def fewer_pages(plan: MemoryPlan, how: str = "") -> list[str]:
    """Propose a smaller pool, if one page is left for it; `how`: words before the option."""
    usable = plan.usable_bytes or 0
    others = plan.total_bytes - plan.row("KV pages").bytes
    pages = (usable - others) // plan.page_bytes
    if not 1 <= pages < plan.pages:
        return []
    return [
        f"{how}--num-pages {pages + 1} (instead of {plan.pages + 1}, the null page included): "
        "sequences share a smaller pool, "
        f"{pages / plan.pages_full:.0%} of what full sequences need, and wait or are preempted "
        "when it is used up."
    ]


def larger_device(plan: MemoryPlan, utilisation: float) -> str:
    """Say how much memory a device would need for the plan as it is."""
    return f"Or take a device with {size_text(int(plan.total_bytes / utilisation))} or more."


def _largest(holds: Callable[[int], bool], lever: Lever) -> int | None:
    """The largest value from the least to below the present one at which a condition holds.

    It is monotone: what holds at a value holds at every lower one.
    """
    low, high = lever.least - 1, lever.value - 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low if low >= lever.least else None

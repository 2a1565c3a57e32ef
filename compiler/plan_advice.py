"""What to change when a plan does not fit, each proposal with the numbers it leads to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..models.config import ModelConfig
from .planner import MemoryPlan, PlanRequest, ledger
from .weight_sizes import QUANTISED

_GIB = 1024**3


def advice_for(config: ModelConfig, request: PlanRequest) -> tuple[str, ...]:
    """Return proposals that make the plan fit, and the memory that it needs as it is."""
    plan = ledger(config, request)
    usable, total = plan.usable_bytes, plan.total_bytes
    if usable is None or total <= usable:
        return ()
    found = [f"As it is, it needs {_gib(total)} and {_gib(usable)} may be used."]
    found += _quantised(config, request)
    smaller = [
        *_smaller(config, request, "max_batch", "--max-batch"),
        *_smaller(config, request, "max_seq_len", "--max-seq-len"),
    ]
    found += smaller or _quantised_and_smaller(config, request)
    found += _fewer_pages(plan)
    needed = total / request.utilisation
    found.append(f"Or take a device with {_gib(int(needed))} or more.")
    return tuple(found)


def _quantised_and_smaller(config: ModelConfig, request: PlanRequest) -> list[str]:
    """The mildest quantisation with which some batch fits, where no batch fits without."""
    if request.weight_dtype in QUANTISED:
        return []
    for name in QUANTISED:
        changed = replace(request, weight_dtype=name)
        lines = _smaller(config, changed, "max_batch", "--max-batch")
        if lines:
            return [f"Weights in {name} and {line}" for line in lines]
    return []


def _quantised(config: ModelConfig, request: PlanRequest) -> list[str]:
    if request.weight_dtype in QUANTISED:
        return []
    lines = []
    for name in QUANTISED:
        plan = ledger(config, replace(request, weight_dtype=name))
        verdict = "fits" if plan.fits else "still does not fit"
        lines.append(
            f"Weights in {name}: {_gib(plan.row('weights').bytes)} instead of "
            f"{_gib(ledger(config, request).row('weights').bytes)}, total "
            f"{_gib(plan.total_bytes)}: {verdict}."
        )
        if plan.fits:
            break
    return lines


def _smaller(config: ModelConfig, request: PlanRequest, field: str, flag: str) -> list[str]:
    """The largest value of a field at which the plan fits, if there is one."""

    def changed(value: int) -> PlanRequest:
        if field == "max_seq_len" and request.mean_len is not None:
            # shorter sequences cannot hold more than their limit
            mean = min(request.mean_len, float(value))
            return replace(request, max_seq_len=value, mean_len=mean)
        # an explicit pool does not shrink by itself: let it follow
        return replace(request, **{field: value}, pages=None)  # type: ignore[arg-type]

    best = _largest(
        lambda value: ledger(config, changed(value)).fits is True, getattr(request, field)
    )
    if best is None:
        return []
    plan = ledger(config, changed(best))
    return [
        f"{flag} {best} (instead of {getattr(request, field)}): total {_gib(plan.total_bytes)}."
    ]


def _fewer_pages(plan: MemoryPlan) -> list[str]:
    usable = plan.usable_bytes or 0
    others = plan.total_bytes - plan.row("KV pages").bytes
    pages = (usable - others) // plan.page_bytes
    if not 1 <= pages < plan.pages:
        return []
    return [
        f"--num-pages {pages + 1} (instead of {plan.pages + 1}, the null page included): sequences "
        "share a smaller pool, "
        f"{pages / plan.pages_full:.0%} of what full sequences need, and wait or are preempted "
        "when it is used up."
    ]


def _largest(holds: Callable[[int], bool], below: int) -> int | None:
    """The largest value in 1..below-1 at which a monotone condition holds."""
    low, high = 0, below - 1
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low or None


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"

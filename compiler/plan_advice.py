"""What to change when a plan does not fit: weights in fewer bits, smaller limits, fewer pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..models.config import ModelConfig
from ..runtime.memory_advice import Lever, fewer_pages, larger_device, needed, smaller
from ..runtime.memory_ledger import MemoryPlan
from ..runtime.number_text import size_text
from .planner import PlanRequest, ledger
from .weight_sizes import QUANTISED


def advice_for(config: ModelConfig, request: PlanRequest) -> tuple[str, ...]:
    """Return proposals that make the plan fit, and the memory that it needs as it is."""
    plan = ledger(config, request)
    if plan.fits is not False:
        return ()
    found = [needed(plan), *_quantised(config, request)]
    lower = [
        *_smaller(config, request, "max_batch", "--max-batch"),
        *_smaller(config, request, "max_seq_len", "--max-seq-len"),
    ]
    found += lower or _quantised_and_smaller(config, request)
    found += fewer_pages(plan)
    found.append(larger_device(plan, request.utilisation))
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
            f"Weights in {name}: {size_text(plan.row('weights').bytes)} instead of "
            f"{size_text(ledger(config, request).row('weights').bytes)}, total "
            f"{size_text(plan.total_bytes)}: {verdict}."
        )
        if plan.fits:
            break
    return lines


def _smaller(config: ModelConfig, request: PlanRequest, field: str, flag: str) -> list[str]:
    """Propose the largest value of a field at which the plan fits."""

    def plan_at(value: int) -> MemoryPlan:
        mean = request.mean_len
        if field == "max_seq_len" and mean is not None:
            mean = min(mean, float(value))  # shorter sequences cannot hold more than their limit
        # an explicit pool does not shrink by itself: let it follow
        changes: dict[str, Any] = {field: value, "mean_len": mean, "pages": None}
        return ledger(config, replace(request, **changes))

    return smaller(Lever(flag, getattr(request, field), plan_at))

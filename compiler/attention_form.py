"""Which of three forms attention takes on a target.

fused      one operator for packed steps (FusedInferAttentionScore)            910B, 910_93, 950
tokens     an operator for one query token a sequence (IncreFlashAttention):
           each token of a step is a sequence of its own                       310P
composed   base operators; new rows are an output                              310B, any
"""

from __future__ import annotations

from .host_forms import ROWS
from .target_records import Target
from .target_rules import writes_by_slot

FUSED, TOKENS, COMPOSED = "fused", "tokens", "composed"


def attention_form(target: Target, cache_write: str | None = None) -> str:
    """Return the form; `cache_write` "rows" asks for the composed one. The host's own is fused."""
    attention = target.family.attention
    if cache_write == ROWS or (attention is None and not target.is_host):
        return COMPOSED
    return FUSED if attention is None or "prefill" in attention.phases else TOKENS


def step_limit(target: Target, cache_write: str | None = None) -> int | None:
    """Return the most tokens of one step, None where no operator has a limit.

    In the form "tokens" every token counts as a sequence, and the operator has a largest batch.
    """
    attention = target.family.attention
    if attention is None or attention_form(target, cache_write) != TOKENS:
        return None
    return attention.max_batch.value


def describe_form(
    target: Target, cache_write: str | None = None, cann: str | None = None
) -> list[tuple[str, str]]:
    """Return how a chip attends and writes its cache, and why, as (what, in words)."""
    family = target.family
    op, write = family.attention, family.cache_write
    if cache_write == ROWS:
        return [("attention", "of base operators, as asked for")]
    if op is None:
        return [("attention", f"of base operators: {target.name} has none over a paged cache")]
    is_fused = attention_form(target) == FUSED
    layout = "packed sequences (TND)" if is_fused else "each token as a sequence of its own (BSH)"
    attention = ("attention", f"{op.op}, {layout}, cache {op.cache_layout}")
    if not writes_by_slot(target, cann):
        return [attention, ("cache write", f"{write.op}; padding writes nothing")]
    old = f" ({write.op} needs CANN {write.min_cann}, this is {cann})" if write.fallback else ""
    writer = f"{write.fallback or write.op}{old}; padding goes into the null page"
    return [attention, ("cache write", writer)]

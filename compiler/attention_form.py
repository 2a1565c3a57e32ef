"""Which of three forms attention takes on a target.

fused      one operator for packed steps (FusedInferAttentionScore)            910B, 910_93, 950
tokens     an operator for one query token a sequence (IncreFlashAttention):
           each token of a step is a sequence of its own                       310P
composed   base operators; new rows are an output                              310B, any
"""

from __future__ import annotations

from .host_forms import ROWS
from .target_records import Target

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

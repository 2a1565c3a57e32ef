"""What is said of an answer that ended because it was long enough, not because it was done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..request import Request


def cut_off(request: Request, when_full: str = "") -> str | None:
    """Return why an answer was cut off and what gives more of it; None when it was not.

    when_full: what to do where not --max-tokens but the model's longest sequence was the limit.
    """
    if request.finish_reason != "length":
        return None
    count, most = int(request.output_tokens.size), request.params.max_tokens
    if count >= most:
        return f"cut off after {_tokens(most)}: --max-tokens allows more"
    whole = request.prompt_tokens + count
    return (
        f"cut off: prompt and answer have {_tokens(whole)}, the most that the model or its KV "
        f"cache takes{when_full}"
    )


def cut_off_of(requests: Sequence[Request]) -> str | None:
    """Return one remark about the answers to several prompts; None when all were complete."""
    reasons = [reason for request in requests if (reason := cut_off(request)) is not None]
    if len(requests) == 1 or not reasons:
        return reasons[0] if reasons else None
    were = "was" if len(reasons) == 1 else "were"
    return (
        f"{len(reasons)} of {len(requests)} answers {were} {'; or '.join(dict.fromkeys(reasons))}"
    )


def _tokens(count: int) -> str:
    return f"{count} token" + "s" * (count != 1)

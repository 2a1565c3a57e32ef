"""One question to the capability matrix, and the shape of its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .page_rules import Geometry, PageContext
from .target_records import FusedAttention, Target


@dataclass(frozen=True)
class CombinationOptions:
    """What a combination depends on beside target, model, dtype, page size and batch."""

    kv_dtype: str | None = None  # None = the model's dtype
    max_seq_len: int | None = None
    executor: str = "openvino"  # host: "openvino" or "oracle"
    attention: str = "fused"  # or "composed"
    shapes: str | None = None  # "static", "gears" or "range"; None = not decided
    cache_write: str | None = None  # "inplace" or "rows"; None = the target's own
    cann: str | None = None  # version of the CANN that will compile, when known


@dataclass(frozen=True)
class Combination:
    """One question to the capability matrix."""

    target: Target
    geometry: Geometry
    dtype: str
    page_size: int
    max_batch: int
    options: CombinationOptions = CombinationOptions()

    @property
    def kv_dtype(self) -> str:
        """Type of the cache."""
        return self.options.kv_dtype or self.dtype

    @property
    def fused(self) -> FusedAttention | None:
        """The attention operator this combination would use, None when composed or host."""
        return None if self.options.attention == "composed" else self.target.family.attention

    @property
    def pages(self) -> PageContext:
        """The part that page rules look at."""
        options = self.options
        return PageContext(
            self.target, self.geometry, self.kv_dtype, options.attention, options.executor
        )


@dataclass(frozen=True)
class Complaint:
    """The three parts of a refusal that depend on what was given."""

    given: str
    allowed: str
    advice: str


@dataclass(frozen=True)
class Rule:
    """A limit: `check` is true when it holds, `message` says what is wrong when it does not."""

    name: str
    source: str
    check: Callable[[Combination], bool]
    message: Callable[[Combination], Complaint]

    def apply(self, combination: Combination) -> Violation | None:
        """Return the violation, or None when the rule holds."""
        if self.check(combination):
            return None
        complaint = self.message(combination)
        return Violation(
            self.name, self.source, complaint.given, complaint.allowed, complaint.advice
        )


@dataclass(frozen=True)
class Violation:
    """One refusal; `str()` is the sentence for the user."""

    rule: str
    source: str
    given: str
    allowed: str
    advice: str

    def __str__(self) -> str:
        return f"{self.given}: {self.allowed} ({self.source}). {self.advice}"


class CombinationError(ValueError):
    """A combination that cannot work; `violations` holds all reasons."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__("\n".join(str(row) for row in self.violations))

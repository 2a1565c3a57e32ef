"""Pick gears (T, B) for --dynamic_dims from the steps that will run.

A step has t tokens of b sequences and runs on a gear with T >= t. The T - t padding tokens need an
owner: a *dummy sequence* of query length T - t, slots -1, pages all the null page. It takes a row
of the block table, so

    a gear fits a step  when  t == T and b <= B,   or   t < T and b + 1 <= B.

Rows that are left over are empty sequences (query length 0) and cost nothing. A decode step
(t == b) that does not fill a gear (n, n) has b < n, so the dummy always has a row there: decode
gears need no row more than tokens. A gear for prefill does: with max_batch sequences in a step of
fewer tokens than T it needs max_batch + 1 rows, and the gears planned here have them.

The choice is exact: for k gears, dynamic programming over the distinct t finds the k upper bounds
with the least padding; each B is then the most rows that any step up to its T needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime.number_text import counted, size_text
from .gear_list import GearError
from .target_records import GearLimits

Gear = tuple[int, int]  # T tokens, B rows
_MAX_CANDIDATES = 192
_CUBE = 16  # rows of the matrix unit: a T above it that is no multiple computes as much
_WANTED = "write 'tokens sequences [count]', one step size a line"
_MIXED_SHARE = 0.2  # of steps, in the default traffic: those that hold a piece of a prompt


class TrafficError(ValueError):
    """A traffic histogram cannot be used; the text names file and line."""


@dataclass(frozen=True)
class Traffic:
    """How often steps of each size run."""

    tokens: np.ndarray  # int64 [n], t of a step
    seqs: np.ndarray  # int64 [n], b of a step
    weight: np.ndarray  # float64 [n], share or count
    source: str


@dataclass(frozen=True)
class GearRequest:
    """Bounds of the choice; bytes_per_gear is an estimate of what one more gear adds to the OM."""

    max_batch: int
    max_tokens: int  # most tokens of one step
    limits: GearLimits
    max_gears: int | None = None  # None = the advised number
    size_budget_bytes: int | None = None
    bytes_per_gear: int = 0


@dataclass(frozen=True)
class GearUse:
    """One gear and what runs on it."""

    gear: Gear
    steps: float  # share of all steps
    padding: float  # share of its tokens that are padding


@dataclass(frozen=True)
class GearPlan:
    """The gears, ascending, with the padding to expect."""

    uses: tuple[GearUse, ...]
    padding: float  # share of all computed tokens that are padding
    single_padding: float  # the same with one static shape
    extra_bytes: int
    traffic: str
    notes: tuple[str, ...]

    @property
    def gears(self) -> tuple[Gear, ...]:
        """The gears (T, B), ascending by T."""
        return tuple(use.gear for use in self.uses)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data."""
        return {**asdict(self), "gears": [list(gear) for gear in self.gears]}


def default_traffic(max_batch: int, max_tokens: int) -> Traffic:
    """Return the traffic assumed without a histogram.

    Four steps in five are decode steps of 1..max_batch sequences, all equally likely; the others
    hold a piece of a prompt, of any length up to max_tokens, beside half of the sequences.
    """
    decode = np.arange(1, max_batch + 1, dtype=np.int64)
    decode = decode[decode <= max_tokens]
    mixed = np.unique(np.linspace(min(max_batch, max_tokens), max_tokens, 64).astype(np.int64))
    rows = np.minimum(mixed, max(1, (max_batch + 1) // 2))
    weight = np.concatenate(
        [
            np.full(decode.size, (1 - _MIXED_SHARE) / decode.size),
            np.full(mixed.size, _MIXED_SHARE / mixed.size),
        ]
    )
    source = f"default: decode steps of 1..{max_batch} sequences, one step in five with a prompt"
    return Traffic(np.concatenate([decode, mixed]), np.concatenate([decode, rows]), weight, source)


def plan_gears(request: GearRequest, traffic: Traffic | None = None) -> GearPlan:
    """Return the gears with the least padding within the bounds.

    The largest gear covers max_tokens with max_batch sequences and the dummy, so that every step
    has a gear. Raises GearError when the bounds allow fewer than two gears.
    """
    count, notes = _count(request)
    steps = traffic or default_traffic(request.max_batch, request.max_tokens)
    tops, cost = _candidates(steps, request)
    bounds = _best_bounds(tops, cost, min(count, tops.size))
    gears = _with_rows(bounds, steps, request)
    uses = _uses(gears, steps)
    real = float((steps.tokens * steps.weight).sum())
    share = steps.weight / steps.weight.sum()
    chosen = _assign(gears, steps)
    run = float((np.array([gear[0] for gear in gears])[chosen] * steps.weight).sum())
    single = float(request.max_tokens * share.sum())
    return GearPlan(
        uses=uses,
        padding=1 - real / run,
        single_padding=1 - float((steps.tokens * share).sum()) / single,
        extra_bytes=len(gears) * request.bytes_per_gear,
        traffic=steps.source,
        notes=tuple(notes),
    )


def _count(request: GearRequest) -> tuple[int, list[str]]:
    limits = request.limits
    wrong = [
        f"{name} {value}: must be at least 1"
        for name, value in (("max_batch", request.max_batch), ("max_tokens", request.max_tokens))
        if value < 1
    ]
    count = request.max_gears or limits.advised
    if not limits.minimum <= count <= limits.maximum:
        wrong.append(
            f"{count} gears: must be {limits.minimum} to {limits.maximum} ({limits.source})"
        )
    if request.max_tokens < 2:
        wrong.append("max_tokens 1 has one shape only: compile a static model")
    if wrong:
        raise GearError(wrong)
    notes = []
    if count > limits.advised:
        notes.append(
            f"{count} gears: {limits.advised} or fewer are advised; size and time of the "
            "conversion grow with each"
        )
    if request.size_budget_bytes is not None and request.bytes_per_gear > 0:
        affordable = request.size_budget_bytes // request.bytes_per_gear
        if affordable < limits.minimum:
            raise GearError(
                [
                    f"a budget of {size_text(request.size_budget_bytes)} pays for "
                    f"{counted(affordable, 'gear')} of about {size_text(request.bytes_per_gear)}, "
                    f"at least {limits.minimum} are needed. Raise the budget, or compile a static "
                    "model (--gears with one pair)"
                ]
            )
        if affordable < count:
            notes.append(
                f"the budget of {size_text(request.size_budget_bytes)} allows "
                f"{counted(affordable, 'gear')} instead of {count}"
            )
            count = affordable
    return count, notes


def _candidates(steps: Traffic, request: GearRequest) -> tuple[np.ndarray, np.ndarray]:
    """Possible T, and cost[i, j]: padding tokens of steps above tops[i-1] run at tops[j].

    Row 0 of the cost is "above nothing". A T above 16 is a multiple of 16; more than 192 of them
    are thinned to quantiles.
    """
    rounded = np.where(steps.tokens > _CUBE, -(-steps.tokens // _CUBE) * _CUBE, steps.tokens)
    most = request.max_tokens
    tops = np.unique(np.append(np.minimum(rounded, most), most))
    if tops.size < request.limits.minimum:  # steps of one size only: ATC wants a second gear
        tops = np.array([min(request.max_batch, most - 1), most])
    if tops.size > _MAX_CANDIDATES:
        picks = np.linspace(0, tops.size - 1, _MAX_CANDIDATES).round().astype(np.int64)
        tops = tops[picks]
    slot = np.searchsorted(tops, steps.tokens)
    weight = np.bincount(slot, weights=steps.weight, minlength=tops.size)
    total = np.bincount(slot, weights=steps.weight * steps.tokens, minlength=tops.size)
    weights = np.concatenate([[0.0], np.cumsum(weight)])
    totals = np.concatenate([[0.0], np.cumsum(total)])
    inside = weights[None, 1:] - weights[:-1, None]
    cost = inside * tops[None, :] - (totals[None, 1:] - totals[:-1, None])
    return tops, np.where(np.tri(tops.size, k=-1, dtype=bool), np.inf, cost)


def _best_bounds(tops: np.ndarray, cost: np.ndarray, count: int) -> list[int]:
    """The `count` values of tops, the last one included, that minimise the summed cost."""
    best = cost[0].copy()
    choices: list[np.ndarray] = []
    for _ in range(count - 1):
        # best[i] covers tops[0..i]; the next gear covers tops[i+1..j]
        table = best[:-1, None] + cost[1:, :]
        choices.append(table.argmin(axis=0))
        best = table.min(axis=0)
    bounds = [tops.size - 1]
    for choice in reversed(choices):
        bounds.append(int(choice[bounds[-1]]))
    return [int(tops[index]) for index in reversed(bounds)]


def _with_rows(bounds: Sequence[int], steps: Traffic, request: GearRequest) -> tuple[Gear, ...]:
    """Give each T the rows that its steps need: b, or b + 1 with a dummy."""
    rows: list[int] = []
    for top in bounds:
        below = steps.tokens < top
        full = steps.tokens == top
        need = max(
            int((steps.seqs[below] + 1).max(initial=1)), int(steps.seqs[full].max(initial=1))
        )
        rows.append(min(need, request.max_batch + 1))
    # A step that no histogram showed still needs a gear: the last takes everything.
    most = min(request.max_batch, request.max_tokens)
    last = most + 1 if request.max_tokens > most else most
    rows[-1] = max(rows[-1], last)
    return tuple(zip(bounds, rows))


def _assign(gears: Sequence[Gear], steps: Traffic) -> np.ndarray:
    """Index of the gear of each step."""
    tops = np.array([gear[0] for gear in gears])
    index: np.ndarray = np.searchsorted(tops, steps.tokens)
    return index


def _uses(gears: Sequence[Gear], steps: Traffic) -> tuple[GearUse, ...]:
    chosen = _assign(gears, steps)
    weights = np.bincount(chosen, weights=steps.weight, minlength=len(gears))
    tokens = np.bincount(chosen, weights=steps.weight * steps.tokens, minlength=len(gears))
    uses = []
    for gear, weight, real in zip(gears, weights, tokens):
        padding = 1 - real / (weight * gear[0]) if weight else 0.0
        uses.append(GearUse(gear, float(weight / steps.weight.sum()), float(padding)))
    return tuple(uses)


def read_traffic(path: Path, request: GearRequest) -> Traffic:
    """Return the steps in a text file, one "tokens sequences [count]" a line; '#' is a comment.

    Raises TrafficError naming file, line and the rule: numbers above 0, no more sequences than
    tokens, nothing above max_tokens and max_batch.
    """
    rows: list[tuple[int, int, int]] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                words = line.split("#", 1)[0].replace(",", " ").split()
                if words:
                    rows.append(_traffic_row(words, f"{path}, line {number}", request))
    except UnicodeDecodeError as error:
        raise TrafficError(
            f"cannot read traffic from {path}: it is no UTF-8 text (byte {error.start}); {_WANTED}"
        ) from None
    except OSError as error:
        raise TrafficError(f"cannot read traffic from {path}: {error.strerror}") from error
    if not rows:
        raise TrafficError(f"{path} holds no step: {_WANTED}")
    table = np.array(rows, dtype=np.int64)
    return Traffic(table[:, 0], table[:, 1], table[:, 2].astype(np.float64), str(path.name))


def _traffic_row(words: list[str], where: str, request: GearRequest) -> tuple[int, int, int]:
    if len(words) not in (2, 3) or not all(w.isascii() and w.isdigit() for w in words):
        raise TrafficError(f"{where}: {' '.join(words)[:40]!r} is not 'tokens sequences [count]'")
    tokens, seqs, count = (int(word) for word in [*words, "1"][:3])
    if min(tokens, seqs, count) < 1 or seqs > tokens:
        raise TrafficError(
            f"{where}: {tokens} tokens of {seqs} sequences, {count} times: all must be at least 1, "
            "and every sequence has a token"
        )
    if tokens > request.max_tokens or seqs > request.max_batch:
        raise TrafficError(
            f"{where}: {tokens} tokens of {seqs} sequences are more than a step may have "
            f"({request.max_tokens} tokens, {request.max_batch} sequences)"
        )
    return tokens, seqs, count

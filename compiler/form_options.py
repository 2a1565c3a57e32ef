"""--gears, --num-pages and --cache-write: what they mean together, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .gear_list import GearError, parse_gears
from .host_forms import INPLACE, ROWS, HostForm
from .target_records import Target

CACHE_WRITES = (INPLACE, ROWS)
_PAIR = 2  # numbers of a gear: T, B


class FormError(ValueError):
    """Options of a form that do not fit each other, the target or the model."""


@dataclass(frozen=True)
class FormOptions:
    """The options as given; None = not given."""

    gears: str | None = None
    num_pages: int | None = None
    cache_write: str | None = None


def resolve_form(options: FormOptions, target: Target, table_width: int) -> HostForm:
    """Return the form; raises FormError or GearError with every problem of the gears.

    Without --num-pages a geared model gets a page for every sequence's every page and the null
    page: nothing is ever preempted, and it is the most that such a model can use.
    """
    cache_write = options.cache_write or INPLACE
    if cache_write not in CACHE_WRITES:
        raise FormError(f"--cache-write {cache_write}: must be {' or '.join(CACHE_WRITES)}")
    if options.gears is None:
        if options.num_pages is not None:
            raise FormError(
                f"--num-pages {options.num_pages} without --gears: only a geared model has its "
                "number of pages compiled in (the pools of all layers are one input). Leave it "
                "out; run-om sizes the cache"
            )
        return HostForm((), 0, cache_write, 0 if cache_write == INPLACE else table_width)
    gears = _pairs(options.gears, target)
    form = HostForm(gears, 0, cache_write, table_width)
    most = form.max_batch or 1
    pages = 1 + most * table_width if options.num_pages is None else options.num_pages
    if pages < 1 + table_width:
        raise FormError(
            f"--num-pages {pages}: must be at least {1 + table_width}, the null page and the "
            f"{table_width} pages of one sequence of the longest length. Give more, or lower "
            "--max-seq-len"
        )
    return replace(form, num_pages=pages)


def _pairs(text: str, target: Target) -> tuple[tuple[int, int], ...]:
    """Return gears (T,B) in the order given; a gear with fewer tokens than sequences is refused."""
    limits = replace(target.family.gears, minimum=1)  # one alone is a static model
    found = parse_gears(text, _PAIR, limits).gears
    problems = [
        f"gear {tokens},{seqs} has fewer tokens than sequences: a sequence of a step has at least "
        "one token (a gear is T,B: tokens, then sequences)"
        for tokens, seqs in found
        if tokens < seqs
    ]
    pairs = tuple((gear[0], gear[1]) for gear in found)
    problems += _padding_problems(pairs)
    if problems:
        raise GearError(problems)
    return pairs


def require_padding_row(gears: Sequence[tuple[int, int]]) -> None:
    """Refuse gears into which hardly a step would fit; raises GearError."""
    problems = _padding_problems(gears)
    if problems:
        raise GearError(problems)


def _padding_problems(gears: Sequence[tuple[int, int]]) -> list[str]:
    tokens, seqs = max(gears, default=(0, _PAIR))
    if seqs >= _PAIR:
        return []
    return [
        f"gear {tokens},{seqs} is the largest and has one sequence: a step with fewer tokens is "
        "padded with a second one. Give it at least 2 sequences"
    ]

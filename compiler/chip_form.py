"""Which shapes a model for a chip is compiled for, and how many pages its cache has.

    shapes                   from                              T, B, R        P
    gears, the default       the gear planner, or --gears      pairs (T,B)    compiled in
    one static shape         --gears with one pair             numbers        compiled in
    ranges                   --input-shape-range               open           open

Without --num-pages the cache gets what the chip's memory leaves beside everything else, and at most
what all sequences fill at their full length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..models.config import ModelConfig
from .form_options import FormError
from .gear_list import GearError, parse_gears
from .gear_planner import GearPlan, GearRequest, plan_gears, read_traffic
from .host_forms import INPLACE, ROWS, HostForm
from .planner import PlanRequest, ledger, pages_of
from .target_records import Target

GIB = 1024**3
SLOTS_LIMIT = (1 << 31) - 1  # slots and rows of the caches are numbered in int32
# Composed attention multiplies every row with the pages of every sequence: small steps only.
COMPOSED_MAX_BATCH, COMPOSED_STEP_TOKENS = 4, 128
FUSED_STEP_TOKENS = 512
_PAIR = 2  # numbers of a gear: T, B


@dataclass(frozen=True)
class ChipOptions:
    """The options of a form as given; None = not given."""

    gears: str | None = None
    num_pages: int | None = None
    cache_write: str | None = None
    input_shape_range: bool = False
    traffic: Path | None = None
    max_batch_tokens: int | None = None
    memory_gib: float | None = None


@dataclass(frozen=True)
class ChipModel:
    """What a form depends on beside the options."""

    target: Target
    config: ModelConfig
    dtype: str
    page_size: int
    max_seq_len: int
    max_batch: int
    table_width: int


@dataclass(frozen=True)
class ChipForm:
    """The form, and where its numbers come from."""

    form: HostForm
    gear_plan: GearPlan | None = None  # None: gears were given, or there are none
    notes: tuple[str, ...] = ()


def is_composed(target: Target, cache_write: str | None) -> bool:
    """Return whether attention is built from base operators, and new rows are an output.

    So it is where no operator attends over a paged cache (310B), where the one there is takes
    single tokens only (310P), and on request. The host's own kernel is neither.
    """
    if target.is_host:
        return cache_write == ROWS
    attention = target.family.attention
    return cache_write == ROWS or attention is None or "prefill" not in attention.phases


def default_max_batch(target: Target, cache_write: str | None, usual: int) -> int:
    """Return the largest batch to compile for when none was given."""
    small = not target.is_host and is_composed(target, cache_write)
    return COMPOSED_MAX_BATCH if small else usual


def resolve_chip_form(options: ChipOptions, model: ChipModel, fit: bool = True) -> ChipForm:
    """Return the form; `fit` False leaves out whether the chip's memory holds it (for plans).

    Raises FormError, GearError or TrafficError with what is given, allowed and to be changed.
    """
    composed = is_composed(model.target, options.cache_write)
    if composed and options.cache_write not in (None, ROWS):
        raise FormError(
            f"--cache-write {options.cache_write}: on {model.target.name} new keys and values have "
            "to be an output (no operator there attends over packed prompts in a paged cache). "
            "Use --cache-write rows, or leave it out"
        )
    write = ROWS if composed else INPLACE
    _refuse_contradictions(options)
    if options.input_shape_range:
        return ChipForm(HostForm((), 0, write, model.table_width))
    plan = None if options.gears is not None else _planned(options, model, composed)
    gears = plan.gears if plan is not None else _given(options.gears or "", model.target)
    form = HostForm(gears, 0, write, model.table_width)
    pages, notes = _pages(options, model, form, fit)
    return ChipForm(replace(form, num_pages=pages), plan, notes)


def _refuse_contradictions(options: ChipOptions) -> None:
    given = {
        "--gears": options.gears is not None,
        "--traffic": options.traffic is not None,
        "--input-shape-range": options.input_shape_range,
    }
    named = [name for name, is_given in given.items() if is_given]
    if len(named) > 1:
        raise FormError(
            f"{' and '.join(named)} exclude each other: shapes are given (--gears), planned from "
            "recorded steps (--traffic), or left open (--input-shape-range)"
        )
    if options.input_shape_range and options.num_pages is not None:
        raise FormError(
            f"--num-pages {options.num_pages} with --input-shape-range: there the number of pages "
            "is open too, and run-om sizes the cache. Leave it out"
        )


def step_tokens(options: ChipOptions, model: ChipModel, composed: bool) -> int:
    """Return T at most; raises FormError for fewer tokens than sequences."""
    usual = COMPOSED_STEP_TOKENS if composed else FUSED_STEP_TOKENS
    given = options.max_batch_tokens
    if given is None:
        return max(usual, 2 * model.max_batch)
    if given < model.max_batch:
        raise FormError(
            f"--max-batch-tokens {given}: must be at least --max-batch ({model.max_batch}), since "
            "every sequence of a step has a token"
        )
    return given


def _planned(options: ChipOptions, model: ChipModel, composed: bool) -> GearPlan:
    tokens = step_tokens(options, model, composed)
    request = GearRequest(model.max_batch, tokens, model.target.family.gears)
    traffic = None if options.traffic is None else read_traffic(options.traffic, request)
    return plan_gears(request, traffic)


def _given(text: str, target: Target) -> tuple[tuple[int, int], ...]:
    """Return gears (T,B) in the order given; one alone is a static model, not a gear to ATC."""
    limits = replace(target.family.gears, minimum=1)
    found = parse_gears(text, _PAIR, limits).gears
    problems = [
        f"gear {tokens},{seqs} has fewer tokens than sequences: a sequence of a step has at least "
        "one token (a gear is T,B: tokens, then sequences)"
        for tokens, seqs in found
        if tokens < seqs
    ]
    if problems:
        raise GearError(problems)
    return tuple((gear[0], gear[1]) for gear in found)


def _pages(
    options: ChipOptions, model: ChipModel, form: HostForm, fit: bool
) -> tuple[int, tuple[str, ...]]:
    """Return P, the null page included, and what was decided about it."""
    whole = pages_of(model.max_seq_len, model.page_size)
    full = 1 + model.max_batch * whole
    most = _most_pages(model, form)
    given = options.num_pages
    if given is not None:
        if given < 1 + whole:
            raise FormError(
                f"--num-pages {given}: must be at least {1 + whole}, the null page and the {whole} "
                "pages of one sequence of the longest length. Give more, or lower --max-seq-len"
            )
        if given > most:
            raise FormError(
                f"--num-pages {given}: must be at most {most}, since tokens of the cache are "
                "numbered in int32. Give fewer"
            )
        return given, ()
    room = memory_pages(options, model, form) if fit else None
    if room is None:
        return min(full, most), ()
    if room < 1 + whole:
        raise FormError(
            f"{model.config.name} leaves room for {max(room - 1, 0)} pages of {model.page_size} "
            f"tokens on {model.target.name}; one sequence of {model.max_seq_len} tokens needs "
            f"{whole}. compile-model MODEL --target {model.target.name} --plan shows the ledger "
            "and what to change"
        )
    pages = min(full, most, room)
    if pages == full:
        return pages, ()
    sequences = (pages - 1) // whole
    return pages, (f"memory for {sequences} of {model.max_batch} sequences at full length",)


def _most_pages(model: ChipModel, form: HostForm) -> int:
    """Return P at most: rows of the pool, or slots of all layers, are counted in int32."""
    layers = model.config.num_layers
    rows = 2 * layers if form.cache_write == ROWS else layers if len(form.gears) > 1 else 1
    return SLOTS_LIMIT // (model.page_size * rows)


def memory_pages(options: ChipOptions, model: ChipModel, form: HostForm) -> int | None:
    """Return the pages that the chip's memory holds, the null page included; None if unknown."""
    plan = ledger(model.config, plan_request(options, model, form, pages=1))
    if plan.usable_bytes is None:
        return None
    others = plan.total_bytes - plan.row("KV pages").bytes
    return 1 + (plan.usable_bytes - others) // plan.page_bytes


def plan_request(
    options: ChipOptions, model: ChipModel, form: HostForm, pages: int | None = None
) -> PlanRequest:
    """Return what the memory planner has to know; `pages` without the null page."""
    composed = form.cache_write == ROWS
    usual = step_tokens(options, model, composed)
    tokens = max((tokens for tokens, _ in form.gears), default=usual)
    memory = options.memory_gib
    return PlanRequest(
        target=model.target,
        dtype=model.dtype,
        page_size=model.page_size,
        max_seq_len=model.max_seq_len,
        max_batch=model.max_batch,
        pages=pages,
        step_tokens=tokens,
        gears=form.gears,
        memory_bytes=None if memory is None else int(memory * GIB),
        composed=composed,
    )

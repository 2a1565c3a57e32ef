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
from ..runtime.memory_ledger import pages_of
from .attention_form import COMPOSED, TOKENS, attention_form, step_limit
from .form_options import FormError
from .gear_list import GearError, parse_gears
from .gear_planner import GearPlan, GearRequest, plan_gears, read_traffic
from .host_forms import INPLACE, ROWS, HostForm
from .planner import PlanRequest, ledger
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


def default_max_batch(target: Target, cache_write: str | None, usual: int) -> int:
    """Return the largest batch to compile for when none was given."""
    if not target.is_host and attention_form(target, cache_write) == COMPOSED:
        return COMPOSED_MAX_BATCH
    limit = step_limit(target, cache_write)
    return usual if limit is None else min(usual, limit)


def resolve_chip_form(options: ChipOptions, model: ChipModel, fit: bool = True) -> ChipForm:
    """Return the form; `fit` False leaves out whether the chip's memory holds it (for plans).

    Raises FormError, GearError or TrafficError with what is given, allowed and to be changed.
    """
    composed = attention_form(model.target, options.cache_write) == COMPOSED
    if composed and options.cache_write not in (None, ROWS):
        raise FormError(
            f"--cache-write {options.cache_write}: on {model.target.name} new keys and values have "
            "to be an output (no operator there attends over a paged cache). Use --cache-write "
            "rows, or leave it out"
        )
    write = ROWS if composed else INPLACE
    _refuse_contradictions(options)
    limit = step_limit(model.target, options.cache_write)
    if options.input_shape_range:
        _refuse_open_steps(model.target, limit)
        return ChipForm(HostForm((), 0, write, model.table_width))
    plan = None if options.gears is not None else _planned(options, model, composed)
    gears = plan.gears if plan is not None else _given(options.gears or "", model.target, limit)
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
    limit = step_limit(model.target, options.cache_write)
    given = options.max_batch_tokens
    if given is None:
        wanted = max(usual, 2 * model.max_batch)
        return wanted if limit is None else min(wanted, limit)
    if limit is not None and given > limit:
        raise FormError(f"--max-batch-tokens {given}: {_limit_text(model.target, limit)}")
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


def _limit_text(target: Target, limit: int) -> str:
    attention = target.family.attention
    assert attention is not None
    return (
        f"must be at most {limit} on {target.name}, where each token of a step is a sequence to "
        f"{attention.op} ({attention.max_batch.source})"
    )


def _refuse_open_steps(target: Target, limit: int | None) -> None:
    if limit is not None:
        raise FormError(
            f"--input-shape-range leaves the number of tokens of a step open, which "
            f"{_limit_text(target, limit)}. Compile gears (leave it out), or take the composed "
            "form, which has no such limit (--cache-write rows)"
        )


def _given(text: str, target: Target, limit: int | None) -> tuple[tuple[int, int], ...]:
    """Return gears (T,B) in the order given; one alone is a static model, not a gear to ATC."""
    limits = replace(target.family.gears, minimum=1)
    found = parse_gears(text, _PAIR, limits).gears
    most = max(gear[0] for gear in found)
    if limit is not None and most > limit:
        raise FormError(f"--gears with {most} tokens: {_limit_text(target, limit)}")
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
                "numbered in int32 (on 310P: elements of one buffer of it). Give fewer"
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
    """Return P at most: rows of the pool, or slots of all layers, are counted in int32.

    Where ScatterNdUpdate writes them (310P), elements of a buffer are: whether its kernel addresses
    more was not to be found out.
    """
    config = model.config
    layers = config.num_layers
    rows = 2 * layers if form.cache_write == ROWS else layers if len(form.gears) > 1 else 1
    if attention_form(model.target, form.cache_write) == TOKENS:
        rows *= config.num_kv_heads * config.head_dim
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

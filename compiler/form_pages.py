"""How many pages the cache of a form has, and the memory that a form needs.

Without --num-pages the cache gets what the chip's memory leaves beside everything else, and at most
what all sequences fill at their full length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..runtime.memory_advice import Lever, larger_device, smaller
from ..runtime.memory_ledger import USABLE_SHARE, MemoryPlan, pages_of
from ..runtime.number_text import counted, size_text
from .attention_form import COMPOSED, TOKENS, attention_form, step_limit
from .form_options import FormError, FormModel, FormOptions, is_composed, limit_rule
from .host_forms import ROWS, HostForm
from .option_error import OptionError
from .planner import STEP_TOKENS, PlanRequest, ledger
from .target_records import Target

GIB = 1024**3
SLOTS_LIMIT = (1 << 31) - 1  # slots and rows of the caches are numbered in int32
# Composed attention multiplies every row with the pages of every sequence: small steps only.
COMPOSED_MAX_BATCH, COMPOSED_STEP_TOKENS = 4, 128


def default_max_batch(target: Target, cache_write: str | None, usual: int) -> int:
    """Return the largest batch to compile for when none was given."""
    if not target.is_host and attention_form(target, cache_write) == COMPOSED:
        return COMPOSED_MAX_BATCH
    limit = step_limit(target, cache_write)
    return usual if limit is None else min(usual, limit)


def step_tokens(options: FormOptions, model: FormModel) -> int:
    """Return T at most where nothing else says it; raises OptionError, FormError.

    OptionError: fewer than sequences. FormError: more than the chip's operator takes.
    """
    if model.target.is_host:
        return STEP_TOKENS
    usual = COMPOSED_STEP_TOKENS if is_composed(options, model.target) else STEP_TOKENS
    limit = step_limit(model.target, options.cache_write)
    given = options.max_batch_tokens
    if given is None:
        wanted = max(usual, 2 * model.max_batch)
        return wanted if limit is None else min(wanted, limit)
    if limit is not None and given > limit:
        raise FormError(f"--max-batch-tokens {given}: {limit_rule(model.target, limit)}")
    if given < model.max_batch:
        raise OptionError(
            f"--max-batch-tokens {given}: must be at least --max-batch ({model.max_batch}), since "
            "every sequence of a step has a token"
        )
    return given


def choose_pages(
    options: FormOptions, model: FormModel, form: HostForm, fit: bool
) -> tuple[int, tuple[str, ...]]:
    """Return P, the null page included, and what was decided about it; raises FormError.

    `fit` False leaves out the chip's memory.
    """
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
    # Of the host's memory the engine takes what it needs when it runs: it may be another machine.
    room = memory_pages(options, model, form) if fit and not model.target.is_host else None
    if room is None:
        return min(full, most), ()
    if room < 1 + whole:
        raise FormError(no_room(options, model, form))
    pages = min(full, most, room)
    if pages == full:
        return pages, ()
    sequences = (pages - 1) // whole
    return pages, (f"memory for {sequences} of {model.max_batch} sequences at full length",)


def _most_pages(model: FormModel, form: HostForm) -> int:
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


def memory_pages(options: FormOptions, model: FormModel, form: HostForm) -> int | None:
    """Return the pages that the memory holds, the null page included; None if it is unknown."""
    plan = ledger(model.config, plan_request(options, model, form, pages=1))
    if plan.usable_bytes is None:
        return None
    others = plan.total_bytes - plan.row("KV pages").bytes
    return 1 + (plan.usable_bytes - others) // plan.page_bytes


def plan_request(
    options: FormOptions, model: FormModel, form: HostForm, pages: int | None = None
) -> PlanRequest:
    """Return what the memory planner has to know; `pages` without the null page."""
    memory = options.memory_gib
    return PlanRequest(
        target=model.target,
        dtype=model.dtype,
        page_size=model.page_size,
        max_seq_len=model.max_seq_len,
        max_batch=model.max_batch,
        pages=pages,
        step_tokens=max((tokens for tokens, _ in form.gears), default=step_tokens(options, model)),
        gears=form.gears,
        memory_bytes=None if memory is None else int(memory * GIB),
        composed=form.cache_write == ROWS,
    )


_OF_A_STEP = ("step inputs", "step outputs", "workspace")  # rows that grow with its T and B


def no_room(options: FormOptions, model: FormModel, form: HostForm) -> str:
    """Say that one sequence does not fit, what takes the memory, and what to change."""
    whole = pages_of(model.max_seq_len, model.page_size)
    plan = ledger(model.config, plan_request(options, model, form, pages=whole))
    usable, kept = plan.usable_bytes or 0, plan.row("KV pages").bytes
    pages = max(0, usable - plan.total_bytes + kept) // plan.page_bytes
    step = sum(plan.row(name).bytes for name in _OF_A_STEP)
    others = [
        f"{row.name} {size_text(row.bytes)}" for row in plan.rows if row.name in plan.constants
    ]
    tokens, seqs = max(form.gears)
    taken = (
        f"{', '.join(others)} and buffers of the largest step ({tokens} tokens, {seqs} sequences) "
        f"{size_text(step)}"
    )
    changes = [*_levers(options, model, form), larger_device(plan, USABLE_SHARE)]
    room = f"{counted(pages, 'page')} of {model.page_size} tokens"
    return (
        f"{model.config.name} leaves room for {room} on "
        f"{model.target.name}; one sequence of {model.max_seq_len} tokens needs {whole} "
        f"({size_text(kept)}). Of the {size_text(usable)} that may be used, {taken} are taken. "
        f"What to change: {' '.join(changes)} --memory GIB says what the chip has, if that is "
        "another size; --plan shows the ledger"
    )


def _levers(options: FormOptions, model: FormModel, form: HostForm) -> Iterator[str]:
    """Yield each option that makes room for one sequence by itself, with its largest value."""

    def plan_at(changed: FormModel, given: FormOptions, tokens: int) -> MemoryPlan:
        gears = form.gears
        if options.gears is None:  # planned anew, the largest is this
            gears = ((tokens, changed.max_batch + 1),) * len(gears)
        pages = pages_of(changed.max_seq_len, changed.page_size)
        shaped = replace(form, gears=gears)
        return ledger(model.config, plan_request(given, changed, shaped, pages))

    def batch(value: int) -> MemoryPlan:
        changed = replace(model, max_batch=value)
        return plan_at(changed, options, step_tokens(options, changed))

    def length(value: int) -> MemoryPlan:
        return plan_at(replace(model, max_seq_len=value), options, max(form.gears)[0])

    def tokens(value: int) -> MemoryPlan:
        return plan_at(model, replace(options, max_batch_tokens=value), value)

    found: list[tuple[str, int, Callable[[int], MemoryPlan], int]] = [
        ("--max-seq-len", model.max_seq_len, length, model.page_size)
    ]
    if options.gears is None:
        found.insert(0, ("--max-batch", model.max_batch, batch, 1))
        found.append(("--max-batch-tokens", max(form.gears)[0], tokens, model.max_batch))
    for lever in found:
        yield from smaller(Lever(*lever))
    if options.gears is not None:
        yield f"Smaller --gears than {max(form.gears)[0]},{max(form.gears)[1]}."

"""--gears, --num-pages, --cache-write and their like, as given; and what a form depends on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..models.config import ModelConfig
from .attention_form import COMPOSED, attention_form, step_limit
from .host_forms import HostForm
from .option_error import OptionError
from .target_records import Target


class FormError(ValueError):
    """A form that the model, the chip or its memory cannot have."""


@dataclass(frozen=True)
class FormOptions:
    """The options of a form as given; None = not given."""

    gears: str | None = None
    num_pages: int | None = None
    cache_write: str | None = None
    input_shape_range: bool = False
    traffic: Path | None = None
    max_batch_tokens: int | None = None
    memory_gib: float | None = None
    max_gears: int | None = None
    gear_budget_mib: float | None = None


@dataclass(frozen=True)
class FormModel:
    """What a form depends on beside the options."""

    target: Target
    config: ModelConfig
    dtype: str
    page_size: int
    max_seq_len: int
    max_batch: int
    table_width: int


def is_composed(options: FormOptions, target: Target) -> bool:
    """Return whether attention is built from base operators, new rows being an output."""
    return attention_form(target, options.cache_write) == COMPOSED


def has_open_shapes(options: FormOptions, target: Target) -> bool:
    """Return whether every step shape is taken at run time: the host's default, a chip's option."""
    return options.input_shape_range or (target.is_host and options.gears is None)


def refuse_contradictions(options: FormOptions, target: Target) -> None:
    """Raise OptionError for options that exclude each other, FormError for what a chip excludes."""
    given = {
        "--gears": options.gears is not None,
        "--traffic": options.traffic is not None,
        "--input-shape-range": options.input_shape_range,
    }
    named = [name for name, is_given in given.items() if is_given]
    if len(named) > 1:
        raise OptionError(
            f"{' and '.join(named)} exclude each other: shapes are given (--gears), planned from "
            "recorded steps (--traffic), or left open (--input-shape-range)"
        )
    _refuse_bounds_without_a_plan(options)
    if options.num_pages is not None and has_open_shapes(options, target):
        why = "without --gears" if target.is_host else "with --input-shape-range"
        raise OptionError(
            f"--num-pages {options.num_pages} {why}: there the number of pages is open too, and "
            "run-om sizes the cache. Leave it out"
        )
    if options.input_shape_range:
        _refuse_open_steps(options, target)


def _refuse_bounds_without_a_plan(options: FormOptions) -> None:
    bounds = {"--max-gears": options.max_gears, "--gear-budget": options.gear_budget_mib}
    planned = [f"{name} {value:g}" for name, value in bounds.items() if value is not None]
    tokens = options.max_batch_tokens  # open shapes have a largest step too
    given = [*([] if tokens is None else [f"--max-batch-tokens {tokens}"]), *planned]
    if options.gears is not None and given:
        raise OptionError(
            f"{' and '.join(given)} with --gears: bounds of the gears that are planned, and these "
            "are given. Leave one of them out"
        )
    if options.input_shape_range and planned:
        raise OptionError(
            f"{' and '.join(planned)} with --input-shape-range: there are no gears then. Leave "
            "one of them out"
        )


def limit_rule(target: Target, limit: int) -> str:
    """Say how many tokens a step may have, and why."""
    attention = target.family.attention
    assert attention is not None
    return (
        f"must be at most {limit} on {target.name}, where each token of a step is a sequence to "
        f"{attention.op} ({attention.max_batch.source})"
    )


def _refuse_open_steps(options: FormOptions, target: Target) -> None:
    limit = step_limit(target, options.cache_write)
    if limit is not None:
        raise FormError(
            f"--input-shape-range leaves the number of tokens of a step open, which "
            f"{limit_rule(target, limit)}. Compile gears (leave it out), or take the "
            "composed form, which has no such limit (--cache-write rows)"
        )


def batch_of(form: HostForm, model: FormModel) -> int:
    """Return the most sequences of a step: --max-batch, or what gears that were given hold."""
    return min(model.max_batch, form.max_batch or model.max_batch)

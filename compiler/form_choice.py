"""Which shapes a model is compiled for, and how many pages its cache has: host and chips alike.

    shapes              from                                   T, B, R        P
    any, open           host: the default; a chip:             open           open
                        --input-shape-range
    gears               --gears; a chip's default:             pairs (T,B)    compiled in
                        the gear planner
    one static shape    --gears with one pair                  numbers        compiled in

Without --num-pages the cache gets what all sequences fill at their full length, and on a chip at
most what its memory leaves beside everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from .attention_form import COMPOSED, FUSED, TOKENS, attention_form, step_limit
from .form_options import (
    FormModel,
    FormOptions,
    batch_of,
    has_open_shapes,
    is_composed,
    limit_rule,
    refuse_contradictions,
)
from .form_pages import choose_pages, step_tokens
from .gear_list import PairList, PairRules, parse_pairs
from .gear_planner import GearPlan, GearRequest, plan_gears, read_traffic
from .host_forms import INPLACE, ROWS, HostForm
from .target_records import Target

MIB = 1 << 20
_OPERATOR_BYTES = 2048
_LAYER_OPERATORS = MappingProxyType({FUSED: 50, TOKENS: 85, COMPOSED: 165})
_OTHER_OPERATORS = 16  # embedding, angles, head


@dataclass(frozen=True)
class FormChoice:
    """The form, and where its numbers come from."""

    form: HostForm
    max_batch: int  # sequences of a step; gears that were given may hold fewer than --max-batch
    gear_plan: GearPlan | None = None  # None: gears were given, or there are none
    notes: tuple[str, ...] = ()


def choose_form(options: FormOptions, model: FormModel, fit: bool = True) -> FormChoice:
    """Return the form; `fit` False leaves out whether the chip's memory holds it (for plans).

    Raises OptionError for options that exclude each other, GearError (all problems of the gears),
    TrafficError, FormError with what is given, allowed and to be changed.
    """
    given = check_options(options, model.target)
    write = ROWS if is_composed(options, model.target) else INPLACE
    form = HostForm((), 0, write, model.table_width)
    if has_open_shapes(options, model.target):
        return FormChoice(form, model.max_batch)
    plan = planned_gears(options, model) if given is None else None
    chosen = given or (PairList(()) if plan is None else PairList(plan.gears, plan.notes))
    form = replace(form, gears=chosen.pairs)
    model = replace(model, max_batch=batch_of(form, model))
    pages, about = choose_pages(options, model, form, fit)
    return FormChoice(
        replace(form, num_pages=pages), model.max_batch, plan, (*chosen.notes, *about)
    )


def planned_gears(options: FormOptions, model: FormModel) -> GearPlan:
    """Return gears for recorded or usual steps; raises TrafficError, OptionError."""
    budget = options.gear_budget_mib
    request = GearRequest(
        model.max_batch,
        step_tokens(options, model),
        model.target.family.gears,
        max_gears=options.max_gears,
        size_budget_bytes=None if budget is None else int(budget * MIB),
        bytes_per_gear=gear_bytes(model, attention_form(model.target, options.cache_write)),
    )
    traffic = None if options.traffic is None else read_traffic(options.traffic, request)
    return plan_gears(request, traffic)


def gear_bytes(model: FormModel, form: str) -> int:
    """Return an estimate of what a gear adds to an OM: the graph's operators once more.

    Weights are shared. GE's own writer took 0.9 to 1.0 KiB of MODEL_DEF an operator, in models of
    two layers; tasks and kernel arguments, which no source here gives, are taken to be as much.
    """
    return _OPERATOR_BYTES * (_LAYER_OPERATORS[form] * model.config.num_layers + _OTHER_OPERATORS)


def check_options(options: FormOptions, target: Target) -> PairList | None:
    """Refuse what no model is needed for to be refused; return the pairs of --gears, if given.

    Raises OptionError; GearError, which is one, with all problems of the gears; FormError.
    """
    refuse_contradictions(options, target)
    if options.gears is None:
        return None
    limit = step_limit(target, options.cache_write)
    rule = "" if limit is None else limit_rule(target, limit)
    return parse_pairs(options.gears, PairRules(target.family.gears, limit, rule))

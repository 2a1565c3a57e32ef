"""`compile-model --plan` and `--advise-pages`: numbers from a configuration alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..runtime.memory_report import render_plan
from ..runtime.show import show
from .chip_form import GIB, plan_request
from .gear_report import render_gears
from .host_forms import ROWS
from .page_advisor import PageRequest, advise_pages, read_lengths
from .page_report import render_page_advice
from .planner import STEP_TOKENS, PlanRequest, plan_memory
from .request import CompileOptions, CompileRequest, model_config, resolve_for


def show_advice(options: dict[str, Any], compile_options: CompileOptions) -> None:
    """Print what was asked for.

    What a compilation would refuse is refused here too: raises ModelError, TargetError,
    CombinationError, RequestError, PlanError, LengthsError, NoLegalPageError.
    """
    config = model_config(compile_options.model)
    request = resolve_for(compile_options, config, plan=True)
    data: dict[str, Any] = {}
    if options["advise_pages"]:
        advice = _advice(request, options)
        data["pages"] = advice.to_json()
        if not options["as_json"]:
            show(render_page_advice(advice))
    if options["plan"]:
        wanted = replace(_plan_request(request), mean_len=options.get("mean_length"))
        plan = plan_memory(config, wanted)
        data["plan"] = plan.to_json()
        if request.gear_plan is not None:
            data["gears"] = request.gear_plan.to_json()
        if not options["as_json"]:
            show(render_plan(plan))
            if request.gear_plan is not None:
                show(render_gears(request.gear_plan))
    if options["as_json"]:
        click.echo(json.dumps(data, indent=2))


def _advice(request: CompileRequest, options: dict[str, Any]) -> Any:
    lengths: Path | None = options["lengths"]
    pages = PageRequest(
        kv_dtype=request.dtype,
        max_seq_len=request.max_seq_len,
        executor=options["executor"],
        lengths=read_lengths(lengths) if lengths else None,
    )
    return advise_pages(request.target, request.config, pages, request.config.num_layers)


def _plan_request(request: CompileRequest) -> PlanRequest:
    if not request.target.is_host:
        form = request.form
        pages = form.num_pages - 1 if form.num_pages else None
        return plan_request(request.options.chip, request.chip_model, form, pages)
    memory, form = request.options.memory, request.form
    return PlanRequest(
        target=request.target,
        dtype=request.dtype,
        page_size=request.page_size,
        max_seq_len=request.max_seq_len,
        max_batch=request.max_batch,
        pages=form.num_pages - 1 if form.num_pages else None,
        gears=form.gears,
        step_tokens=max((tokens for tokens, _ in form.gears), default=STEP_TOKENS),
        memory_bytes=None if memory is None else int(memory * GIB),
        composed=form.cache_write == ROWS,
    )

"""`compile-model --plan` and `--advise-pages`: numbers from a configuration alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..runtime.memory_report import render_plan
from ..runtime.show import show
from .form_pages import plan_request
from .gear_report import render_gears
from .page_advisor import PageRequest, advise_pages, read_lengths
from .page_report import render_page_advice
from .planner import PlanRequest, plan_memory
from .request import CompileOptions, CompileRequest, model_config, resolve_for


def show_advice(options: dict[str, Any], compile_options: CompileOptions) -> bool | None:
    """Print what was asked for; return whether it fits, None without --plan or if unknown.

    What a compilation would refuse is refused here too: raises ModelError, TargetError,
    CombinationError, RequestError, PlanError, LengthsError, NoLegalPageError.
    """
    config = model_config(compile_options.model)
    request = resolve_for(compile_options, config, plan=True)
    data: dict[str, Any] = {}
    fits = None
    if options["advise_pages"]:
        advice = _advice(request, options)
        data["pages"] = advice.to_json()
        if not options["as_json"]:
            show(render_page_advice(advice))
    if options["plan"]:
        wanted = replace(_plan_request(request), mean_len=options.get("mean_length"))
        plan = plan_memory(config, wanted)
        data["plan"], fits = plan.to_json(), plan.fits
        if request.gear_plan is not None:
            data["gears"] = request.gear_plan.to_json()
        if not options["as_json"]:
            show(render_plan(plan))
            if request.gear_plan is not None:
                show(render_gears(request.gear_plan))
    if options["as_json"]:
        click.echo(json.dumps(data, indent=2))
    return fits


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
    form = request.form
    pages = form.num_pages - 1 if form.num_pages else None
    return plan_request(request.options.form, request.form_model, form, pages)

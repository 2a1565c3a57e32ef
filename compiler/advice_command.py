"""`compile-model --plan` and `--advise-pages`: numbers from a configuration alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..models.checkpoint import open_checkpoint
from ..models.config import ModelConfig
from .combination import Combination, CombinationOptions
from .page_advisor import PageRequest, advise_pages, read_lengths
from .page_report import render_page_advice
from .page_rules import recommended_page_size
from .plan_report import render_plan
from .planner import PlanRequest, plan_memory
from .target_records import Target
from .target_resolve import resolve_target

DEFAULT_MAX_SEQ_LEN = 2048


def show_advice(options: dict[str, Any]) -> None:
    """Print what was asked for; raises ModelError, TargetError, PlanError, NoLegalPageError."""
    from rich.console import Console

    config = _read_config(options["model"])
    target = resolve_target(options["target"])
    dtype = options["dtype"] or _dtype(target)
    console = Console()
    data: dict[str, Any] = {}
    if options["advise_pages"]:
        advice = _advice(config, target, dtype, options)
        data["pages"] = advice.to_json()
        if not options["as_json"]:
            console.print(render_page_advice(advice))
    if options["plan"]:
        plan = plan_memory(config, _plan_request(config, target, dtype, options))
        data["plan"] = plan.to_json()
        if not options["as_json"]:
            console.print(render_plan(plan))
    if options["as_json"]:
        click.echo(json.dumps(data, indent=2))


def _read_config(model: str) -> ModelConfig:
    """Read a config.json alone where there is one: no weights are needed."""
    path = Path(model)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix == ".json":
        data = json.loads(path.read_text(encoding="utf-8"))
        return ModelConfig.from_hf(data, None)
    with open_checkpoint(model) as checkpoint:
        return checkpoint.config


def _dtype(target: Target) -> str:
    if target.is_host:
        return "float32"
    return "bfloat16" if "bfloat16" in target.family.dtypes else "float16"


def _max_seq_len(config: ModelConfig, options: dict[str, Any]) -> int:
    return options["max_seq_len"] or min(DEFAULT_MAX_SEQ_LEN, config.max_positions)


def _advice(config: ModelConfig, target: Target, dtype: str, options: dict[str, Any]) -> Any:
    lengths: Path | None = options["lengths"]
    request = PageRequest(
        kv_dtype=dtype,
        max_seq_len=_max_seq_len(config, options),
        executor=options["executor"],
        lengths=read_lengths(lengths) if lengths else None,
    )
    return advise_pages(target, config, request, config.num_layers)


def _plan_request(
    config: ModelConfig, target: Target, dtype: str, options: dict[str, Any]
) -> PlanRequest:
    page_size = options["page_size"]
    if page_size is None:
        choice = CombinationOptions(executor=options["executor"])
        context = Combination(target, config, dtype, 1, 1, choice).pages
        page_size = recommended_page_size(context) or target.family.default_page_size
    return PlanRequest(
        target=target,
        dtype=dtype,
        page_size=page_size,
        max_seq_len=_max_seq_len(config, options),
        max_batch=options["max_batch"],
    )

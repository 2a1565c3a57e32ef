"""The manifest of a chip's artefact: what was lowered, planned, and compiled by which CANN."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..runtime.manifest import SCHEMA_VERSION, Binding, Manifest, OutputBinding
from ..runtime.memory_ledger import MemoryPlan
from ..runtime.om_file import read_om
from .ascend_lowering import AtcGraph
from .attention_form import COMPOSED
from .form_pages import plan_request
from .host_manifest import OUTPUT_ROLES, model_geometry, tool_versions
from .planner import ledger
from .request import CompileRequest

_STACKED = "stacked BnBsH [L*P,S,K*D]"
_PLANNED = {"workspace": "workspace", "gear_inputs": "step inputs", "gear_outputs": "step outputs"}


def chip_manifest(request: CompileRequest, graph: AtcGraph, tools: Mapping[str, str]) -> Manifest:
    """Return the manifest of a lowered graph; `tools` = what else had a part, by name."""
    config = request.config
    plan = _plan(request)
    return Manifest(
        schema=SCHEMA_VERSION,
        name=config.name,
        target=request.target.family.name,
        soc=request.target.name,
        dtype=request.dtype,
        page_size=request.page_size,
        max_seq_len=request.max_seq_len,
        max_batch=request.max_batch,
        table_width=request.table_width,
        cache_layout=_cache_layout(request, graph),
        model=model_geometry(config),
        inputs=tuple(
            Binding(name, name, graph.dtypes[name], shape) for name, shape in graph.shapes.items()
        ),
        # ATC names outputs after nodes: the runtime binds them by order.
        outputs=tuple(
            OutputBinding(name, OUTPUT_ROLES[name], graph.dtypes[name], shape)
            for name, shape in graph.outputs.items()
        ),
        gears=tuple({"T": tokens, "B": seqs, "R": seqs} for tokens, seqs in request.form.gears),
        memory={
            "weights": sum(plan.row(name).bytes for name in plan.constants),
            "kv_per_token": plan.token_bytes,
            "kv_per_page": plan.page_bytes,
            **{name: plan.row(row).bytes for name, row in _PLANNED.items()},
            **({} if plan.memory_bytes is None else {"device": plan.memory_bytes}),
        },
        tools={**tool_versions(), **tools},
        num_pages=request.form.num_pages,
        padding_slot=graph.padding_slot,
    )


def measured_memory(om: Path, planned: Mapping[str, int]) -> dict[str, int]:
    """Return a plan's figures with those that ATC wrote into the OM in their place.

    Raises OmFormatError, OSError.
    """
    with read_om(om) as file:
        attrs = [model.model_def.attrs for model in file.models]
    found = dict(planned)
    for name, attr in (("workspace", "memory_size"), ("weights", "weight_size")):
        sizes = [each.get(attr) for each in attrs]
        nbytes = max((size for size in sizes if isinstance(size, int)), default=0)
        if nbytes > 0:  # 0: not said, or the weights lie beside the OM
            found[name] = nbytes
    return found


def _plan(request: CompileRequest) -> MemoryPlan:
    form = request.form
    pages = form.num_pages - 1 if form.num_pages else None
    return ledger(
        request.config,
        plan_request(request.options.form, request.form_model, form, pages),
    )


def _cache_layout(request: CompileRequest, graph: AtcGraph) -> str:
    if graph.form == COMPOSED:
        return request.form.cache_layout
    return _STACKED if len(request.form.gears) > 1 else "BnBsH"

"""The graph that ATC is given for a request, checked beforehand, and how ATC is called on it.

export -> lower for the chip -> attach weights -> gate
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..models.checkpoint import Checkpoint
from .ascend_lowering import AtcGraph, AtcLowering, lower_for_atc
from .atc_options import AtcOptions
from .atc_read_back import ExpectedTensor
from .onnx_gate import GateContext, plugin_operators, require_onnx
from .onnx_weights import attach_weights
from .pipeline import export_stage
from .request import CompileRequest
from .stages import Stages


def chip_graph(
    request: CompileRequest, checkpoint: Checkpoint, operators: Iterable[str], stages: Stages
) -> AtcGraph:
    """Return the lowered graph with its weights attached (not read yet).

    Args:
        operators: type keys of the parser plugin, such as "pagedom::1::RmsNorm".

    Raises:
        ExportError, PassError, GearError; GateError with everything that ATC would refuse.
    """
    model = export_stage(request, stages)
    with stages.stage(f"Lower for {request.target.name}") as stage:
        graph = lower_for_atc(model, request.target, _lowering(request))
        attach_weights(graph.model, checkpoint, request.dtype)
        require_onnx(graph.model, _gate_context(request, graph, operators))
        stage.note = f"{len(graph.model.graph)} nodes, {graph.form} attention"
    return graph


def atc_options(
    request: CompileRequest, graph: AtcGraph, kernels: Path | None = None
) -> AtcOptions:
    """Return what ATC is asked for; raises AtcOptionError for what it cannot take together.

    kernels: folder that keeps compiled kernels from one conversion to the next. No output type is
    given: the graph's logits are float32 already.
    """
    settings = request.options.atc
    return AtcOptions(
        target=request.target,
        shapes=graph.shapes,
        gears=graph.gears,
        device_tiling=graph.device_tiling,
        external_weight=settings.external_weight,
        log_level=settings.log,
        op_cache=kernels,
    )


def expected_inputs(graph: AtcGraph) -> tuple[ExpectedTensor, ...]:
    """Return the inputs that the OM must have."""
    return tuple(
        ExpectedTensor(name, graph.dtypes[name], shape) for name, shape in graph.shapes.items()
    )


def expected_outputs(graph: AtcGraph) -> tuple[ExpectedTensor, ...]:
    """Return the outputs that the OM must have, in order."""
    return tuple(
        ExpectedTensor(name, graph.dtypes[name], shape) for name, shape in graph.outputs.items()
    )


def weights_nbytes(graph: AtcGraph) -> int:
    """Return the bytes of all constants."""
    values = graph.model.graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)


def uses_plugin(graph: AtcGraph) -> bool:
    """Return whether operators of ours are left for the parser plugin."""
    return any(node.domain == "pagedom" for node in graph.model.graph)


def _lowering(request: CompileRequest) -> AtcLowering:
    form = request.form
    return AtcLowering(
        table_width=request.table_width,
        num_pages=form.num_pages,
        gears=form.gears,
        cache_write=request.options.cache_write,
        cann=request.cann_release,
        lacking=request.lacking,
    )


def _gate_context(
    request: CompileRequest, graph: AtcGraph, operators: Iterable[str]
) -> GateContext:
    return GateContext(
        plugin=plugin_operators(operators),
        shapes=graph.shapes,
        gears=None if graph.gears is None else graph.gears.gears,
        limits=request.target.family.gears,
        ranges=not request.form.gears,
    )

"""The host compiler: an exported ONNX graph -> GE-IR -> `model.om` in the real container."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ..runtime.acl.constants import GEAR_INPUT_NAME
from ..runtime.om_file.ge_graph import ListListInt, Node, TensorDesc
from ..runtime.om_file.model_def import ModelDef
from ..runtime.om_file.om_writer import OmInfo, inout_from_graph, output_names, write_om
from .ge_build import GeBuild
from .ge_import import import_onnx
from .ge_weights import TensorSource, place_weights
from .gear_list import dynamic_symbols, expand_gear
from .host_forms import PLAIN, HostForm
from .host_passes import WHOLE, form_passes
from .lower.infra import PassResult, run_passes
from .lower.merge_gate_up import MergeGateUp
from .lower.onnx_infra import OnnxPass, require_all, run_onnx_passes
from .onnx_check import dims

# Attributes by which a host artefact says its gears; runtime/acl/host_interface.py reads them.
GEARS_ATTR, GEAR_OUTPUTS_ATTR = "_pagedom_gears", "_pagedom_gear_outputs"

Shapes = Mapping[str, tuple[int | str, ...]]


@dataclass(frozen=True)
class HostGraph:
    """A lowered graph, what each pass did, and its interface with symbols in the place of -1."""

    build: GeBuild
    passes: dict[str, PassResult]
    inputs: Shapes
    outputs: Shapes
    attrs: dict[str, Any] = field(default_factory=dict)  # of the model


def lower_for_host(model: ir.Model, name: str, form: HostForm = PLAIN) -> HostGraph:
    """Lower an exported model (changed in place) to the GE-IR that the host device executes.

    Raises PassError naming the pass and the place where the model does not fit the form.
    """
    return lower_by_passes(model, name, form, form_passes(form))


def lower_by_passes(
    model: ir.Model,
    name: str,
    form: HostForm,
    onnx_passes: Sequence[OnnxPass],
) -> HostGraph:
    """Do what `lower_for_host` does with other passes: a chip's form, for the oracle executor."""
    passes = run_onnx_passes(model, onnx_passes)
    for each in WHOLE & passes.keys():
        require_all(each, passes[each])
    inputs = {str(value.name): _shape(value) for value in model.graph.inputs}
    outputs = {str(value.name): _shape(value) for value in model.graph.outputs}
    build = import_onnx(model, name)
    passes |= run_passes(build, [MergeGateUp()])
    outputs = {"logits": outputs["logits"], "next_ids": outputs["logits"][:1]} | {
        name: shape for name, shape in outputs.items() if name == "new_rows"
    }
    attrs = _add_gears(build, form, inputs, outputs) if form.gears else {}
    return HostGraph(build, passes, inputs, outputs, attrs)


def write_host_om(
    path: Path,
    graph: HostGraph,
    source: TensorSource,
    cmdline: str,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> int:
    """Write `model.om`, streaming the weights; returns its size in bytes."""
    blobs = place_weights(graph.build, source, advance)
    model_def = ModelDef(graph.build.graph.name, [graph.build.graph], dict(graph.attrs))
    gears = graph.attrs.get(GEARS_ATTR, ListListInt(()))
    inout = inout_from_graph(model_def, output_names(model_def))
    info = OmInfo(
        cmdline=cmdline,
        tool_version=f"pagedom {version('pagedom')}",
        inout=replace(inout, dynamic_dims=tuple(tuple(row) for row in gears.rows)),
    )
    return write_om(path, model_def, blobs, info)


def _shape(value: ir.Value) -> tuple[int | str, ...]:
    return tuple(-1 if dim is None else dim for dim in dims(value))


def _add_gears(build: GeBuild, form: HostForm, inputs: Shapes, outputs: Shapes) -> dict[str, Any]:
    """Append GE's hidden input behind the others; return the model's gear attributes."""
    symbols = dynamic_symbols(inputs)
    results = dynamic_symbols(outputs)
    desc = TensorDesc("int32", (len(symbols),), GEAR_INPUT_NAME)
    count = len(inputs)
    node = Node(GEAR_INPUT_NAME, "Data", [], {"index": count}, [desc], [desc], ["x"], ["y"])
    build.register([node])
    build.graph.nodes.insert(count, node)
    return {
        GEARS_ATTR: ListListInt(tuple(expand_gear(gear, symbols) for gear in form.gears)),
        GEAR_OUTPUTS_ATTR: ListListInt(tuple(expand_gear(gear, results) for gear in form.gears)),
    }

"""The host compiler: an exported ONNX graph -> GE-IR -> `model.om` in the real container."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir

from ..runtime.om_file.model_def import ModelDef
from ..runtime.om_file.om_writer import OmInfo, write_om
from .ge_build import GeBuild
from .ge_import import import_onnx
from .ge_weights import TensorSource, place_weights
from .lower.infra import PassResult, run_passes
from .lower.merge_gate_up import MergeGateUp
from .lower.seq_ends import swap_lengths


@dataclass(frozen=True)
class HostGraph:
    """A lowered graph and what each pass did."""

    build: GeBuild
    passes: dict[str, PassResult]


def lower_for_host(model: ir.Model, name: str) -> HostGraph:
    """Lower an exported model (changed in place) to the GE-IR that the host device executes."""
    swap_lengths(model)
    build = import_onnx(model, name)
    return HostGraph(build, run_passes(build, [MergeGateUp()]))


def write_host_om(
    path: Path,
    graph: HostGraph,
    source: TensorSource,
    cmdline: str,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> int:
    """Write `model.om`, streaming the weights; returns its size in bytes."""
    blobs = place_weights(graph.build, source, advance)
    model_def = ModelDef(graph.build.graph.name, [graph.build.graph])
    info = OmInfo(cmdline=cmdline, tool_version=f"pagedom {version('pagedom')}")
    return write_om(path, model_def, blobs, info)

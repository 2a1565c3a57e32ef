"""From an open checkpoint to an artefact for a chip: export, lower, ATC, read back.

CANN found (request) -> parser plugin -> export -> lower -> gate -> model.onnx -> ATC -> check
                        built or cached                             removed at the end
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ..models.catalog import cache_folder
from ..models.checkpoint import Checkpoint
from ..runtime.artifact import MODEL_FILE, building_artifact
from .ascend_lowering import AtcGraph
from .atc import AtcJob, AtcResult, compile_onnx
from .atc_cache import MAX_BYTES, AtcCache
from .atc_read_back import ExpectedOm, require_om
from .atc_settings import atc_cache_root, kernel_cache_root, plugin_cache_root
from .atc_workspace import is_safe
from .cann_install import CannInstall
from .chip_graph import (
    atc_options,
    chip_graph,
    expected_inputs,
    expected_outputs,
    uses_plugin,
    weights_nbytes,
)
from .chip_manifest import chip_manifest, measured_memory
from .onnx_weights import save_onnx
from .output_place import require_space
from .pipeline import Written, hash_stage, write_text_files
from .plugin import PluginBuild, build_plugin
from .request import CompileRequest, RequestError
from .stages import Stages, megabytes


def write_chip_artefact(request: CompileRequest, checkpoint: Checkpoint, stages: Stages) -> Written:
    """Compile for a chip with the CANN of this machine; the artefact appears whole or not at all.

    Raises PluginError, GateError, AtcError, AtcOptionError, ReadBackError and what an export and
    the disk may raise.
    """
    cann = request.cann
    if cann is None:
        raise RequestError(f"no CANN was chosen to compile for {request.target.name}")
    with building_artifact(request.output) as build:
        write_text_files(checkpoint, build.folder)
        plugin = plugin_stage(cann, stages) if request.target.family.attention else None
        operators = plugin.manifest.operators if plugin is not None else ()
        graph = chip_graph(request, checkpoint, operators, stages)
        result = _compile(request, graph, build.folder / MODEL_FILE, plugin, stages)
        with stages.stage("Check model.om") as stage:
            require_om(result.om, _expected(request, graph))
            nbytes = sum(path.stat().st_size for path in result.files)
            stage.note = megabytes(nbytes)
        tools = {"cann": cann.version or "unknown"}
        if plugin is not None and uses_plugin(graph):
            tools["pagedom-plugin"] = plugin.hash
        manifest = chip_manifest(request, graph, tools)
        memory = measured_memory(result.om, manifest.memory)
        hash_stage(build, manifest, memory, stages)
    return Written(nbytes, () if result.cached else result.notes)


def plugin_stage(cann: CannInstall, stages: Stages) -> PluginBuild:
    """Return the parser plugin for a toolkit, built if it is not there yet."""
    with stages.stage("Build the parser plugin") as stage:
        build = build_plugin(
            cann.root,
            plugin_cache_root(cache_folder()),
            lambda _, done, total: stage.show(done, total),
        )
        stage.note = "built before" if build.cached else "new"
    return build


def _compile(
    request: CompileRequest,
    graph: AtcGraph,
    om: Path,
    plugin: PluginBuild | None,
    stages: Stages,
) -> AtcResult:
    """Write model.onnx into a folder that goes at the end, and run ATC on it."""
    cann = request.cann
    assert cann is not None
    settings = request.options.atc
    cache = AtcCache(atc_cache_root(cache_folder()))
    require_space(om.parent, request.output, 2 * weights_nbytes(graph))
    with tempfile.TemporaryDirectory(prefix="onnx-", dir=om.parent) as work:
        path = Path(work) / "model.onnx"
        with stages.stage("Write model.onnx") as stage:
            files = save_onnx(graph.model, path, lambda _, done, total: stage.show(done, total))
            stage.note = megabytes(sum(file.stat().st_size for file in files))
        job = AtcJob(
            path,
            om,
            atc_options(request, graph, _kernels()),
            cann,
            plugin.path if plugin is not None and uses_plugin(graph) else None,
            cache,
            settings.compile_jobs,
            settings.timeout,
        )
        with stages.stage("Compile with ATC") as stage:
            result = compile_onnx(job, stage.say)
            stage.note = _atc_note(result)
    cache.prune(MAX_BYTES)
    return result


def _kernels() -> Path | None:
    """Return the folder in which ATC keeps kernels; None where it would refuse its name."""
    folder = kernel_cache_root(cache_folder())
    folder.mkdir(parents=True, exist_ok=True)
    return folder if is_safe(folder) else None


def _atc_note(result: AtcResult) -> str:
    size = megabytes(sum(path.stat().st_size for path in result.files))
    return f"{size}, compiled before" if result.cached else size


def _expected(request: CompileRequest, graph: AtcGraph) -> ExpectedOm:
    return ExpectedOm(
        request.target,
        expected_inputs(graph),
        expected_outputs(graph),
        0 if graph.gears is None else len(graph.gears.gears),
    )

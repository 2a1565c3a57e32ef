"""From an open checkpoint to an artefact, in stages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from ..models.checkpoint import Checkpoint
from ..runtime.artifact import MODEL_FILE, ArtifactBuilder, building_artifact
from ..runtime.chat_template import ChatTemplate, ChatTemplateError
from ..runtime.manifest import Manifest
from ..runtime.tokenizer import Tokenizer, TokenizerError
from .ge_weights import weight_bytes
from .host import HostGraph, lower_for_host, write_host_om
from .host_manifest import host_manifest
from .output_place import explaining, require_space
from .request import CompileRequest
from .stages import Stages, megabytes

TEMPLATE_FILE = "chat_template.jinja"


@dataclass(frozen=True)
class Written:
    """Bytes of the model's files, and what the user should be told."""

    bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """What a compilation made."""

    output: Path
    bytes: int
    warnings: tuple[str, ...]


def compile_model(
    request: CompileRequest, checkpoint: Checkpoint, stages: Stages, cmdline: str
) -> Compiled:
    """Compile an open checkpoint; the output appears complete or not at all.

    What can be refused without the export (the place, the tokenizer) is looked at before it.
    Raises ExportError, GeImportError, PassError, WeightError, TokenizerError, ArtifactError,
    OutputError, OSError; for a chip also what `chip_compile` and `chip_bundle` name.
    """
    with explaining(request.output):
        written = _write(request, checkpoint, stages, cmdline)
    notes = (*written.notes, *checkpoint.warnings)
    return Compiled(request.output, written.bytes, tuple(dict.fromkeys(notes)))


def _write(
    request: CompileRequest, checkpoint: Checkpoint, stages: Stages, cmdline: str
) -> Written:
    if request.emit == "onnx":
        return Written(_write_onnx(request, checkpoint, stages))
    if request.emit == "atc":
        from .chip_bundle import write_chip_bundle

        return write_chip_bundle(request, checkpoint, stages)
    if request.target.is_host:
        return Written(_write_artefact(request, checkpoint, stages, cmdline))
    from .chip_compile import write_chip_artefact

    return write_chip_artefact(request, checkpoint, stages)


def _write_onnx(request: CompileRequest, checkpoint: Checkpoint, stages: Stages) -> int:
    from .onnx_artifact import write_onnx_folder

    return write_onnx_folder(request, checkpoint, lambda: export_stage(request, stages), stages)


def _write_artefact(
    request: CompileRequest, checkpoint: Checkpoint, stages: Stages, cmdline: str
) -> int:
    with building_artifact(request.output) as build:
        write_text_files(checkpoint, build.folder)
        model = export_stage(request, stages)
        with stages.stage("Lower to GE-IR") as stage:
            graph = lower_for_host(model, request.config.name, request.form)
            stage.note = f"{len(graph.build.graph.nodes)} nodes"
        require_space(build.folder, request.output, weight_bytes(graph.build))
        nbytes = _write_model(request, checkpoint, graph, build.folder, stages, cmdline)
        hash_stage(build, host_manifest(request, graph), {}, stages)
    return nbytes


def hash_stage(
    build: ArtifactBuilder, manifest: Manifest, memory: Mapping[str, int], stages: Stages
) -> None:
    """Hash the files and write the manifest; `memory` has figures that are better than its own."""
    manifest = replace(manifest, memory={**manifest.memory, **memory})
    with stages.stage("Hash") as stage:
        build.finish(manifest, lambda _, done, total: stage.show(done, total))


def write_text_files(checkpoint: Checkpoint, folder: Path) -> None:
    """Write tokenizer files and the chat template, if the checkpoint has one.

    What the runtime could not read is found now: a tokenizer is refused (TokenizerError), a chat
    template left out with a warning.
    """
    checkpoint.write_tokenizer(folder)
    try:
        Tokenizer.from_folder(folder)
    except TokenizerError as error:
        text = str(error).replace(f"{folder}{os.sep}", "")
        raise TokenizerError(f"run-om could not use this checkpoint's {text}") from error
    if checkpoint.chat_template is None:
        return
    path = folder / TEMPLATE_FILE
    path.write_text(checkpoint.chat_template, encoding="utf-8")
    try:
        ChatTemplate.find(folder)
    except ChatTemplateError as error:
        path.unlink()
        checkpoint.warnings.append(f"left out, so prompts are sent as they are: {error}")


def export_stage(request: CompileRequest, stages: Stages) -> ir.Model:
    """Export the model's graph, without weights."""
    with stages.stage("Trace and export to ONNX") as stage:
        from .export import ExportOptions, export_onnx

        options = ExportOptions(request.dtype, request.max_seq_len, request.page_size)
        model = export_onnx(request.config, options, lambda work, *_: stage.say(work))
        stage.note = f"{len(list(model.graph))} nodes"
        return model


def _write_model(
    request: CompileRequest,
    checkpoint: Checkpoint,
    graph: HostGraph,
    folder: Path,
    stages: Stages,
    cmdline: str,
) -> int:
    with stages.stage("Write model.om") as stage:
        total, done = weight_bytes(graph.build), 0

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            stage.show(done, total)

        nbytes = write_host_om(folder / MODEL_FILE, graph, checkpoint, cmdline, advance)
        stage.note = megabytes(nbytes)
        return nbytes

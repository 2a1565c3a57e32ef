"""From an open checkpoint to an artefact, in stages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ..models.checkpoint import Checkpoint
from ..runtime.artifact import MODEL_FILE, building_artifact
from ..runtime.chat_template import ChatTemplate, ChatTemplateError
from ..runtime.tokenizer import Tokenizer, TokenizerError
from .ge_weights import weight_bytes
from .host import HostGraph, lower_for_host, write_host_om
from .host_manifest import host_manifest
from .output_place import explaining, require_space
from .request import CompileRequest
from .stages import Stages, megabytes

TEMPLATE_FILE = "chat_template.jinja"


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
    OutputError, OSError.
    """
    write = _write_onnx if request.emit == "onnx" else _write_artefact
    with explaining(request.output):
        nbytes = write(request, checkpoint, stages, cmdline)
    return Compiled(request.output, nbytes, tuple(checkpoint.warnings))


def _write_onnx(
    request: CompileRequest, checkpoint: Checkpoint, stages: Stages, cmdline: str
) -> int:
    from .onnx_artifact import write_onnx_folder

    return write_onnx_folder(request, checkpoint, lambda: _export(request, stages), stages)


def _write_artefact(
    request: CompileRequest, checkpoint: Checkpoint, stages: Stages, cmdline: str
) -> int:
    with building_artifact(request.output) as build:
        write_text_files(checkpoint, build.folder)
        model = _export(request, stages)
        with stages.stage("Lower to GE-IR") as stage:
            graph = lower_for_host(model, request.config.name, request.form)
            stage.note = f"{len(graph.build.graph.nodes)} nodes"
        require_space(build.folder, request.output, weight_bytes(graph.build))
        nbytes = _write_model(request, checkpoint, graph, build.folder, stages, cmdline)
        with stages.stage("Hash") as stage:
            build.finish(host_manifest(request, graph), lambda _, done, total: stage.show(done, total))
    return nbytes


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


def _export(request: CompileRequest, stages: Stages) -> ir.Model:
    with stages.stage("Trace and export to ONNX") as stage:
        from .export import ExportOptions, export_onnx

        options = ExportOptions(request.dtype, request.max_seq_len, request.page_size)
        model = export_onnx(request.config, options, lambda _, done, all: stage.show(done, all))
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

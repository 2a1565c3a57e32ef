"""From an open checkpoint to an artefact, in stages."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ..models.checkpoint import Checkpoint
from ..runtime.artifact import MODEL_FILE, building_artifact
from ..runtime.manifest import SCHEMA_VERSION, Binding, Manifest, ModelGeometry, OutputBinding
from ..runtime.om_file.ge_graph import Graph, TensorDesc
from .ge_weights import weight_bytes
from .host import HostGraph, lower_for_host, write_host_om
from .page_rules import token_bytes
from .request import CompileRequest
from .stages import Stages, megabytes

TEMPLATE_FILE = "chat_template.jinja"
CACHE_LAYOUT = "BnBsH"  # [P,S,K*D]; the order inside a page is the executor's own on the host
EXPORT_STEPS = 3

# Symbols of the sources' extents, for the manifest.
STEP_SHAPES: dict[str, tuple[int | str, ...]] = {
    "input_ids": ("T",),
    "positions": ("T",),
    "slot_mapping": ("T",),
    "block_table": ("B", "M"),
    "seq_ends": ("B",),
    "kv_lens": ("B",),
    "logits_rows": ("R",),
}
OUTPUT_ROLES = {"logits": "logits", "next_ids": "argmax"}


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

    Raises ExportError, GeImportError, PassError, WeightError, ArtifactError, OSError.
    """
    model = _export(request, stages)
    if request.emit == "onnx":
        from .onnx_artifact import write_onnx_folder

        nbytes = write_onnx_folder(request, checkpoint, model, stages)
        return Compiled(request.output, nbytes, tuple(checkpoint.warnings))
    with stages.stage("Lower to GE-IR") as stage:
        graph = lower_for_host(model, request.config.name)
        stage.note = f"{len(graph.build.graph.nodes)} nodes"
    with building_artifact(request.output) as build:
        nbytes = _write_model(request, checkpoint, graph, build.folder, stages, cmdline)
        write_text_files(checkpoint, build.folder)
        build.manifest = _manifest(request, graph)
        with stages.stage("Hash and finish"):
            pass
    return Compiled(request.output, nbytes, tuple(checkpoint.warnings))


def write_text_files(checkpoint: Checkpoint, folder: Path) -> None:
    """Write tokenizer files and the chat template, if the checkpoint has one."""
    checkpoint.write_tokenizer(folder)
    if checkpoint.chat_template:
        (folder / TEMPLATE_FILE).write_text(checkpoint.chat_template, encoding="utf-8")


def _export(request: CompileRequest, stages: Stages) -> ir.Model:
    with stages.stage("Trace and export to ONNX", EXPORT_STEPS) as stage:
        from .export import ExportOptions, export_onnx

        seen = 0

        def progress(name: str, done: int, total: int) -> None:
            nonlocal seen
            stage.advance(done - seen)
            seen = done

        options = ExportOptions(request.dtype, request.max_seq_len, request.page_size)
        model = export_onnx(request.config, options, progress)
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
    with stages.stage("Write model.om", weight_bytes(graph.build)) as stage:
        nbytes = write_host_om(
            folder / MODEL_FILE, graph, checkpoint, cmdline, lambda n: stage.advance(n)
        )
        stage.note = megabytes(nbytes)
        return nbytes


def _manifest(request: CompileRequest, graph: HostGraph) -> Manifest:
    config = request.config
    kv_bytes = 2 * config.num_layers * token_bytes(config, request.dtype)
    return Manifest(
        schema=SCHEMA_VERSION,
        name=config.name,
        target=request.target.name,
        soc=None if request.target.is_host else request.target.name,
        dtype=request.dtype,
        page_size=request.page_size,
        max_seq_len=request.max_seq_len,
        max_batch=request.max_batch,
        table_width=request.table_width,
        cache_layout=CACHE_LAYOUT,
        model=ModelGeometry(
            config.family,
            config.vocab_size,
            config.hidden_size,
            config.num_layers,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.bos_id,
            config.eos_ids,
        ),
        inputs=_inputs(graph.build.graph),
        outputs=_outputs(graph.build.graph),
        memory={
            "weights": weight_bytes(graph.build),
            "kv_per_token": kv_bytes,
            "kv_per_page": kv_bytes * request.page_size,
        },
        tools={
            name: importlib.metadata.version(name)
            for name in ("pagedom", "torch", "onnx", "onnxscript")
        },
    )


def _inputs(graph: Graph) -> tuple[Binding, ...]:
    bindings = []
    for node in graph.data_nodes:
        desc = node.output_descs[0]
        shape = STEP_SHAPES.get(node.name) or ("P", *desc.shape[1:])
        bindings.append(Binding(node.name, node.name, desc.dtype, shape))
    return tuple(bindings)


def _outputs(graph: Graph) -> tuple[OutputBinding, ...]:
    rows = []
    for text, role in zip(graph.net_output.inputs, OUTPUT_ROLES.values()):
        desc: TensorDesc = graph.input_desc(text)
        name = next(name for name, found in OUTPUT_ROLES.items() if found == role)
        rows.append(OutputBinding(name, role, desc.dtype, ("R", *desc.shape[1:])))
    return tuple(rows)

"""`--emit onnx`: a folder with the graph and its weights, which stock onnxruntime runs.

    OUTPUT/
      pagedom-onnx.json    facts of the export, and the size of every other file
      model.onnx, model.onnx.data
      tokenizer.json ...

Built beside its place and swapped in, as an artefact is: see `runtime/folder_swap.py`.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from ..models.checkpoint import Checkpoint
from ..runtime.folder_swap import FolderOwner, replacing_folder
from .onnx_weights import attach_weights, save_onnx
from .output_place import require_space
from .request import CompileRequest
from .stages import Stages, megabytes

ONNX_FILE = "model.onnx"
FACTS_FILE = "pagedom-onnx.json"
_SCHEMA = 1
_OWNER = FolderOwner(FACTS_FILE, "folder that --emit onnx wrote")


def write_onnx_folder(
    request: CompileRequest,
    checkpoint: Checkpoint,
    export: Callable[[], ir.Model],
    stages: Stages,
) -> int:
    """Write the output folder, complete or not at all; returns its size in bytes.

    Raises FolderError where the output is something else, and what `export` raises.
    """
    from .pipeline import write_text_files

    with replacing_folder(request.output, _OWNER) as folder:
        write_text_files(checkpoint, folder)
        model = export()
        attach_weights(model, checkpoint, request.dtype)
        values = model.graph.initializers.values()
        nbytes = sum(value.const_value.nbytes for value in values if value.const_value)
        require_space(folder, request.output, nbytes)
        with stages.stage("Write model.onnx") as stage:
            path = folder / ONNX_FILE
            files = save_onnx(model, path, lambda _, done, total: stage.show(done, total))
            written = sum(file.stat().st_size for file in files)
            stage.note = megabytes(written)
        _write_facts(request, folder)
    return written


def _write_facts(request: CompileRequest, folder: Path) -> None:
    sizes = {path.name: {"bytes": path.stat().st_size} for path in sorted(folder.iterdir())}
    facts = {
        "schema": _SCHEMA,
        "name": request.config.name,
        "dtype": request.dtype,
        "page_size": request.page_size,
        "max_seq_len": request.max_seq_len,
        "tools": {
            name: importlib.metadata.version(name)
            for name in ("pagedom", "torch", "onnx", "onnxscript")
        },
        "files": sizes,
    }
    text = json.dumps(facts, ensure_ascii=False, indent=2) + "\n"
    (folder / FACTS_FILE).write_text(text, encoding="utf-8")

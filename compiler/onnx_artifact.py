"""`--emit onnx`: the graph with its weights as one ONNX file that stock onnxruntime runs."""

from __future__ import annotations

import onnx_ir as ir

from ..models.checkpoint import Checkpoint
from .onnx_weights import attach_weights, save_onnx
from .request import CompileRequest
from .stages import Stages, megabytes

ONNX_FILE = "model.onnx"


def write_onnx_folder(
    request: CompileRequest, checkpoint: Checkpoint, model: ir.Model, stages: Stages
) -> int:
    """Write OUTPUT/model.onnx, its data file and the tokenizer; returns their size in bytes."""
    from .pipeline import write_text_files

    attach_weights(model, checkpoint, request.dtype)
    with stages.stage("Write model.onnx", 1.0) as stage:
        seen = 0

        def progress(name: str, done: int, total: int) -> None:
            nonlocal seen
            stage.advance((done - seen) / max(total, 1))
            seen = done

        files = save_onnx(model, request.output / ONNX_FILE, progress)
        nbytes = sum(file.stat().st_size for file in files)
        stage.note = megabytes(nbytes)
    write_text_files(checkpoint, request.output)
    return nbytes

"""Weights of an exported model: attached lazily, written to disk tensor by tensor.

No more than one tensor (and its transposed copy) is in memory at a time, beside the mapped pages
of the checkpoint, however large the model is.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import onnx_ir as ir

from ..graph_ops.bodies import ir_type
from .onnx_check import dims, dtype_name
from .onnx_cleanup import TRANSPOSED, WEIGHT

Progress = Callable[[str, int, int], None]  # stage, bytes done, bytes in all

# onnxruntime maps an external tensor that starts on a page; smaller files are not worth less.
_ALIGNMENT = 4096
_INLINE_BYTES = 1024  # tensors up to this size stay inside the .onnx file


class WeightSource(Protocol):
    """What is needed of a checkpoint: names with shapes, and each tensor in a dtype."""

    @property
    def expected(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor, by canonical name."""

    def cast(self, name: str, dtype: str) -> np.ndarray:
        """Return one tensor, converted."""


class WeightsError(ValueError):
    """A model's graph and a checkpoint do not belong together."""


def attach_weights(model: ir.Model, checkpoint: WeightSource, dtype: str | None = None) -> None:
    """Give every weight of an exported model its data, read when it is asked for.

    The checkpoint must stay open until the model is saved. `dtype` is the dtype the model was
    exported in, and may be left out. Raises WeightsError, naming all tensors, where names, shapes
    or the dtype differ.
    """
    blanks = [v for v in model.graph.initializers.values() if WEIGHT in v.metadata_props]
    problems = []
    for value in blanks:
        name, shape = value.metadata_props[WEIGHT], _stored_shape(value)
        found = checkpoint.expected.get(name)
        if found is None:
            problems.append(f"{name} is not in the checkpoint")
        elif tuple(found) != shape:
            problems.append(
                f"{name} is {list(found)} in the checkpoint, {list(shape)} in the graph"
            )
        if dtype is not None and dtype_name(value) != dtype:
            problems.append(f"{name} is {dtype_name(value)} in the graph, {dtype} is asked for")
    unread = set(checkpoint.expected) - {value.metadata_props[WEIGHT] for value in blanks}
    problems += [f"{name} of the checkpoint is not in the graph" for name in sorted(unread)]
    if problems:
        raise WeightsError("graph and checkpoint do not fit: " + "; ".join(problems))
    for value in blanks:
        value.const_value = _lazy(value, checkpoint)


def _stored_shape(value: ir.Value) -> tuple[int | str | None, ...]:
    """Return the shape that the checkpoint has for a weight."""
    shape = dims(value)
    return tuple(reversed(shape)) if TRANSPOSED in value.metadata_props else shape


def _lazy(value: ir.Value, checkpoint: WeightSource) -> ir.LazyTensor:
    name, dtype = value.metadata_props[WEIGHT], dtype_name(value)
    transposed = TRANSPOSED in value.metadata_props
    onnx_type = ir_type(dtype)

    def load() -> ir.TensorProtocol:
        array = checkpoint.cast(name, dtype)
        if transposed:
            array = np.ascontiguousarray(array.T)
        return ir.Tensor(array, dtype=onnx_type, name=name)

    if value.shape is None:
        raise WeightsError(f"{name} has no shape in the graph")
    return ir.LazyTensor(load, onnx_type, value.shape, name=value.name)


def save_onnx(model: ir.Model, path: Path, progress: Progress | None = None) -> list[Path]:
    """Write `path` and, beside it, `path` + ".data" with the tensors; returns both paths.

    The files appear under their names only when both are complete; a failure leaves nothing
    behind. `progress("write weights", done, total)` is called in bytes. The model is left as it
    was. Raises WeightsError if a weight has no data yet, OSError as the file system does.
    """
    values = list(model.graph.initializers.values())
    blank = [str(value.name) for value in values if value.const_value is None]
    if blank:
        raise WeightsError(f"{len(blank)} weights have no data, {blank[0]} first: attach_weights")
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.with_name(path.name + ".data")
    originals = {value: value.const_value for value in values}
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        with open(work / data.name, "wb") as file:
            _write_tensors(values, file, data.name, progress or (lambda *_: None))
        (work / path.name).write_bytes(_serialize(model))
        # Never a new data file under an old graph: the graph goes first and comes back last.
        path.unlink(missing_ok=True)
        os.replace(work / data.name, data)
        os.replace(work / path.name, path)
    finally:
        for value, tensor in originals.items():
            value.const_value = tensor
        shutil.rmtree(work, ignore_errors=True)
    return [path, data]


def _write_tensors(
    values: list[ir.Value], file: BinaryIO, location: str, progress: Progress
) -> None:
    """Stream the large tensors to a file and let each value point there."""
    large = [v for v in values if v.const_value and v.const_value.nbytes > _INLINE_BYTES]
    total = sum(value.const_value.nbytes for value in large if value.const_value)
    done = 0
    progress("write weights", 0, total)
    for value in large:
        tensor = value.const_value
        if tensor is None:
            continue
        offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
        file.seek(offset)
        array = np.ascontiguousarray(tensor.numpy())
        # A flat byte view: file.write takes no array of ml_dtypes.
        file.write(array.reshape(-1).view(np.uint8).data)
        value.const_value = ir.ExternalTensor(
            location,
            offset,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(array.shape),
            name=str(value.name),
        )
        done += tensor.nbytes
        progress("write weights", done, total)
    for value in values:
        small = value.const_value
        if isinstance(small, ir.LazyTensor):
            # Read now: what is wrong with it is said by its reader, not by the serializer.
            value.const_value = ir.Tensor(small.numpy(), small.dtype, name=small.name)


def _serialize(model: ir.Model) -> bytes:
    """Return the .onnx file; weights' metadata goes onto the tensors, where readers look."""
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            value.const_value.metadata_props.update(value.metadata_props)
    serialized: bytes = ir.serde.serialize_model(model).SerializeToString()
    return serialized

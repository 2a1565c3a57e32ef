"""What a model file holds, in a form to print: the facts behind `run-om inspect`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import dtypes
from .ge_graph import CONST_TYPES, Graph, ListListInt, TensorDesc
from .header import VERSION_NEW, OmHeader
from .inout_info import InoutInfo, TensorInfo
from .om_reader import OmFile, SubModel, read_om
from .om_writer import output_names
from .partitions import PartitionType
from .tensor_proto import FORMAT_NAMES, tensor_nbytes

_GEAR_KINDS = {1: "batch", 2: "image size", 3: "dims"}


@dataclass(frozen=True)
class TensorRow:
    """One input or output of the model; nbytes is 0 for a dynamic shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    format: str
    nbytes: int


@dataclass(frozen=True)
class PartitionRow:
    """One partition: of which model, its type, byte offset in the file and size."""

    model: int
    type: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class OmDescription:
    """All that `inspect` shows of a model file; texts are empty where the file says nothing."""

    path: Path
    file_bytes: int
    kind: str
    header: OmHeader
    partitions: tuple[PartitionRow, ...]
    inputs: tuple[TensorRow, ...]
    outputs: tuple[TensorRow, ...]
    operators: tuple[tuple[str, int], ...]  # (type, count), most frequent first
    num_graphs: int
    num_constants: int
    weight_bytes: int
    num_tasks: int
    gears: tuple[str, ...]
    soc_version: str
    tool_version: str
    framework: str
    cmdline: str
    notes: tuple[str, ...]  # what is unusual, or could not be read


def describe_om(path: str | Path) -> OmDescription:
    """Read a model file and gather its facts.

    Raises:
        OmFormatError: the file breaks the format.
        OSError: the file cannot be read.
    """
    with read_om(path) as om:
        models = [model.model_def for model in om.models]
        graphs = [graph for model in models for graph in model.graphs]
        nodes = [node for graph in graphs for node in graph.nodes]
        root = models[0]
        inputs, outputs = _tensors(om.models[0])
        return OmDescription(
            path=Path(path),
            file_bytes=om.file_bytes,
            kind=om.header.kind,
            header=om.header,
            partitions=tuple(
                PartitionRow(model.index, part.type_name, part.offset, part.nbytes)
                for model in om.models
                for part in model.partitions
            ),
            inputs=inputs,
            outputs=outputs,
            operators=tuple(Counter(node.type for node in nodes).most_common()),
            num_graphs=len(graphs),
            num_constants=sum(node.type in CONST_TYPES for node in nodes),
            weight_bytes=sum(len(model.weights) for model in om.models),
            num_tasks=sum(model.task_info.num_tasks for model in om.models if model.task_info),
            gears=tuple(_gears(om.models[0].inout_info, graphs)),
            soc_version=_text(root.attrs.get("soc_version")),
            tool_version=_text(root.attrs.get("atc_version")),
            framework=_text(root.attrs.get("framework_type")),
            cmdline=_text(root.attrs.get("atc_cmdline")),
            notes=tuple(_notes(om)),
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _tensors(model: SubModel) -> tuple[tuple[TensorRow, ...], tuple[TensorRow, ...]]:
    """Take inputs and outputs from MODEL_INOUT_INFO, else from Data nodes and NetOutput."""
    info = model.inout_info
    if info is not None:
        return tuple(map(_info_row, info.inputs)), tuple(map(_info_row, info.outputs))
    if not model.model_def.graphs:
        return (), ()
    graph = model.model_def.graph
    inputs = tuple(
        _desc_row(node.name, descs[0])
        for node in graph.data_nodes
        if (descs := node.output_descs or node.input_descs)
    )
    if not any(node.type == "NetOutput" for node in graph.nodes):
        return inputs, ()
    names = output_names(model.model_def)
    return inputs, tuple(map(_desc_row, names, graph.net_output.input_descs))


def _info_row(info: TensorInfo) -> TensorRow:
    row = dtypes.BY_ACL.get(info.dtype)
    name = row.name if row else f"ACL type {info.dtype}"
    return TensorRow(info.name, name, info.dims, _format_name(info.format), info.nbytes)


def _format_name(number: int) -> str:
    return FORMAT_NAMES.get(number, f"format {number}")


def _desc_row(name: str, desc: TensorDesc) -> TensorRow:
    return TensorRow(name, desc.dtype, desc.shape, desc.format, tensor_nbytes(desc))


def _gears(info: InoutInfo | None, graphs: list[Graph]) -> list[str]:
    """Return one text a kind of gear: from MODEL_INOUT_INFO, else from the Case operator."""
    if info is not None and (info.dynamic_batch or info.dynamic_image or info.dynamic_dims):
        kinds: tuple[tuple[str, tuple[Any, ...]], ...] = (
            ("batch", info.dynamic_batch),
            ("image size", info.dynamic_image),
            ("dims", info.dynamic_dims),
        )
        return [f"{kind}: {_join(values)}" for kind, values in kinds if values]
    texts = []
    for node in (node for graph in graphs for node in graph.nodes if node.type == "Case"):
        count = node.attrs.get("_batch_num")
        if not isinstance(count, int):
            continue
        # As many as the node really has: the count in the file may be anything.
        keys = [key for key in node.attrs if key.startswith("_pred_value_")][:count]
        values = tuple(node.attrs[key] for key in sorted(keys, key=_number_at_end))
        kind = _GEAR_KINDS.get(node.attrs.get("mbatch_dynamic_type", 0), "gears")
        texts.append(f"{kind}: {_join(values)}")
    return texts


def _number_at_end(key: str) -> int:
    digits = key.rpartition("_")[2]
    return int(digits) if digits.isdigit() else 0


def _join(values: tuple[Any, ...]) -> str:
    rows = (value.rows if isinstance(value, ListListInt) else value for value in values)
    return ", ".join(
        "x".join(map(str, row)) if isinstance(row, (list, tuple)) else str(row) for row in rows
    )


def _notes(om: OmFile) -> list[str]:
    notes = [text for model in om.models for text in model.table.offset_mismatches]
    header = om.header
    kinds = {part.type for model in om.models for part in model.partitions}
    if PartitionType.FLOW_MODEL in kinds:
        count = sum(p.type == PartitionType.FLOW_SUBMODEL for p in om.models[0].partitions)
        notes.append(
            f"a flow model: its root graph is shown; FLOW_MODEL and {count} FLOW_SUBMODEL "
            "partitions are not decoded"
        )
    if header.is_hiai:
        notes.append("a model of HiAI DDK (phones): not for Ascend NPUs; tasks are not decoded")
    elif header.version < VERSION_NEW:
        notes.append("container version 1.0, from before CANN 5: current loaders may refuse it")
    if not om.model_def.graphs:
        notes.append("MODEL_DEF has no graph")
    return notes

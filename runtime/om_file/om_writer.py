"""Write an .om file: the container of Ascend's ATC, with a graph for our host device.

    [header 256][table 8 + 24*4][MODEL_INOUT_INFO][MODEL_DEF][WEIGHTS_DATA][TASK_INFO]

Weights are streamed, one constant in memory at a time, into a temporary file beside the target,
which takes the target's name only when everything is on the disk.
"""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from .. import dtypes
from .errors import OmFormatError
from .ge_graph import Node, TensorDesc, WeightRef, parse_edge
from .header import HEADER_BYTES, OmHeader
from .inout_info import InoutInfo, TensorInfo, pack_inout_info
from .model_def import ModelDef
from .partitions import PartitionType, check_partition_size, pack_table, table_bytes
from .task_info import TaskInfo
from .tensor_proto import FORMATS, tensor_nbytes
from .weight_layout import ALIGN_BYTES, WeightBlob, stream, total_bytes

OUT_NAMES_KEY = "attr_model_out_nodes_name"
PADDING_KEY = "_pagedom_padding"
_UNDEFINED_DTYPE = 28  # ge::DT_UNDEFINED of the C++ enumeration


@dataclass(frozen=True)
class OmInfo:
    """What a file says about its making, beside the graph."""

    cmdline: str = ""  # our own command line, shown by `atc --mode=6`
    tool_version: str = ""  # written as atc_version
    soc_version: str = ""  # empty: a real loader then skips its check of the chip
    framework_type: str = "Onnx"
    platform_version: str = ""
    memory_bytes: int = 0  # feature-map memory
    inout: InoutInfo | None = None  # default: from the graph's Data and NetOutput nodes
    task_info: TaskInfo = field(default_factory=TaskInfo)


def write_om(
    path: str | Path,
    model_def: ModelDef,
    weights: Sequence[WeightBlob] = (),
    info: OmInfo | None = None,
) -> int:
    """Write a model file and return its size in bytes.

    The root graph decides whether it is an unknown-shape model (a Data node with a -1 extent).
    Attributes that `model_def` already has win over those derived from `info`.

    Args:
        path: the file; replaced only when the new one is complete.
        model_def: the graphs; not changed.
        weights: the constants that WeightRefs of the graph refer to, in any order.
        info: what to write about the making.

    Raises:
        OmFormatError: the graph is unsound (all problems are listed) or breaks a size limit.
        OSError: the disk; nothing is left behind.
    """
    problems = [*model_def.graph.validate(), *_weight_problems(model_def, weights)]
    if problems:
        listed = "\n  ".join(problems)
        raise OmFormatError(f"graph {model_def.graph.name!r} is unsound:\n  {listed}")
    path = Path(path)
    end = max((blob.offset + blob.nbytes for blob in weights), default=0)
    plan = _FilePlan(model_def, total_bytes(end) if weights else 0, info or OmInfo())
    with _replacing(path) as file:
        file.write(plan.header.pack())
        file.write(pack_table(plan.parts))
        file.write(plan.inout)
        file.write(plan.model)
        for piece in stream(weights):
            file.write(piece)
        file.write(plan.tasks)
        written = file.tell()
        if written != HEADER_BYTES + plan.header.model_length:
            raise OmFormatError(
                "the file did not come out as planned",
                path=path,
                declared=f"{HEADER_BYTES + plan.header.model_length} bytes",
                actual=f"{written} bytes",
            )
    return written


def _weight_problems(model_def: ModelDef, weights: Sequence[WeightBlob]) -> Iterator[str]:
    """Every constant must refer to a blob that is written, of the size its shape asks for."""
    sizes = {blob.offset: blob.nbytes for blob in weights if blob.nbytes}
    for node in (node for graph in model_def.graphs for node in graph.nodes):
        ref = node.attrs.get("value")
        if not isinstance(ref, WeightRef) or not ref.nbytes:
            continue
        if sizes.get(ref.offset) != ref.nbytes:
            yield (
                f"constant {node.name!r} refers to {ref.nbytes} bytes at {ref.offset} of "
                f"WEIGHTS_DATA, where {sizes.get(ref.offset, 'no')} bytes are written"
            )
        expected = tensor_nbytes(ref.desc)
        if expected and expected != ref.nbytes:
            yield (
                f"constant {node.name!r} is {ref.desc.dtype} {list(ref.desc.shape)}, "
                f"{expected} bytes, but refers to {ref.nbytes}"
            )


class _FilePlan:
    """All parts but the weights, serialized, and the header that fits them."""

    def __init__(self, model_def: ModelDef, weight_bytes: int, info: OmInfo) -> None:
        is_dynamic = any(
            desc.is_dynamic for node in model_def.graph.data_nodes for desc in node.output_descs
        )
        names = output_names(model_def)
        self.inout = pack_inout_info(info.inout or inout_from_graph(model_def, names))
        self.tasks = replace(info.task_info, weight_bytes=weight_bytes).to_bytes()
        attrs = _model_attrs(info, weight_bytes, len(self.tasks), names)
        complete = replace(model_def, attrs={**attrs, **model_def.attrs})
        complete.attrs["weight_size"] = weight_bytes
        num_parts = 4 if weight_bytes else 3
        before = HEADER_BYTES + table_bytes(num_parts) + len(self.inout)
        self.model = _padded_bytes(complete, before)
        check_partition_size(PartitionType.MODEL_DEF, len(self.model))
        self.parts = [
            (PartitionType.MODEL_INOUT_INFO, len(self.inout)),
            (PartitionType.MODEL_DEF, len(self.model)),
            (PartitionType.WEIGHTS_DATA, weight_bytes),
            (PartitionType.TASK_INFO, len(self.tasks)),
        ]
        if not weight_bytes:
            del self.parts[2]
        self.header = OmHeader(
            name=model_def.name,
            om_ir_version=model_def.version,
            platform_version=info.platform_version or model_def.custom_version,
            model_length=table_bytes(num_parts) + sum(nbytes for _, nbytes in self.parts),
            is_unknown_shape=is_dynamic,
        )


def _padded_bytes(model_def: ModelDef, before: int) -> bytes:
    """Serialize so that what follows starts on a multiple of 512 bytes in the file.

    Constants are then aligned in the memory map too. The format itself has no alignment, so the
    gap is an attribute of the model, which loaders ignore.
    """
    # From 256 to 767 bytes of padding every length prefix around it has two bytes.
    model_def.attrs[PADDING_KEY] = bytes(256)
    gap = -(before + len(model_def.to_bytes())) % ALIGN_BYTES
    model_def.attrs[PADDING_KEY] = bytes(256 + gap)
    return model_def.to_bytes()


def _model_attrs(
    info: OmInfo, weight_bytes: int, task_bytes: int, names: list[str]
) -> dict[str, object]:
    attrs: dict[str, object] = {
        "memory_size": info.memory_bytes,
        "stream_num": info.task_info.stream_num,
        "event_num": info.task_info.event_num,
        "label_num": 0,
        OUT_NAMES_KEY: names,
        "atc_cmdline": info.cmdline,
        "atc_version": info.tool_version,
        "framework_type": info.framework_type,
        "host_env_os": platform.system().lower(),
        "host_env_cpu": platform.machine(),
        # weights, TBE kernels, AI CPU kernels, tasks, operator libraries: `atc --mode=6` wants 5
        "om_info_list": [weight_bytes, 0, 0, task_bytes, 0],
    }
    if info.soc_version:
        attrs["soc_version"] = info.soc_version
    return attrs


def output_names(model_def: ModelDef) -> list[str]:
    """Return the outputs' names: the model attribute, else "node:index:tensor" from NetOutput."""
    node = model_def.graph.net_output
    edges = [edge for edge in node.edges() if edge is not None and not edge.is_control]
    named = model_def.attrs.get(OUT_NAMES_KEY)
    if isinstance(named, list) and len(named) == len(edges):
        return [name if ":" in name else f"{name}:{edge.index}" for name, edge in zip(named, edges)]
    names = []
    for position, edge in enumerate(edges):
        tensor = node.input_descs[position].name if position < len(node.input_descs) else ""
        name = f"{edge.producer}:{edge.index}"
        names.append(f"{name}:{tensor}" if tensor else name)
    return names


def inout_from_graph(model_def: ModelDef, names: list[str]) -> InoutInfo:
    """Return inputs (Data nodes by index) and outputs (NetOutput) as MODEL_INOUT_INFO has them."""
    graph = model_def.graph
    inputs = tuple(_tensor_info(node.name, _data_desc(node)) for node in graph.data_nodes)
    net_output = graph.net_output
    descs = [
        net_output.input_descs[position]
        if position < len(net_output.input_descs)
        else graph.input_desc(text)
        for position, text in enumerate(net_output.inputs)
        if (edge := parse_edge(text)) is not None and not edge.is_control
    ]
    outputs = tuple(_tensor_info(name, desc) for name, desc in zip(names, descs))
    return InoutInfo(inputs=inputs, outputs=outputs)


def _data_desc(node: Node) -> TensorDesc:
    descs = node.output_descs or node.input_descs
    if not descs:
        raise OmFormatError(f"Data node {node.name!r} has no tensor descriptor")
    return descs[0]


def _tensor_info(name: str, desc: TensorDesc) -> TensorInfo:
    row = dtypes.BY_NAME.get(desc.dtype)
    dims = desc.shape
    ranges = tuple((1, -1) if extent < 0 else (extent, extent) for extent in dims)
    return TensorInfo(
        name=name,
        nbytes=tensor_nbytes(desc),
        format=FORMATS.get(desc.format, FORMATS["ND"]),
        dtype=_UNDEFINED_DTYPE if row is None else row.acl,
        dims=dims,
        dims_v2=dims,
        shape_range=ranges if desc.is_dynamic and dims != (-2,) else (),
    )


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that becomes `path` at the end, or vanishes on any error."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make the rename durable; some file systems cannot, which is no error."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


__all__ = ["OmInfo", "WeightBlob", "write_om"]

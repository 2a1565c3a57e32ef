"""Read an .om file through a memory map: header, partitions, graph, weights.

    with read_om("model.om") as om:
        for model in om.models:
            model.model_def.graph, model.weights, model.inout_info, model.task_info

Opening parses the header and the tables alone (microseconds); a graph is parsed when it is first
asked for; weights are views of the map and are never copied.
"""

from __future__ import annotations

import mmap
import zipfile
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import OmFormatError
from .ge_graph import WeightRef
from .header import HEADER_BYTES, ZIP_MAGIC, OmHeader, parse_header
from .inout_info import InoutInfo, parse_inout_info
from .model_def import ModelDef, parse_model
from .partitions import Partition, PartitionTable, PartitionType, parse_table
from .task_info import TaskInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from .attr_compression import AttrDictionary

_T = TypeVar("_T")


class SubModel:
    """One model of a file: a plain file has one, an unknown-shape file the root and its parts."""

    def __init__(self, om: OmFile, index: int, table: PartitionTable) -> None:
        self._om = om
        self.index = index
        self.table = table

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The parts of this model in file order."""
        return self.table.partitions

    def partition_bytes(self, kind: PartitionType) -> memoryview:
        """Return a view of a partition's bytes; empty when the model has none of that type."""
        part = self.table.find(kind)
        if part is None:
            return memoryview(b"")
        return self._om.view(part.offset, part.nbytes)

    @cached_property
    def model_def(self) -> ModelDef:
        """The graphs and attributes, with plain attribute keys; raises OmFormatError."""
        root = None if self.index == 0 else self._om.root_dictionary
        return self._om.checked(lambda: ModelDef.from_bytes(self._model_def_bytes(), root))

    def model_message(self) -> Any:
        """Return the ModelDef protobuf message with plain attribute keys (for the JSON form)."""
        root = None if self.index == 0 else self._om.root_dictionary
        return self._om.checked(lambda: parse_model(self._model_def_bytes(), root)[0])

    def _model_def_bytes(self) -> memoryview:
        if self.table.find(PartitionType.MODEL_DEF) is None:
            found = ", ".join(part.type_name for part in self.partitions)
            raise OmFormatError(
                f"model {self.index} of the file has no MODEL_DEF partition, only {found}",
                path=self._om.path,
                offset=self.table.offset,
            )
        return self.partition_bytes(PartitionType.MODEL_DEF)

    @property
    def weights(self) -> memoryview:
        """A read-only view of WEIGHTS_DATA; empty when there is none."""
        return self.partition_bytes(PartitionType.WEIGHTS_DATA)

    def weight(self, ref: WeightRef) -> memoryview:
        """Return the bytes of one constant; raises OmFormatError if it is not inside the part."""
        weights = self.weights
        if ref.offset < 0 or ref.nbytes < 0 or ref.offset + ref.nbytes > len(weights):
            raise OmFormatError(
                "a constant lies outside WEIGHTS_DATA",
                path=self._om.path,
                declared=f"{ref.nbytes} bytes at {ref.offset}",
                actual=f"{len(weights)} bytes in all",
            )
        return weights[ref.offset : ref.offset + ref.nbytes]

    @cached_property
    def inout_info(self) -> InoutInfo | None:
        """Inputs, outputs and gears from MODEL_INOUT_INFO; None when the model has none."""
        part = self.table.find(PartitionType.MODEL_INOUT_INFO)
        if part is None:
            return None
        view = self.partition_bytes(PartitionType.MODEL_INOUT_INFO)
        return self._om.checked(lambda: parse_inout_info(view, part.offset))

    @cached_property
    def task_info(self) -> TaskInfo | None:
        """The totals of TASK_INFO; None when the model has none (or HiAI's own, undocumented)."""
        if self.table.find(PartitionType.TASK_INFO) is None or self._om.header.is_hiai:
            return None
        view = self.partition_bytes(PartitionType.TASK_INFO)
        return self._om.checked(lambda: TaskInfo.from_bytes(view))


class OmFile:
    """An open .om file; use read_om(). Views of it stay valid after close()."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self._mmap: mmap.mmap | None = buffer
        self._view = memoryview(buffer)
        self.file_bytes = len(buffer)
        try:
            self.header = parse_header(self._view, self.file_bytes)
            self.models = [SubModel(self, i, table) for i, table in enumerate(self._tables())]
        except OmFormatError as error:
            is_zip = self._view[: len(ZIP_MAGIC)] == ZIP_MAGIC
            self.close()
            error.hint = f"{_zip_entries(path)}. {error.hint}" if is_zip else error.hint
            raise error.with_path(path) from None

    def _tables(self) -> list[PartitionTable]:
        header = self.header
        tables = []
        offset = HEADER_BYTES
        for index in range(header.num_models):
            if offset >= self.file_bytes:
                raise OmFormatError(
                    "the file ends before its last model",
                    offset=offset,
                    declared=f"{header.num_models} models",
                    actual=f"{index} models",
                )
            table = parse_table(
                self._view, offset, wide=header.uses_wide_table, model_type=header.model_type
            )
            tables.append(table)
            offset = table.end
        if offset != self.file_bytes:
            raise OmFormatError(
                "the partitions do not add up to the file",
                offset=offset,
                declared=f"{self.file_bytes - HEADER_BYTES} bytes after the header",
                actual=f"{offset - HEADER_BYTES} bytes in tables and partitions",
            )
        return tables

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Return a read-only view of the file; raises ValueError once it is closed."""
        if self._mmap is None:
            raise ValueError(f"{self.path} is closed")
        return self._view[offset : offset + nbytes]

    def checked(self, parse: Callable[[], _T]) -> _T:
        """Run a parser; its OmFormatError names this file."""
        try:
            return parse()
        except OmFormatError as error:
            if error.path is not None:
                raise
            raise error.with_path(self.path) from None

    @cached_property
    def root_dictionary(self) -> AttrDictionary | None:
        """The root model's attribute dictionary, which its sub-models share."""
        return self.models[0].model_def.dictionary

    @property
    def model_def(self) -> ModelDef:
        """The root model's graphs."""
        return self.models[0].model_def

    @property
    def weights(self) -> memoryview:
        """The root model's WEIGHTS_DATA."""
        return self.models[0].weights

    @property
    def inout_info(self) -> InoutInfo | None:
        """The file's inputs and outputs (the root model has them for all)."""
        return self.models[0].inout_info

    @property
    def task_info(self) -> TaskInfo | None:
        """The root model's task totals."""
        return self.models[0].task_info

    def close(self) -> None:
        """Let go of the map; arrays that still look into it keep it alive. Safe to call twice."""
        buffer, self._mmap = self._mmap, None
        if buffer is None:
            return
        self._view.release()
        try:
            buffer.close()
        except BufferError:
            # Someone holds a view (an array over the weights): the map goes with the last one.
            return

    def __enter__(self) -> OmFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _zip_entries(path: Path) -> str:
    """Say what an OM2 package holds, as far as the archive can be listed."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile) as error:
        return f"Its entries cannot be listed ({error})"
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    return f"It holds {len(names)} entries: {shown}"


def read_om(path: str | Path) -> OmFile:
    """Open an .om file.

    Args:
        path: the file; it must not be changed while it is open.

    Returns:
        The open file, a context manager.

    Raises:
        OmFormatError: the file breaks the format, with the byte offset, declared and actual value.
        OSError: the file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        file.seek(0, 2)
        if file.tell() == 0:
            raise OmFormatError(
                "the file is empty",
                path=path,
                offset=0,
                declared=f"{HEADER_BYTES} bytes of header",
                actual="0 bytes",
            )
        buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return OmFile(path, buffer)


__all__ = ["OmFile", "OmHeader", "SubModel", "read_om"]

"""Partition tables: what parts a model has, and where.

    [table][partition 0][partition 1]...        once a model, back to back, no alignment

New files have 64-bit sizes (8 + 24*n bytes), old ones 32-bit sizes (4 + 12*n bytes). As GE's
loader we walk the partitions by their sizes; the stored offsets are only compared.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from .errors import OmFormatError

_UINT32_MAX = 2**32 - 1
_MAX_PARTITIONS = 8  # CheckPartitionTableNum: {1, 3, 4, 5} plus 0 to 3
_FLOW_MODEL_TYPE = 3
_WIDE_HEAD = struct.Struct("<II")
_WIDE_ROW = struct.Struct("<IIQQ")
_TINY_HEAD = struct.Struct("<I")
_TINY_ROW = struct.Struct("<III")


class PartitionType(IntEnum):
    """ModelPartitionType of GE."""

    MODEL_DEF = 0
    WEIGHTS_DATA = 1
    TASK_INFO = 2
    TBE_KERNELS = 3
    CUST_AICPU_KERNELS = 4
    SO_BINS = 5
    FLOW_MODEL = 6
    FLOW_SUBMODEL = 7
    MODEL_INOUT_INFO = 8
    STATIC_TASK_DESC = 9
    DYNAMIC_TASK_DESC = 10
    TASK_PARAM = 11
    TILING_DATA = 12
    PRE_MODEL_DESC = 20
    PRE_MODEL_SQE = 21
    PRE_KERNEL_ARGS = 22
    PRE_MODEL_DESC_EXTEND = 23
    BUNDLE_MODEL_INFO = 24
    BUNDLE_MODEL_VAR_INFO = 25
    CUSTOM_OPS = 26


# Only these may exceed 4 GiB (kSupportBeyond4GTypes).
_LARGE_TYPES = frozenset(
    {
        PartitionType.WEIGHTS_DATA,
        PartitionType.TBE_KERNELS,
        PartitionType.CUST_AICPU_KERNELS,
    }
)


@dataclass(frozen=True)
class Partition:
    """One part of a file: type number, byte offset from the file's start, size in bytes."""

    type: int
    offset: int
    nbytes: int

    @property
    def type_name(self) -> str:
        """GE's name of the type, or "partition type 99" for a new one."""
        try:
            return PartitionType(self.type).name
        except ValueError:
            return f"partition type {self.type}"


@dataclass(frozen=True)
class PartitionTable:
    """The parts of one model, and where the next model starts."""

    offset: int  # of the table itself, bytes from the file's start
    partitions: tuple[Partition, ...]
    end: int  # bytes from the file's start
    offset_mismatches: tuple[str, ...] = ()  # stored offsets that disagree with the walk

    def find(self, kind: PartitionType) -> Partition | None:
        """Return the first partition of a type, None when there is none."""
        return next((part for part in self.partitions if part.type == kind), None)


def table_bytes(num_partitions: int) -> int:
    """Return the size of a 64-bit table in bytes."""
    return _WIDE_HEAD.size + _WIDE_ROW.size * num_partitions


def check_partition_size(kind: int, nbytes: int, offset: int | None = None) -> None:
    """Raise OmFormatError for a part above 4 GiB of a type that GE does not let grow so far."""
    if nbytes > _UINT32_MAX and kind not in _LARGE_TYPES:
        allowed = ", ".join(sorted(item.name for item in _LARGE_TYPES))
        raise OmFormatError(
            f"partition {Partition(kind, 0, 0).type_name} is larger than 4 GiB; only {allowed} "
            "may be (kSupportBeyond4GTypes of GE)",
            offset=offset,
            declared=f"{nbytes} bytes",
            actual=f"at most {_UINT32_MAX} allowed",
        )


def pack_table(parts: list[tuple[PartitionType, int]]) -> bytes:
    """Return a 64-bit table for (type, size in bytes) in file order."""
    rows = [_WIDE_HEAD.pack(len(parts), 0)]
    offset = 0
    for kind, nbytes in parts:
        check_partition_size(kind, nbytes)
        rows.append(_WIDE_ROW.pack(kind, 0, offset, nbytes))
        offset += nbytes
    return b"".join(rows)


def parse_table(data: memoryview, offset: int, *, wide: bool, model_type: int) -> PartitionTable:
    """Parse the table at a byte offset and lay out its partitions.

    Raises:
        OmFormatError: the table or a partition does not fit in the file, or the count is absurd.
    """
    head = _WIDE_HEAD if wide else _TINY_HEAD
    row = _WIDE_ROW if wide else _TINY_ROW
    if offset + head.size > len(data):
        raise OmFormatError(
            "the file ends before a partition table",
            offset=offset,
            declared=f"{head.size} bytes",
            actual=f"{max(0, len(data) - offset)} bytes left",
        )
    count = head.unpack_from(data, offset)[0]
    first = offset + head.size
    _check_count(count, first, row.size, len(data), model_type)
    cursor = first + row.size * count
    base = cursor
    partitions, mismatches = [], []
    for index in range(count):
        values = row.unpack_from(data, first + index * row.size)
        kind, stored, nbytes = (values[0], values[2], values[3]) if wide else values
        part = Partition(kind, cursor, nbytes)
        check_partition_size(kind, nbytes, first + index * row.size)
        if nbytes > len(data) - cursor:
            raise OmFormatError(
                f"partition {index} ({part.type_name}) does not fit in the file",
                offset=cursor,
                declared=f"{nbytes} bytes",
                actual=f"{len(data) - cursor} bytes left",
            )
        if stored != cursor - base:
            mismatches.append(
                f"partition {index} ({part.type_name}) says offset {stored}, "
                f"its place by sizes is {cursor - base}"
            )
        partitions.append(part)
        cursor += nbytes
    return PartitionTable(offset, tuple(partitions), cursor, tuple(mismatches))


def _check_count(count: int, first: int, row_bytes: int, file_bytes: int, model_type: int) -> None:
    fits = (file_bytes - first) // row_bytes
    if count > fits:
        raise OmFormatError(
            "the partition table does not fit in the file",
            offset=first,
            declared=f"{count} partitions of {row_bytes} bytes",
            actual=f"room for {fits}",
        )
    if count < 1 or (model_type != _FLOW_MODEL_TYPE and count > _MAX_PARTITIONS):
        raise OmFormatError(
            "a model has 1 to 8 partitions (CheckPartitionTableNum of GE)",
            offset=first,
            declared=count,
            actual=f"1 to {_MAX_PARTITIONS} allowed",
        )

"""MODEL_INOUT_INFO: the model's inputs, outputs and gears, readable without the graph.

A sequence of records `u32 type; u32 length; value`. Types 0 and 1 describe tensors, 2 to 4 the
gears of batch size, image size and free dims, 5 the outputs' dynamic shapes as text, 6 the order
of shapes the user gave. Source: base/common/model/model_introduction.cc and tlv/ of GE.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .errors import OmFormatError

_RECORD = struct.Struct("<II")
_BASE_INFO = struct.Struct("<Qii4I")
_U32 = struct.Struct("<I")
_INPUTS, _OUTPUTS, _BATCH, _IMAGE, _DIMS, _OUTPUT_SHAPES, _SHAPE_ORDER = range(7)


@dataclass(frozen=True)
class TensorInfo:
    """One input or output; format and dtype are numbers of GE's C++ (= ACL) enumerations."""

    name: str
    nbytes: int  # 0 for a dynamic shape
    format: int
    dtype: int
    dims: tuple[int, ...]
    dims_v2: tuple[int, ...] = ()  # dims before AIPP, else the same
    shape_range: tuple[tuple[int, int], ...] = ()  # (least, most) of each dim, -1 = no limit


@dataclass(frozen=True)
class InoutInfo:
    """All records of the partition."""

    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    dynamic_batch: tuple[int, ...] = ()
    dynamic_image: tuple[tuple[int, ...], ...] = ()
    dynamic_dims: tuple[tuple[int, ...], ...] = ()
    dynamic_output_shapes: tuple[str, ...] = ()
    designated_shape_order: tuple[str, ...] = ()
    unknown: tuple[tuple[int, bytes], ...] = ()  # records of a type we do not know


def pack_inout_info(info: InoutInfo) -> bytes:
    """Serialize; inputs and outputs always, the other records where they say something."""
    records = [(_INPUTS, _pack_tensors(info.inputs)), (_OUTPUTS, _pack_tensors(info.outputs))]
    if info.dynamic_batch:
        values = struct.pack(f"<{len(info.dynamic_batch)}q", *info.dynamic_batch)
        records.append((_BATCH, _U32.pack(len(info.dynamic_batch)) + values))
    if info.dynamic_image:
        records.append((_IMAGE, _pack_lists(info.dynamic_image)))
    if info.dynamic_dims:
        records.append((_DIMS, _pack_lists(info.dynamic_dims)))
    if info.dynamic_output_shapes:
        records.append((_OUTPUT_SHAPES, _pack_strings(info.dynamic_output_shapes)))
    if info.designated_shape_order:
        records.append((_SHAPE_ORDER, _pack_strings(info.designated_shape_order)))
    records.extend(info.unknown)
    return b"".join(_RECORD.pack(kind, len(value)) + value for kind, value in records)


def _pack_tensors(tensors: Sequence[TensorInfo]) -> bytes:
    parts = [_U32.pack(len(tensors))]
    for info in tensors:
        name = info.name.encode()
        dims = struct.pack(f"<{len(info.dims)}q", *info.dims)
        dims_v2 = struct.pack(f"<{len(info.dims_v2)}q", *info.dims_v2)
        flat = [value for pair in info.shape_range for value in pair]
        ranges = struct.pack(f"<{len(flat)}q", *flat)
        sizes = (len(name), len(dims), len(dims_v2), len(ranges))
        parts.append(_BASE_INFO.pack(info.nbytes, info.format, info.dtype, *sizes))
        parts.extend((name, dims, dims_v2, ranges))
    return b"".join(parts)


def _pack_lists(rows: Sequence[Sequence[int]]) -> bytes:
    """Pack gears: their count, the number of values (not bytes) of each, then all values."""
    sizes = struct.pack(f"<{len(rows)}I", *(len(row) for row in rows))
    values = b"".join(struct.pack(f"<{len(row)}q", *row) for row in rows)
    return _U32.pack(len(rows)) + sizes + values


def _pack_strings(texts: Sequence[str]) -> bytes:
    encoded = [text.encode() for text in texts]
    sizes = struct.pack(f"<{len(encoded)}I", *(len(text) for text in encoded))
    return _U32.pack(len(encoded)) + sizes + b"".join(encoded)


class _Cursor:
    """Reads a value from left to right; every step is checked against its end."""

    def __init__(self, data: memoryview, offset: int, end: int) -> None:
        self.data = data
        self.offset = offset
        self.end = end

    def take(self, nbytes: int, what: str) -> memoryview:
        if nbytes > self.end - self.offset:
            raise OmFormatError(
                f"MODEL_INOUT_INFO: {what} does not fit in its record",
                offset=self.offset,
                declared=f"{nbytes} bytes",
                actual=f"{self.end - self.offset} bytes left",
            )
        view = self.data[self.offset : self.offset + nbytes]
        self.offset += nbytes
        return view

    def unpack(self, layout: struct.Struct, what: str) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size, what))

    def count(self, least_bytes: int, what: str) -> int:
        (count,) = self.unpack(_U32, f"the number of {what}")
        if count * least_bytes > self.end - self.offset:
            raise OmFormatError(
                f"MODEL_INOUT_INFO: the number of {what} is absurd",
                offset=self.offset,
                declared=f"{count} of at least {least_bytes} bytes",
                actual=f"{self.end - self.offset} bytes left",
            )
        return count

    def int64s(self, nbytes: int, what: str) -> tuple[int, ...]:
        if nbytes % 8:
            raise OmFormatError(
                f"MODEL_INOUT_INFO: {what} is no whole number of int64",
                offset=self.offset,
                declared=f"{nbytes} bytes",
                actual="a multiple of 8",
            )
        view = self.take(nbytes, what)
        return struct.unpack(f"<{nbytes // 8}q", view)


def parse_inout_info(data: memoryview, file_offset: int = 0) -> InoutInfo:
    """Parse the partition; raises OmFormatError with the byte offset in the file."""
    try:
        return _parse(data)
    except OmFormatError as error:
        place = file_offset + (error.offset or 0)
        raise OmFormatError(
            error.problem, offset=place, declared=error.declared, actual=error.actual
        ) from None


def _parse(data: memoryview) -> InoutInfo:
    info = InoutInfo()
    whole = _Cursor(data, 0, len(data))
    while whole.offset < whole.end:
        kind, nbytes = whole.unpack(_RECORD, "a record's head")
        start = whole.offset
        value = whole.take(nbytes, f"record type {kind}")
        cursor = _Cursor(data, start, start + nbytes)
        if kind == _INPUTS:
            info = replace(info, inputs=tuple(_read_tensors(cursor)))
        elif kind == _OUTPUTS:
            info = replace(info, outputs=tuple(_read_tensors(cursor)))
        elif kind == _BATCH:
            count = cursor.count(8, "gears")
            info = replace(info, dynamic_batch=cursor.int64s(8 * count, "the gears"))
        elif kind == _IMAGE:
            info = replace(info, dynamic_image=tuple(_read_lists(cursor)))
        elif kind == _DIMS:
            info = replace(info, dynamic_dims=tuple(_read_lists(cursor)))
        elif kind == _OUTPUT_SHAPES:
            info = replace(info, dynamic_output_shapes=tuple(_read_strings(cursor)))
        elif kind == _SHAPE_ORDER:
            info = replace(info, designated_shape_order=tuple(_read_strings(cursor)))
        else:
            info = replace(info, unknown=(*info.unknown, (kind, bytes(value))))
    return info


def _read_tensors(cursor: _Cursor) -> Iterator[TensorInfo]:
    for _ in range(cursor.count(_BASE_INFO.size, "tensors")):
        size, fmt, dtype, *lengths = cursor.unpack(_BASE_INFO, "a tensor's base information")
        name = bytes(cursor.take(lengths[0], "a tensor's name")).decode("utf-8", "replace")
        dims = cursor.int64s(lengths[1], f"the dims of {name!r}")
        dims_v2 = cursor.int64s(lengths[2], f"the second dims of {name!r}")
        flat = cursor.int64s(lengths[3], f"the shape range of {name!r}")
        ranges = tuple(zip(flat[::2], flat[1::2]))
        yield TensorInfo(name, size, fmt, dtype, dims, dims_v2, ranges)


def _read_lists(cursor: _Cursor) -> Iterator[tuple[int, ...]]:
    sizes = [cursor.unpack(_U32, "a gear's length")[0] for _ in range(cursor.count(4, "gears"))]
    for size in sizes:
        yield cursor.int64s(8 * size, "a gear")


def _read_strings(cursor: _Cursor) -> Iterator[str]:
    sizes = [cursor.unpack(_U32, "a text's length")[0] for _ in range(cursor.count(4, "texts"))]
    for size in sizes:
        yield bytes(cursor.take(size, "a text")).decode("utf-8", "replace")

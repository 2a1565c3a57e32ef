"""One safetensors file: its header, checked against the file before any tensor is read.

Format (safetensors 0.4): 8 bytes little-endian header length N, N bytes of JSON, then the data;
`data_offsets` are relative to the data, cover it without a hole and do not overlap. The header
is at most 100 MB. Everything is checked here because a short file that is mapped blindly reads
as zeros.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from ..config_keys import shown
from ..errors import WeightError
from .mapped_file import MappedFile
from .source import TensorInfo

_MAX_HEADER_BYTES = 100_000_000

# name -> (bytes of an element, numpy dtype or None where numpy has no such type)
_DTYPES: Mapping[str, tuple[int, np.dtype | None]] = MappingProxyType(
    {
        "F64": (8, np.dtype("<f8")),
        "F32": (4, np.dtype("<f4")),
        "F16": (2, np.dtype("<f2")),
        "BF16": (2, np.dtype(ml_dtypes.bfloat16)),
        "I64": (8, np.dtype("<i8")),
        "I32": (4, np.dtype("<i4")),
        "I16": (2, np.dtype("<i2")),
        "I8": (1, np.dtype("i1")),
        "U64": (8, np.dtype("<u8")),
        "U32": (4, np.dtype("<u4")),
        "U16": (2, np.dtype("<u2")),
        "U8": (1, np.dtype("u1")),
        "BOOL": (1, np.dtype(np.bool_)),
        "F8_E4M3": (1, None),
        "F8_E5M2": (1, None),
        "F8_E8M0": (1, None),
    }
)
_FLOATS = ("F64", "F32", "F16", "BF16")


class SafetensorsFile:
    """An opened file; raises WeightError on construction for anything inconsistent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            header, self._data_start = self._header()
            self._starts: dict[str, int] = {}
            self.infos: dict[str, TensorInfo] = {}
            spans = [self._entry(name, entry) for name, entry in header.items()]
            self._check_cover(spans)
        except WeightError:
            self._file.close()
            raise

    def read(self, name: str) -> np.ndarray:
        """Return one tensor as a view of the mapped file."""
        info = self.infos[name]
        dtype = _DTYPES[info.stored_as][1]
        if dtype is None:
            raise WeightError(f"{self.path}: tensor {name} is {info.stored_as}, not readable here")
        return self._file.array(dtype, info.shape, self._starts[name])

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _header(self) -> tuple[dict[str, Any], int]:
        size = self._file.nbytes
        if self._file.is_pointer_file():
            raise WeightError(
                f"{self.path}: is a Git LFS pointer of {size} bytes, not the weights; "
                "run `git lfs pull` in the model folder"
            )
        length = int.from_bytes(self._file.bytes(0, 8), "little")
        limit = min(_MAX_HEADER_BYTES, size - 8)
        if not 2 <= length <= limit:
            raise WeightError(
                f"{self.path}: the first 8 bytes declare a header of {length} bytes; allowed is "
                f"2 to {max(limit, 2)} for this file of {size} bytes. It is damaged or no "
                "safetensors file: fetch it again"
            )
        try:
            header = json.loads(
                self._file.bytes(8, 8 + length).decode("utf-8"), object_pairs_hook=_no_twins
            )
        except (ValueError, RecursionError) as problem:
            raise WeightError(f"{self.path}: the header is not JSON ({problem})") from problem
        if not isinstance(header, dict):
            raise WeightError(f"{self.path}: the header is not a JSON object")
        header.pop("__metadata__", None)
        return header, 8 + length

    def _entry(self, name: str, entry: Any) -> tuple[int, int, str]:
        where = f"{self.path}: tensor {name}"
        if not isinstance(entry, dict):
            raise WeightError(f"{where}: the header entry is {shown(entry)}, not an object")
        dtype: Any = entry.get("dtype")
        shape: Any = entry.get("shape")
        offsets: Any = entry.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise WeightError(f"{where}: dtype is {shown(dtype)}; known are {', '.join(_DTYPES)}")
        if not _is_sizes(shape):
            raise WeightError(f"{where}: shape is {shown(shape)}; allowed are integers from 0 on")
        if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise WeightError(f"{where}: data_offsets is {shown(offsets)}; allowed is [begin, end]")
        begin, end = offsets
        itemsize, numpy_dtype = _DTYPES[dtype]
        nbytes = math.prod(shape) * itemsize
        if end - begin != nbytes:
            raise WeightError(
                f"{where}: data_offsets {offsets} span {end - begin} bytes, but shape {shape} of "
                f"{dtype} needs {nbytes}"
            )
        needed = self._data_start + end
        if needed > self._file.nbytes:
            raise WeightError(
                f"{where}: ends at byte {needed}, but the file has {self._file.nbytes} bytes "
                f"({needed - self._file.nbytes} missing); the download is incomplete: fetch it "
                "again"
            )
        self._starts[name] = self._data_start + begin
        self.infos[name] = TensorInfo(
            shape=tuple(shape),
            dtype=numpy_dtype.name if numpy_dtype is not None else dtype,
            path=self.path,
            stored_as=dtype,
            readable=dtype in _FLOATS,
        )
        return begin, end, name

    def _check_cover(self, spans: list[tuple[int, int, str]]) -> None:
        position, previous = 0, "the header"
        for begin, end, name in sorted(spans):
            if begin != position:
                what = "overlaps" if begin < position else "leaves a hole after"
                raise WeightError(
                    f"{self.path}: tensor {name} starts at data offset {begin} and {what} "
                    f"{previous}, which ends at {position}; the header is damaged"
                )
            position, previous = end, f"tensor {name}"
        declared = self._data_start + position
        if declared != self._file.nbytes:
            raise WeightError(
                f"{self.path}: the header describes {declared} bytes, but the file has "
                f"{self._file.nbytes}; header and data do not belong together"
            )


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in value
    )


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twin = next(n for n in names if names.count(n) > 1)
        raise ValueError(f"name {twin!r} appears twice")
    return found

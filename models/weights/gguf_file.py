"""One GGUF file: metadata and tensor table, checked against the file before any read.

Format: GGUF version 2 and 3 (ggml documentation, gguf.md), little-endian. Read here rather than
by `gguf.GGUFReader` because that reader takes 8 s for a vocabulary of 128 000 tokens, and tells of
a truncated file neither tensor nor size. The `gguf` package dequantises (`gguf_reader`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ..errors import WeightError
from .mapped_file import MappedFile

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMS = 4
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Mapping[int, str] = MappingProxyType(
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
)


@dataclass(frozen=True)
class GgufTensor:
    """One row of the tensor table."""

    name: str
    shape: tuple[int, ...]  # row-major: the reverse of the file's order
    type_id: int  # ggml type number
    offset: int  # bytes from the start of the file


class GgufFile:
    """An opened file: `.metadata`, `.tensors`, `.array(...)`; raises WeightError if damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        self._buffer = self._file.buffer()
        self._position = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            num_tensors, num_keys = self._counts()
            for _ in range(num_keys):
                self._read_key()
            self._read_tensors(num_tensors)
        except WeightError:
            self.close()
            raise

    @property
    def nbytes(self) -> int:
        """Return the size of the file in bytes."""
        return self._file.nbytes

    def array(self, dtype: np.dtype, shape: tuple[int, ...], start: int) -> np.ndarray:
        """Return a read-only view of the file from byte `start` on."""
        return self._file.array(dtype, shape, start)

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _counts(self) -> tuple[int, int]:
        if self._file.is_pointer_file():
            raise WeightError(
                f"{self.path}: is a Git LFS pointer, not the model; run `git lfs pull`"
            )
        if self._file.bytes(0, 4) != _MAGIC:
            raise WeightError(f"{self.path}: starts with {self._file.bytes(0, 4)!r}, not with GGUF")
        self._position = 4
        version = self._scalar("I", "the version")
        if version not in _VERSIONS:
            big = " (it is big-endian)" if version & 0xFFFF == 0 else ""
            raise WeightError(f"{self.path}: GGUF version is {version}{big}; allowed are 2 and 3")
        return self._scalar("Q", "the tensor count"), self._scalar("Q", "the key count")

    def _take(self, nbytes: int, what: str) -> int:
        start = self._position
        if nbytes > self._file.nbytes - start:
            raise WeightError(
                f"{self.path}: {what} needs {nbytes} bytes at byte {start}, but the file has "
                f"{self._file.nbytes} bytes; it is truncated or damaged: fetch it again"
            )
        self._position = start + nbytes
        return start

    def _scalar(self, code: str, what: str) -> Any:
        start = self._take(struct.calcsize("<" + code), what)
        return struct.unpack_from("<" + code, self._buffer, start)[0]

    def _string(self, what: str) -> str:
        length = self._scalar("Q", what)
        start = self._take(length, what)
        try:
            return self._file.bytes(start, start + length).decode("utf-8")
        except UnicodeDecodeError as problem:
            raise WeightError(f"{self.path}: {what} is not UTF-8 ({problem})") from problem

    def _read_key(self) -> None:
        key = self._string("the name of a metadata key")
        if key in self.metadata:
            raise WeightError(f"{self.path}: metadata key {key} appears twice")
        self.metadata[key] = self._value(self._scalar("I", f"metadata key {key}"), key)

    def _value(self, kind: int, key: str) -> Any:
        what = f"metadata key {key}"
        if kind == _STRING:
            return self._string(what)
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind], what)
        if kind != _ARRAY:
            raise WeightError(f"{self.path}: {what} has type {kind}; allowed are 0 to 12")
        item = self._scalar("I", what)
        count = self._scalar("Q", what)
        if item == _STRING:
            # Each string takes 8 bytes at least: no list is begun that cannot be in the file.
            self._position = self._take(8 * count, what)
            return [self._string(what) for _ in range(count)]
        if item not in _SCALARS:
            raise WeightError(f"{self.path}: {what} is an array of type {item}; not supported")
        dtype = np.dtype("?" if item == _BOOL else _SCALARS[item]).newbyteorder("<")
        start = self._take(count * dtype.itemsize, what)
        return self._file.array(dtype, (count,), start).tolist()

    def _read_tensors(self, num_tensors: int) -> None:
        rows = []
        for _ in range(num_tensors):
            name = self._string("the name of a tensor")
            what = f"tensor {name}"
            num_dims = self._scalar("I", what)
            if num_dims > _MAX_DIMS:
                raise WeightError(f"{self.path}: {what} has {num_dims} dimensions; allowed are 4")
            dims = tuple(self._scalar("Q", what) for _ in range(num_dims))
            rows.append((name, dims[::-1], self._scalar("I", what), self._scalar("Q", what)))
        start = self._data_start()
        for name, shape, type_id, offset in rows:
            if name in self.tensors:
                raise WeightError(f"{self.path}: tensor {name} appears twice")
            self.tensors[name] = GgufTensor(name, shape, type_id, start + offset)

    def _data_start(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise WeightError(
                f"{self.path}: general.alignment is {alignment}; allowed is a power of two"
            )
        return -(-self._position // alignment) * alignment

    def check_tensor(self, tensor: GgufTensor, sizes: tuple[int, int]) -> int:
        """Return the bytes of a tensor whose type packs (elements, bytes) a block.

        Raises WeightError where it is not made of whole blocks, or ends outside the file.
        """
        per_block, block_bytes = sizes
        if tensor.shape and tensor.shape[-1] % per_block:
            raise WeightError(
                f"{self.path}: tensor {tensor.name} has rows of {tensor.shape[-1]} elements; its "
                f"type packs {per_block} in a block"
            )
        nbytes = math.prod(tensor.shape) // per_block * block_bytes
        if tensor.offset + nbytes > self._file.nbytes:
            missing = tensor.offset + nbytes - self._file.nbytes
            raise WeightError(
                f"{self.path}: tensor {tensor.name} ends at byte {tensor.offset + nbytes}, but the "
                f"file has {self._file.nbytes} bytes ({missing} missing); it is truncated: fetch "
                "it again"
            )
        return nbytes

"""`acl.util` of the host device: pointers and numpy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dtypes import BY_NAME


class HostUtil:
    """pyACL's helpers. Whoever asks for a pointer must keep the object alive."""

    def __init__(self) -> None:
        self._by_number: dict[int, np.dtype[Any]] = {
            int(row.numpy.num): row.numpy for row in BY_NAME.values()
        }

    def bytes_to_ptr(self, data: bytes, /) -> int:
        """Return the address of a bytes object's content."""
        address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
        return address or 0

    def ptr_to_bytes(self, ptr: int, size: int, /) -> bytes:
        """Copy `size` bytes."""
        return ctypes.string_at(ptr, size)

    def numpy_to_ptr(self, array: NDArray[Any], /) -> int:
        """Return the address of a C-contiguous array."""
        return int(array.ctypes.data)

    def numpy_contiguous_to_ptr(self, array: NDArray[Any], /) -> tuple[int, NDArray[Any]]:
        """Return (address, the contiguous array that must stay alive)."""
        contiguous = np.ascontiguousarray(array)
        return int(contiguous.ctypes.data), contiguous

    def ptr_to_numpy(self, ptr: int, shape: tuple[int, ...], number: int, /) -> NDArray[Any]:
        """Return an array over foreign memory; `number` is numpy's type number."""
        dtype = self._by_number[number]
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = (ctypes.c_uint8 * nbytes).from_address(ptr)
        flat: NDArray[Any] = np.frombuffer(memoryview(raw), np.uint8).view(dtype)
        return flat.reshape(shape)

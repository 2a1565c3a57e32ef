"""A read-only memory-mapped file."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

import numpy as np

from ..errors import WeightError


class MappedFile:
    """Map a file read-only; raises WeightError where it is missing, empty or not a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as stream:
                self.nbytes = stream.seek(0, 2)
                if self.nbytes == 0:
                    raise WeightError(f"{path}: the file is empty; fetch it again")
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as problem:
            raise WeightError(f"{path}: cannot be read ({problem.strerror})") from problem

    def bytes(self, start: int, stop: int) -> bytes:
        """Return a copy of bytes [start, stop), which must lie inside the file."""
        return self._map[start:stop]

    def buffer(self) -> mmap.mmap:
        """Return the map itself, for `struct.unpack_from`."""
        return self._map

    def array(self, dtype: np.dtype, shape: tuple[int, ...], start: int) -> np.ndarray:
        """Return a read-only view of the bytes from `start` on."""
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self._map, dtype, count, start).reshape(shape)

    def is_pointer_file(self) -> bool:
        """Tell whether this is a Git LFS pointer in place of the data."""
        return self._map[:40].startswith(b"version https://git-lfs")

    def close(self) -> None:
        """Unmap, unless arrays still look at the pages: then the last of them does."""
        with contextlib.suppress(BufferError):
            self._map.close()

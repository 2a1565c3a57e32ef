"""What one execution computed, copied from the device only as far as somebody asks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .acl.constants import MemcpyKind
from .device import Device
from .om_bindings import BoundOutput


class StepOutput:
    """The result of the newest execution; valid until the next launch.

    `num_rows` is R, the rows of logits. Greedy rows need argmax() alone; logits(rows) moves whole
    rows of V numbers and only those asked for.
    """

    def __init__(self, device: Device, logits: BoundOutput | None, vocab_size: int) -> None:
        self.num_rows = 0
        self._device = device
        self._logits = logits
        self._vocab_size = vocab_size
        self._logits_pointer = 0
        self._argmax: NDArray[np.int32] | None = None
        self._host: NDArray[np.uint8] | None = None

    def attach(self, logits_pointer: int, argmax: NDArray[np.int32] | None) -> None:
        """Tell where logits lie on the device and argmax (pinned) on the host."""
        self._logits_pointer = logits_pointer
        self._argmax = argmax

    def argmax(self) -> NDArray[np.int32] | None:
        """Return the most probable token of each row, int32 [R], or None if the model has none."""
        return None if self._argmax is None else self._argmax[: self.num_rows].copy()

    def logits(self, rows: ArrayLike | None = None) -> NDArray[np.float32]:
        """Return rows of logits, float32 [n, V], all rows for None; a view if they are float32.

        Raises IndexError for a row outside [0, R), ValueError if the model has no logits.
        """
        if self._logits is None:
            raise ValueError("the model has no output of role 'logits'")
        wanted = self._checked(rows)
        dtype = self._logits.dtype
        row_bytes = self._vocab_size * dtype.itemsize
        host = self._room(wanted.size * row_bytes)
        address = int(host.ctypes.data)
        # One copy a run of neighbouring rows.
        breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
        for start, stop in zip((0, *breaks.tolist()), (*breaks.tolist(), wanted.size)):
            if start < stop:
                self._device.copy(
                    address + start * row_bytes,
                    self._logits_pointer + int(wanted[start]) * row_bytes,
                    (stop - start) * row_bytes,
                    MemcpyKind.DEVICE_TO_HOST,
                )
        values: NDArray[Any] = host[: wanted.size * row_bytes].view(dtype.numpy)
        return values.reshape(wanted.size, self._vocab_size).astype(np.float32, copy=False)

    def close(self) -> None:
        """Free the host copy; arrays that logits() returned die with it."""
        host, self._host = self._host, None
        if host is not None:
            self._device.free_host(host)

    def _checked(self, rows: ArrayLike | None) -> NDArray[np.int64]:
        if rows is None:
            return np.arange(self.num_rows, dtype=np.int64)
        wanted = np.asarray(rows, np.int64).reshape(-1)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < self.num_rows):
            raise IndexError(f"rows {wanted.tolist()} are not all in [0, {self.num_rows})")
        return wanted

    def _room(self, nbytes: int) -> NDArray[np.uint8]:
        # Pinned, made when the first request samples, doubled until the largest step fits.
        host = self._host
        if host is None or host.nbytes < nbytes:
            size = max(nbytes, 1 if host is None else 2 * host.nbytes)
            if host is not None:
                self._device.free_host(host)
            host = self._host = self._device.malloc_host(size)
        return host

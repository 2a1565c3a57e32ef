"""One device: who starts ACL, owns a context and a stream, and frees everything once.

Every method makes the device's context current on the calling thread first, so any thread may
call; but one thread at a time, as an engine does. Order of the end: models, device memory, pinned
memory, stream, context, device, ACL.

No wait is without a limit. A device that did not finish in time is `lost`: what runs there may use
its memory for ever, so close() waits a little longer and then leaves everything as it is, for the
process to end.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .acl.constants import MallocPolicy, MemAttr, MemcpyKind
from .acl.error_table import RT_STREAM_SYNC_TIMEOUT
from .acl.errors import AclError, check
from .acl.process import STARTS
from .acl.protocol import Acl
from .number_text import size_text
from .visible_devices import explain_device

LOG = logging.getLogger(__name__)

WAIT_LIMIT_S = 600.0  # of any wait, unless told otherwise: longer than any step should take
_CLOSE_TIMEOUT_S = 60.0
_LOST_TIMEOUT_S = 5.0  # that a lost device is given to end what runs
_MOST_MS = 2**31 - 1  # ACL's time limits are int32 milliseconds


class DeviceClosedError(RuntimeError):
    """A device was used after close()."""


class Device:
    """A context and a stream on one device, and the memory allocated through it."""

    def __init__(self, acl: Acl, device_id: int = 0, wait_limit_s: float = WAIT_LIMIT_S) -> None:
        """Start ACL if nobody did and open device `device_id`; raises AclError.

        wait_limit_s: seconds that a wait may take when it is given no limit of its own.
        """
        self.acl = acl
        self.device_id = device_id
        self.wait_limit_s = wait_limit_s
        self.lost = False  # a wait took too long, or the device reported that it is damaged
        self.context = 0
        self.stream = 0
        self._sizes: dict[int, int] = {}  # device pointer -> bytes
        self._pinned: dict[int, int] = {}
        self._before_close: list[Callable[[], None]] = []
        self._undo: list[tuple[str, Callable[[], int]]] = []  # (call, how to undo)
        self._lock = threading.RLock()
        self._closed = False
        STARTS.acquire(acl)
        try:
            self._open(acl, device_id)
        except BaseException:
            self.close()
            raise

    def _open(self, acl: Acl, device_id: int) -> None:
        rt = acl.rt
        code = rt.set_device(device_id)
        if code:
            detail = acl.get_recent_err_msg() or ""  # the next call may clear it
            count, _ = rt.get_device_count()
            raise AclError("rt.set_device", code, detail, explain_device(device_id, count))
        self._undo.append(("rt.reset_device", lambda: rt.reset_device(device_id)))
        self.context, code = rt.create_context(device_id)
        check(acl, "rt.create_context", code)
        self._undo.append(("rt.destroy_context", lambda: rt.destroy_context(self.context)))
        self.stream, code = rt.create_stream()
        check(acl, "rt.create_stream", code)
        self._undo.append(("rt.destroy_stream", lambda: rt.destroy_stream(self.stream)))

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def enter(self) -> None:
        """Make the context current on the calling thread; everything of ACL starts with this."""
        if self._closed:
            raise DeviceClosedError(f"device {self.device_id} is closed")
        code = self.acl.rt.set_context(self.context)
        if code:
            check(self.acl, "rt.set_context", code)

    @property
    def soc_name(self) -> str | None:
        """Name of the chip such as "Ascend910B3"; None where there is none."""
        return self.acl.get_soc_name()

    @property
    def allocated_bytes(self) -> int:
        """Device memory allocated through this object and not freed."""
        return sum(self._sizes.values())

    def before_close(self, call: Callable[[], None]) -> None:
        """Have `call` run, newest first, when the device closes: models unload themselves."""
        self._before_close.append(call)

    def forget(self, call: Callable[[], None]) -> None:
        """Take back before_close."""
        if call in self._before_close:
            self._before_close.remove(call)

    # -- memory

    def memory_info(self) -> tuple[int, int] | None:
        """Return (free, total) bytes of device memory, HBM or DDR; None where it does not say."""
        self.enter()
        for attr in (MemAttr.HBM, MemAttr.DDR):
            free, total, code = self.acl.rt.get_mem_info(int(attr))
            if code == 0 and total:
                return free, total
        return None

    def malloc(self, nbytes: int) -> int:
        """Return a pointer to device memory with any content; raises AclError naming what is free.

        Starts are multiples of 64 bytes. Freed by free() or close().
        """
        self.enter()
        pointer, code = self.acl.rt.malloc(nbytes, int(MallocPolicy.HUGE_FIRST))
        if code:
            raise self._no_memory("rt.malloc", nbytes, code)
        self._sizes[pointer] = nbytes
        return pointer

    def free(self, pointer: int) -> None:
        """Free device memory; the stream must be synchronised. A foreign pointer is a KeyError."""
        if pointer not in self._sizes:
            raise KeyError(f"{pointer:#x} was not allocated by this device, or was freed")
        self.enter()
        check(self.acl, "rt.free", self.acl.rt.free(pointer))
        del self._sizes[pointer]

    def malloc_host(self, nbytes: int) -> NDArray[np.uint8]:
        """Return pinned host memory as a uint8 array [nbytes]; it dies with the device."""
        self.enter()
        pointer, code = self.acl.rt.malloc_host(nbytes)
        check(self.acl, "rt.malloc_host", code)
        self._pinned[pointer] = nbytes
        raw = (ctypes.c_uint8 * nbytes).from_address(pointer)
        return np.frombuffer(memoryview(raw).cast("B"), np.uint8)

    def free_host(self, array: NDArray[np.uint8]) -> None:
        """Free what malloc_host returned; no view of it may be used any more."""
        pointer = int(array.ctypes.data)
        if pointer not in self._pinned:
            raise KeyError(f"{pointer:#x} was not allocated by malloc_host, or was freed")
        self.enter()
        check(self.acl, "rt.free_host", self.acl.rt.free_host(pointer))
        del self._pinned[pointer]

    def memset(self, pointer: int, nbytes: int, value: int) -> None:
        """Fill device memory with a byte; returns when done, waits for no stream."""
        self.enter()
        check(self.acl, "rt.memset", self.acl.rt.memset(pointer, nbytes, value, nbytes))

    def copy(self, dst: int, src: int, nbytes: int, kind: MemcpyKind) -> None:
        """Copy now; waits for no stream."""
        self.enter()
        code = self.acl.rt.memcpy(dst, nbytes, src, nbytes, int(kind))
        if code:
            check(self.acl, "rt.memcpy", code)

    def copy_async(self, dst: int, src: int, nbytes: int, kind: MemcpyKind) -> None:
        """Queue a copy on the stream; both sides must live until synchronize()."""
        self.enter()
        code = self.acl.rt.memcpy_async(dst, nbytes, src, nbytes, int(kind), self.stream)
        if code:
            check(self.acl, "rt.memcpy_async", code)

    def copy_each_async(
        self, dst: Sequence[int], src: Sequence[int], nbytes: Sequence[int], kind: MemcpyKind
    ) -> None:
        """Queue several copies on the stream; all sides must live until synchronize()."""
        self.enter()
        queue, stream, number = self.acl.rt.memcpy_async, self.stream, int(kind)
        for to, from_, size in zip(dst, src, nbytes):
            code = queue(to, size, from_, size, number, stream)
            if code:
                check(self.acl, "rt.memcpy_async", code)

    def write(self, dst: int, array: NDArray[Any]) -> None:
        """Copy a C-contiguous array to the device now."""
        _contiguous(array)
        self.copy(dst, int(array.ctypes.data), array.nbytes, MemcpyKind.HOST_TO_DEVICE)

    def read(self, array: NDArray[Any], src: int) -> None:
        """Fill a C-contiguous array from the device now; waits for no stream."""
        _contiguous(array)
        self.copy(int(array.ctypes.data), src, array.nbytes, MemcpyKind.DEVICE_TO_HOST)

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Wait for the stream without the GIL; raises AclError 507046 after `timeout_s` seconds.

        None takes wait_limit_s. Failures of what ran on the stream since the last time are raised
        here.
        """
        self.enter()
        code = self._wait(self.wait_limit_s if timeout_s is None else timeout_s)
        if code:
            error = AclError("rt.synchronize_stream", code, self.acl.get_recent_err_msg() or "")
            self.lost |= error.device_lost
            raise error

    def settle(self) -> bool:
        """Wait until nothing is queued any more, whatever became of it; False if it takes too long.

        For a caller that gives memory back or writes it again: a failed run was reported already.
        """
        if not self.stream:
            return True
        if self.lost:
            abort = getattr(self.acl.rt, "stream_abort", None)  # newer CANN
            if abort is not None:
                abort(self.stream)
        code = self._wait(_LOST_TIMEOUT_S if self.lost else _CLOSE_TIMEOUT_S)
        if code:
            error = AclError("rt.synchronize_stream", code, self.acl.get_recent_err_msg() or "")
            self.lost |= error.device_lost
            LOG.warning("%s", error)
        return code != RT_STREAM_SYNC_TIMEOUT

    # -- the end

    def close(self) -> None:
        """Free everything, from any thread; a second call does nothing.

        All steps are tried; the first that failed is raised after the last, or logged if the device
        is lost. A device that still computes after the limit keeps all it has, which is logged.
        """
        with self._lock:
            if self._closed:
                return
            errors: list[Exception] = []
            if self.context and self.acl.rt.set_context(self.context) == 0:
                if not self.settle():
                    self._abandon()
                    return
                while self._before_close:
                    self._attempt(self._before_close.pop(), errors)
                self._free_all(errors)
            self._closed = True
            while self._undo:
                call, undo = self._undo.pop()
                self._try(call, undo(), errors)
            self._attempt(lambda: STARTS.release(self.acl), errors)
        # Of a lost device the loss was reported: what comes after it says nothing new.
        first = [] if self.lost else errors[:1]
        for other in errors[len(first) :]:
            LOG.error("while closing device %d: %s", self.device_id, other)
        if first:
            raise first[0]

    def _abandon(self) -> None:
        # What still runs may write anywhere it was given; freed memory would be somebody else's.
        self._closed = True
        LOG.error(
            "device %d still computes: its model, stream and %d bytes of memory are left as they "
            "are; end this process before the card is used again",
            self.device_id,
            self.allocated_bytes,
        )

    def _wait(self, timeout_s: float) -> int:
        rt = self.acl.rt
        # Older CANN has no form with a time limit: it then waits as long as it takes.
        if not hasattr(rt, "synchronize_stream_with_timeout"):
            return rt.synchronize_stream(self.stream)
        milliseconds = min(timeout_s * 1000, _MOST_MS)
        return rt.synchronize_stream_with_timeout(self.stream, max(1, round(milliseconds)))

    def _free_all(self, errors: list[Exception]) -> None:
        rt = self.acl.rt
        while self._sizes:
            self._try("rt.free", rt.free(self._sizes.popitem()[0]), errors)
        while self._pinned:
            self._try("rt.free_host", rt.free_host(self._pinned.popitem()[0]), errors)

    def _try(self, call: str, code: int, errors: list[Exception]) -> None:
        self._attempt(lambda: check(self.acl, call, code), errors)

    def _attempt(self, call: Callable[[], None], errors: list[Exception]) -> None:
        try:
            call()
        except Exception as error:
            errors.append(error)

    def _no_memory(self, call: str, nbytes: int, code: int) -> AclError:
        detail = self.acl.get_recent_err_msg() or ""
        memory = self.memory_info()
        known = "" if memory is None else "{} of {} are free, ".format(*map(size_text, memory))
        return AclError(
            call,
            code,
            detail,
            f"{size_text(nbytes)} were wanted; {known}{size_text(self.allocated_bytes)} are this "
            "engine's. Lower the number of pages or the largest batch, or close other "
            "users of the device.",
        )


def _contiguous(array: NDArray[Any]) -> None:
    if not array.flags.c_contiguous:
        raise ValueError(f"array {array.shape} is not C-contiguous: copy it first")

"""Device and pinned memory of the host device.

Addresses are real ones, so that a block can be seen as a numpy array. Every block starts at a
multiple of 64 bytes and is filled with 0xFF: NaN as float32, float16 and bfloat16, -1 as int.
Who forgets to clear its pages, or reads what nobody wrote, gets NaN here as on the chip.
"""

from __future__ import annotations

import mmap
import operator
import os
import threading
from bisect import bisect_right, insort
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .constants import ALIGN_BYTES
from .error_table import BAD_ALLOC, INVALID_PARAM, RT_MEMORY_ALLOCATION, RT_PARAM_INVALID
from .host_context import Contexts
from .host_core import HostCore
from .host_worker import Worker

DEVICE = "device memory"
PINNED = "pinned host memory"

_FILL = 0xFF
_MAPPED_BYTES = 1 << 20  # from this size on, a block is a map of its own, which is cheap to clear
_SLACK_BYTES = 128  # static models may read 64 bytes beyond a buffer (size tolerance)
_QUARANTINE_BYTES = 64 << 20  # checked mode: freed blocks stay reserved so that misuse is seen
_POLICIES = range(8)
_POLICY_FLAGS = 0x101100


class Block:
    """One allocation. `last_use`: newest queued operation that touches it (checked mode)."""

    __slots__ = ("data", "device_id", "kind", "last_use", "map", "nbytes", "ptr")

    def __init__(self, kind: str, device_id: int, nbytes: int) -> None:
        """Reserve memory; raises MemoryError (OSError from a map counts as one)."""
        whole = nbytes + _SLACK_BYTES
        self.map = _anonymous_map(whole) if whole >= _MAPPED_BYTES else None
        if self.map is not None:
            data: NDArray[np.uint8] = np.frombuffer(self.map, np.uint8)
        else:
            raw = np.empty(whole + ALIGN_BYTES, np.uint8)
            shift = -int(raw.ctypes.data) % ALIGN_BYTES
            data = raw[shift : shift + whole]
        self.kind = kind
        self.device_id = device_id
        self.nbytes = nbytes
        self.data = data
        self.ptr = int(data.ctypes.data)
        self.last_use: tuple[Worker, int] | None = None

    def is_pending(self) -> bool:
        """Whether an operation that touches it is not yet known to be complete."""
        use = self.last_use
        return use is not None and use[1] > use[0].synced

    def view(self, address: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return an array over a part of the block; the caller has checked the bounds."""
        count = dtype.itemsize
        for extent in shape:
            count *= extent
        start = address - self.ptr
        return self.data[start : start + count].view(dtype).reshape(shape)

    def fill(self, start: int, value: int, count: int) -> None:
        """Set `count` bytes from `start`; a mapped block's whole pages become zero untouched.

        A page pool is gigabytes of which a short run uses megabytes: the machine hands out zero
        pages when they are first used, as it did before the block was soiled.
        """
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (start + count) // mmap.PAGESIZE * mmap.PAGESIZE
        if value or self.map is None or last - first < _MAPPED_BYTES:
            self.data[start : start + count].fill(value)
            return
        self.data[start:first].fill(0)
        self.map.madvise(mmap.MADV_DONTNEED, first, last - first)
        self.data[last : start + count].fill(0)


class Memory:
    """pyACL's allocation calls."""

    def __init__(self, core: HostCore, contexts: Contexts) -> None:
        self._core = core
        self._contexts = contexts
        self._blocks: dict[int, Block] = {}
        self._starts: list[int] = []
        self._used_bytes = 0
        self._quarantine: deque[Block] = deque()
        self._quarantine_bytes = 0
        self._lock = threading.Lock()
        self._total_bytes = core.options.memory_bytes or _machine_bytes()

    def find(self, address: int) -> Block | None:
        """Return the live block that covers an address."""
        starts = self._starts
        place = bisect_right(starts, address) - 1
        if place < 0:
            return None
        block = self._blocks.get(starts[place])
        if block is None or address >= block.ptr + block.nbytes:
            return None
        return block

    def what_is(self, address: int) -> str:
        """Describe an address for a message: live, freed, or not ours."""
        block = self.find(address)
        if block is not None:
            return self._core.ledger.describe(block.kind, block.ptr)
        for kind in (DEVICE, PINNED):
            gone = self._core.ledger.destroyed_covering(kind, address)
            if gone is not None:
                return f"{address:#x}, inside of {gone} (use after free)"
        return f"{address:#x}, which is ordinary host memory or nothing"

    def malloc(self, size: int, policy: int, /) -> tuple[int, int]:
        """Return (device pointer, ret); the content is garbage."""
        size, policy = operator.index(size), operator.index(policy)
        if policy & ~_POLICY_FLAGS not in _POLICIES:
            return 0, self._core.fail(INVALID_PARAM, f"EH0001: rt.malloc: policy {policy}")
        return self._allocate("rt.malloc", DEVICE, size)

    def malloc_with_cfg(self, size: int, policy: int, config: dict[str, Any], /) -> tuple[int, int]:
        """Return (device pointer, ret); the configuration has no effect here."""
        return self.malloc(size, policy)

    def free(self, ptr: int, /) -> int:
        """Free device memory at once, without waiting for any stream."""
        return self._release("rt.free", DEVICE, ptr)

    def malloc_host(self, size: int, /) -> tuple[int, int]:
        """Return (pinned host pointer, ret)."""
        return self._allocate("rt.malloc_host", PINNED, operator.index(size))

    def free_host(self, ptr: int, /) -> int:
        """Free pinned host memory."""
        return self._release("rt.free_host", PINNED, ptr)

    def get_mem_info(self, attr: int, /) -> tuple[int, int, int]:
        """Return (free bytes, total bytes, ret)."""
        if self._contexts.current() is None:
            return 0, 0, self._contexts.missing("rt.get_mem_info")
        free = max(0, self._total_bytes - self._used_bytes)
        if not self._core.options.memory_bytes:
            free = min(free, _available_bytes())  # the machine's memory has other users
        return free, self._total_bytes, 0

    def mem_flush(self, ptr: int, size: int, /) -> int:
        """Do nothing: caches are coherent."""
        return 0

    def free_all(self) -> None:
        """Forget everything (finalize)."""
        for block in list(self._blocks.values()):
            self._core.ledger.closed(block.kind, block.ptr)
        self._blocks.clear()
        self._starts.clear()
        self._quarantine.clear()
        self._quarantine_bytes = self._used_bytes = 0

    def _allocate(self, call: str, kind: str, size: int) -> tuple[int, int]:
        context = self._contexts.current()
        if context is None:
            return 0, self._contexts.missing(call)
        if size <= 0:
            return 0, self._core.fail(INVALID_PARAM, f"EH0001: {call}: size {size} must be > 0")
        is_device = kind == DEVICE
        code = self._core.faults.next("malloc" if is_device else "malloc_host")
        free = self._total_bytes - self._used_bytes
        if not code and is_device and size > free:
            code = RT_MEMORY_ALLOCATION
        if code:
            text = f"EL0004: {call}: {size} bytes wanted, {free} of {self._total_bytes} are free"
            return 0, self._core.fail(code, text)
        try:
            block = Block(kind, context.device_id, size)
        except MemoryError:
            code = RT_MEMORY_ALLOCATION if is_device else BAD_ALLOC
            return 0, self._core.fail(code, f"EH0010: {call}: the machine has no {size} bytes left")
        self._soil(block)
        with self._lock:
            self._blocks[block.ptr] = block
            insort(self._starts, block.ptr)
            self._used_bytes += size if is_device else 0
        self._core.ledger.opened(kind, block.ptr, size)
        return block.ptr, 0

    def _soil(self, block: Block) -> None:
        limit = self._core.options.dirty_bytes
        if not self._core.checked:
            limit = min(limit, _MAPPED_BYTES)
        if block.nbytes <= limit:
            block.data.fill(_FILL)
        elif limit:
            block.data[: limit // 2].fill(_FILL)
            block.data[-limit // 2 :].fill(_FILL)

    def _release(self, call: str, kind: str, ptr: int) -> int:
        if self._contexts.current() is None:
            return self._contexts.missing(call)
        block = self._blocks.get(ptr)
        if block is None or block.kind != kind:
            what = self._core.ledger.describe(kind, ptr) if block is None else self.what_is(ptr)
            return self._core.misuse(RT_PARAM_INVALID, f"{call}: not the start of {kind}: {what}")
        if self._core.checked and block.is_pending():
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"{call}: freed before the stream that uses it was synchronised: "
                + self._core.ledger.describe(kind, ptr),
            )
        with self._lock:
            del self._blocks[ptr]
            self._starts.remove(ptr)
            self._used_bytes -= block.nbytes if kind == DEVICE else 0
        self._core.ledger.closed(kind, ptr)
        if self._core.checked:
            self._imprison(block)
        return 0

    def _imprison(self, block: Block) -> None:
        # The memory stays ours for a while: its address is not given out again, and whoever still
        # reads it sees NaN instead of another block's numbers.
        if block.nbytes > _QUARANTINE_BYTES // 4:
            return
        block.data.fill(_FILL)
        self._quarantine.append(block)
        self._quarantine_bytes += block.nbytes
        while self._quarantine_bytes > _QUARANTINE_BYTES:
            self._quarantine_bytes -= self._quarantine.popleft().nbytes


def _anonymous_map(nbytes: int) -> mmap.mmap | None:
    """Return memory of its own, or None where the system cannot clear it by pages."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return None
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(str(error)) from error


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 16 << 30


def _available_bytes() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return _machine_bytes()

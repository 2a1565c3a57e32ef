"""pyACL's copies and fills on the host device.

A synchronous copy waits for no stream. An asynchronous copy from or to ordinary (not pinned) host
memory keeps the stream's order but returns only when it is done, as on the chip.
"""

from __future__ import annotations

import ctypes
import operator
from dataclasses import dataclass

from .constants import MemcpyKind
from .error_table import INVALID_PARAM, RT_FEATURE_NOT_SUPPORT, RT_PARAM_INVALID
from .host_context import Contexts
from .host_core import HostCore
from .host_memory import DEVICE, Block, Memory
from .host_stream import Streams
from .host_worker import Failure

# (source on the device, destination on the device) that each kind promises
_SIDES = {
    MemcpyKind.HOST_TO_HOST: (False, False),
    MemcpyKind.HOST_TO_DEVICE: (False, True),
    MemcpyKind.DEVICE_TO_HOST: (True, False),
    MemcpyKind.DEVICE_TO_DEVICE: (True, True),
    MemcpyKind.HOST_BUF_TO_DEVICE: (False, True),
    MemcpyKind.INNER_DEVICE_TO_DEVICE: (True, True),
    MemcpyKind.INTER_DEVICE_TO_DEVICE: (True, True),
}
_KINDS = range(8)


@dataclass(frozen=True)
class Copy:
    """One copy: `height` rows of `width` bytes, row starts `dst_pitch` and `src_pitch` apart."""

    call: str
    dst: int
    src: int
    width: int
    height: int = 1
    dst_pitch: int = 0
    src_pitch: int = 0

    def spans(self) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
        """Return (side, address, bytes touched) of both sides."""
        rows = self.height - 1
        return (
            ("destination", self.dst, rows * self.dst_pitch + self.width),
            ("source", self.src, rows * self.src_pitch + self.width),
        )

    def run(self) -> None:
        """Copy now; the GIL is free meanwhile."""
        dst, src = self.dst, self.src
        for _ in range(self.height):
            ctypes.memmove(dst, src, self.width)
            dst += self.dst_pitch
            src += self.src_pitch


class Copies:
    """memcpy, memset and their asynchronous and two-dimensional forms."""

    def __init__(
        self, core: HostCore, contexts: Contexts, memory: Memory, streams: Streams
    ) -> None:
        self._core = core
        self._contexts = contexts
        self._memory = memory
        self._streams = streams

    def memcpy(self, dst: int, dst_max: int, src: int, count: int, kind: int, /) -> int:
        """Copy `count` bytes; `dst_max` is the room at dst."""
        return self._sync(Copy("rt.memcpy", dst, src, operator.index(count)), dst_max, kind)

    def memcpy2d(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int, /
    ) -> int:
        """Copy `height` rows of `width` bytes."""
        copy = Copy("rt.memcpy2d", dst, src, width, height, dpitch, spitch)
        return self._check_pitches(copy) or self._sync(copy, _room(copy), kind)

    def memcpy_async(
        self, dst: int, dst_max: int, src: int, count: int, kind: int, stream: int, /
    ) -> int:
        """Queue a copy."""
        copy = Copy("rt.memcpy_async", dst, src, operator.index(count))
        return self._async(copy, dst_max, kind, stream)

    def memcpy2d_async(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: int,
        stream: int, /,
    ) -> int:  # fmt: skip
        """Queue a copy of rows."""
        copy = Copy("rt.memcpy2d_async", dst, src, width, height, dpitch, spitch)
        return self._check_pitches(copy) or self._async(copy, _room(copy), kind, stream)

    def memset(self, ptr: int, max_count: int, value: int, count: int, /) -> int:
        """Fill device memory; `max_count` is the room at ptr."""
        block = self._check_fill("rt.memset", ptr, max_count, count)
        if isinstance(block, int):
            return block
        code = self._check_idle("rt.memset", block)
        if not code:
            block.fill(ptr - block.ptr, value & 0xFF, count)
        return code

    def memset_async(self, ptr: int, max_count: int, value: int, count: int, stream: int, /) -> int:
        """Queue a fill."""
        block = self._check_fill("rt.memset_async", ptr, max_count, count)
        if isinstance(block, int):
            return block
        on = self._streams.find("rt.memset_async", stream)
        if isinstance(on, int):
            return on
        start = ptr - block.ptr
        number = on.worker.enqueue(lambda: block.fill(start, value & 0xFF, count))
        if self._core.checked:
            block.last_use = (on.worker, number)
        return 0

    def _sync(self, copy: Copy, dst_max: int, kind: int) -> int:
        blocks = self._check(copy, dst_max, kind)
        if isinstance(blocks, int):
            return blocks
        for block in blocks:
            code = self._check_idle(copy.call, block)
            if code:
                return code
        copy.run()
        return 0

    def _async(self, copy: Copy, dst_max: int, kind: int, stream: int) -> int:
        on = self._streams.find(copy.call, stream)
        if isinstance(on, int):
            return on
        blocks = self._check(copy, dst_max, kind)
        if isinstance(blocks, int):
            return blocks
        if not any(block.kind == DEVICE for block in blocks):
            return self._core.fail(
                RT_FEATURE_NOT_SUPPORT, f"{copy.call}: host to host is not supported"
            )

        def run(alive: tuple[Block, ...] = blocks) -> Failure | None:
            copy.run()
            return None

        number = on.worker.enqueue(run)
        if len(blocks) < 2:  # one side is ordinary memory
            on.worker.wait()
        elif self._core.checked:
            for block in blocks:
                block.last_use = (on.worker, number)
        return 0

    def _check(self, copy: Copy, dst_max: int, kind: int) -> tuple[Block, ...] | int:
        """Return the blocks of ours that the copy touches (0 to 2), or the code to return."""
        if self._contexts.current() is None:
            return self._contexts.missing(copy.call)
        code = self._core.faults.next("memcpy")
        if code:
            return self._core.fail(code, f"EE9999: {copy.call}: failure on order")
        if copy.width <= 0 or copy.height <= 0 or copy.dst == 0 or copy.src == 0:
            return self._core.fail(
                INVALID_PARAM, f"EH0001: {copy.call}: null pointer or size {copy.width}"
            )
        if copy.width > dst_max or kind not in _KINDS:
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"EE1001: {copy.call}: kind {kind}, {copy.width} bytes into {dst_max}",
            )
        blocks = []
        for side, address, nbytes in copy.spans():
            block = self._memory.find(address)
            code = self._check_side(copy.call, side, address, nbytes, block, kind)
            if code:
                return code
            if block is not None:
                blocks.append(block)
        return tuple(blocks)

    def _check_side(
        self, call: str, side: str, address: int, nbytes: int, block: Block | None, kind: int
    ) -> int:
        wanted = _SIDES.get(MemcpyKind(kind))
        if block is None:
            on_device = wanted is not None and wanted[side == "destination"]
            if on_device or (self._core.checked and "freed" in self._memory.what_is(address)):
                return self._core.misuse(
                    RT_PARAM_INVALID,
                    f"{call}: the {side} must be live memory of ours, is "
                    + self._memory.what_is(address),
                )
            return 0
        if address + nbytes > block.ptr + block.nbytes:
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"{call}: the {side} {address:#x} + {nbytes} bytes leaves "
                + self._memory.what_is(address),
            )
        if (
            self._core.checked
            and wanted is not None
            and (block.kind == DEVICE) != wanted[side == "destination"]
        ):
            # The chip looks at the address and forgives a wrong kind; a reader does not.
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"{call}: kind {MemcpyKind(kind).name}, but the {side} is "
                + self._memory.what_is(address),
            )
        return 0

    def _check_pitches(self, copy: Copy) -> int:
        if copy.width > min(copy.dst_pitch, copy.src_pitch):
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"{copy.call}: width {copy.width} exceeds a pitch "
                f"({copy.dst_pitch} and {copy.src_pitch})",
            )
        return 0

    def _check_fill(self, call: str, ptr: int, max_count: int, count: int) -> Block | int:
        if self._contexts.current() is None:
            return self._contexts.missing(call)
        block = self._memory.find(ptr)
        if block is None:
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"{call}: the pointer must be device memory, is " + self._memory.what_is(ptr),
            )
        if not 0 < count <= max_count or ptr + count > block.ptr + block.nbytes:
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"{call}: {count} bytes (room {max_count}) leave " + self._memory.what_is(ptr),
            )
        return block

    def _check_idle(self, call: str, block: Block) -> int:
        if self._core.checked and block.is_pending():
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"{call}: the stream that uses the memory was not synchronised: "
                + self._core.ledger.describe(block.kind, block.ptr),
            )
        return 0


def _room(copy: Copy) -> int:
    return copy.dst_pitch

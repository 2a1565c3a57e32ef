"""pyACL's stream calls on the host device."""

from __future__ import annotations

import threading

from .constants import StreamStatus
from .error_table import (
    INVALID_PARAM,
    RT_PARAM_INVALID,
    RT_STREAM_CONTEXT,
    RT_STREAM_SYNC_TIMEOUT,
)
from .host_context import Context, Contexts
from .host_core import HostCore
from .host_worker import Failure, Worker

STREAM = "stream"


class Stream:
    """A queue that belongs to a context."""

    def __init__(self, handle: int, context: Context) -> None:
        self.handle = handle
        self.context = context
        self.worker = Worker(f"acl-stream-{handle & 0xFFFF:x}")


class Streams:
    """Stream calls. A stream handle of 0 means the current context's default stream."""

    def __init__(self, core: HostCore, contexts: Contexts) -> None:
        self._core = core
        self._contexts = contexts
        self._streams: dict[int, Stream] = {}
        self._defaults: dict[int, Stream] = {}
        self._lock = threading.Lock()
        contexts.on_destroy.append(self._drop_context)

    def find(self, call: str, stream: int) -> Stream | int:
        """Return the stream, or the code to return from the call."""
        context = self._core.thread.context
        if context is None or not context.alive:
            return self._contexts.missing(call)
        if stream == 0:
            return self._default(context)
        found = self._streams.get(stream)
        if found is None:
            return self._core.bad_handle(STREAM, stream, RT_PARAM_INVALID)
        if found.context is not context:
            return self._core.misuse(
                RT_STREAM_CONTEXT,
                f"EE1010: {call}: stream {stream:#x} belongs to context "
                f"{found.context.handle:#x}, the thread's current one is {context.handle:#x}",
            )
        return found

    def create_stream(self) -> tuple[int, int]:
        """Return (stream, ret)."""
        context = self._contexts.current()
        if context is None:
            return 0, self._contexts.missing("rt.create_stream")
        stream = Stream(self._core.new_handle(), context)
        self._streams[stream.handle] = stream
        self._core.ledger.opened(STREAM, stream.handle)
        return stream.handle, 0

    def create_stream_with_config(self, priority: int, flag: int, /) -> tuple[int, int]:
        """Return (stream, ret); priority and flag have no effect here."""
        return self.create_stream()

    def destroy_stream(self, stream: int, /) -> int:
        """Finish what is queued, then destroy."""
        found = self.find("rt.destroy_stream", stream)
        if isinstance(found, int):
            return found
        if stream == 0:
            return self._core.misuse(INVALID_PARAM, "the default stream cannot be destroyed")
        self._drop(found)
        return 0

    def destroy_stream_force(self, stream: int, /) -> int:
        """Destroy without running what has not started."""
        found = self.find("rt.destroy_stream_force", stream)
        if isinstance(found, int):
            return found
        found.worker.abort()
        return self.destroy_stream(stream)

    def stream_abort(self, stream: int, /) -> int:
        """Drop what has not started."""
        found = self.find("rt.stream_abort", stream)
        if isinstance(found, int):
            return found
        found.worker.abort()
        return 0

    def synchronize_stream(self, stream: int, /) -> int:
        """Wait for the stream and report its first failure since the last time."""
        return self._synchronize("rt.synchronize_stream", stream, -1)

    def synchronize_stream_with_timeout(self, stream: int, timeout_ms: int, /) -> int:
        """Wait at most timeout_ms (-1 = for ever), then 507046; the work goes on."""
        return self._synchronize("rt.synchronize_stream_with_timeout", stream, timeout_ms)

    def synchronize_device(self) -> int:
        """Wait for every stream of the current context's device."""
        context = self._contexts.current()
        if context is None:
            return self._contexts.missing("rt.synchronize_device")
        streams = [*self._streams.values(), *self._defaults.values()]
        code = 0
        for stream in streams:
            if stream.context.device_id == context.device_id:
                stream.worker.wait()
                code = code or self._report(stream.worker.take_failure())
        return code

    def stream_query(self, stream: int, /) -> tuple[int, int]:
        """Return (0 complete or 1 not ready, ret)."""
        found = self.find("rt.stream_query", stream)
        if isinstance(found, int):
            return int(StreamStatus.NOT_READY), found
        worker = found.worker
        number = worker.enqueued
        if worker.completed < number:
            return int(StreamStatus.NOT_READY), 0
        worker.mark_synced(number)
        return int(StreamStatus.COMPLETE), 0

    def get_stream_available_num(self) -> tuple[int, int]:
        """Return (streams that can still be made, ret)."""
        return max(0, 1984 - len(self._streams)), 0

    def stop_all(self) -> None:
        """End all threads (finalize)."""
        for stream in [*self._streams.values(), *self._defaults.values()]:
            self._drop(stream)

    def _synchronize(self, call: str, stream: int, timeout_ms: int) -> int:
        found = self.find(call, stream)
        if isinstance(found, int):
            return found
        code = self._core.faults.next("sync")
        if code:
            return self._core.fail(code, f"EE9999: {call}: failure on order")
        if timeout_ms < -1:
            return self._core.fail(RT_PARAM_INVALID, f"{call}: timeout {timeout_ms} ms is negative")
        if not found.worker.wait(-1 if timeout_ms < 0 else timeout_ms / 1000):
            return self._core.fail(
                RT_STREAM_SYNC_TIMEOUT, f"EE1002: {call}: not complete after {timeout_ms} ms"
            )
        return self._report(found.worker.take_failure())

    def _report(self, failure: Failure | None) -> int:
        return 0 if failure is None else self._core.fail(*failure)

    def _default(self, context: Context) -> Stream:
        stream = self._defaults.get(context.handle)
        if stream is None:
            with self._lock:
                stream = self._defaults.setdefault(
                    context.handle, Stream(self._core.new_handle(), context)
                )
        return stream

    def _drop(self, stream: Stream) -> None:
        stream.worker.stop()
        if self._streams.pop(stream.handle, None) is not None:
            self._core.ledger.closed(STREAM, stream.handle)
        self._defaults.pop(stream.context.handle, None)

    def _drop_context(self, context: Context) -> None:
        for stream in [s for s in self._streams.values() if s.context is context]:
            if self._core.checked:
                self._core.ledger.usage_errors.append(
                    "AclUsageError: context destroyed before "
                    + self._core.ledger.describe(STREAM, stream.handle)
                )
            self._drop(stream)
        default = self._defaults.get(context.handle)
        if default is not None:
            self._drop(default)

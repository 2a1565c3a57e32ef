"""pyACL's event calls on the host device."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from .constants import EventFlag, EventStatus
from .error_table import RT_EVENT_SYNC_TIMEOUT, RT_EVENT_TIMESTAMP, RT_PARAM_INVALID
from .host_context import Contexts
from .host_core import HostCore
from .host_stream import Streams
from .host_worker import Worker

EVENT = "event"


@dataclass
class Mark:
    """One recording of an event: where in which stream, when it was passed."""

    worker: Worker
    number: int = 0
    time_s: float = 0.0
    passed: threading.Event = field(default_factory=threading.Event)

    def reach(self) -> None:
        """Run on the stream when everything before is complete."""
        self.time_s = time.perf_counter()
        self.passed.set()


@dataclass
class Event:
    """An event and its newest recording."""

    handle: int
    flag: int
    resettable: bool
    mark: Mark | None = None


class Events:
    """Event calls. Mind the order of arguments: only stream_wait_event takes the stream first."""

    def __init__(self, core: HostCore, contexts: Contexts, streams: Streams) -> None:
        self._core = core
        self._contexts = contexts
        self._streams = streams
        self._events: dict[int, Event] = {}

    def create_event(self) -> tuple[int, int]:
        """Return (event, ret); it has time stamps and cannot be reset."""
        return self._create(int(EventFlag.SYNC | EventFlag.TIME_LINE), resettable=False)

    def create_event_with_flag(self, flag: int, /) -> tuple[int, int]:
        """Return (event, ret)."""
        return self._create(flag, resettable=True)

    def create_event_ex_with_flag(self, flag: int, /) -> tuple[int, int]:
        """Return (event, ret)."""
        return self._create(flag, resettable=True)

    def destroy_event(self, event: int, /) -> int:
        """Destroy an event."""
        if self._events.pop(event, None) is None:
            return self._core.bad_handle(EVENT, event, RT_PARAM_INVALID)
        self._core.ledger.closed(EVENT, event)
        return 0

    def record_event(self, event: int, stream: int, /) -> int:
        """Mark the place after everything queued so far."""
        found = self._events.get(event)
        if found is None:
            return self._core.bad_handle(EVENT, event, RT_PARAM_INVALID)
        on = self._streams.find("rt.record_event", stream)
        if isinstance(on, int):
            return on
        mark = Mark(on.worker)
        mark.number = on.worker.enqueue(mark.reach, survives_abort=True)
        found.mark = mark
        return 0

    def reset_event(self, event: int, stream: int, /) -> int:
        """Forget the recording; refused for events of plain create_event."""
        found = self._events.get(event)
        if found is None:
            return self._core.bad_handle(EVENT, event, RT_PARAM_INVALID)
        if not found.resettable:
            return self._core.fail(RT_PARAM_INVALID, "rt.reset_event: made by create_event")
        found.mark = None
        return 0

    def stream_wait_event(self, stream: int, event: int, /) -> int:
        """Let what is queued from now on wait for the event's newest recording."""
        found = self._events.get(event)
        if found is None:
            return self._core.bad_handle(EVENT, event, RT_PARAM_INVALID)
        on = self._streams.find("rt.stream_wait_event", stream)
        if isinstance(on, int):
            return on
        mark = found.mark
        if mark is None or mark.worker is on.worker:
            return 0

        def wait() -> None:
            mark.passed.wait()

        on.worker.enqueue(wait)
        on.worker.order_after(mark.worker, mark.number)
        return 0

    def synchronize_event(self, event: int, /) -> int:
        """Wait for an event; one that was never recorded counts as complete."""
        return self.synchronize_event_with_timeout(event, -1)

    def synchronize_event_with_timeout(self, event: int, timeout_ms: int, /) -> int:
        """Wait at most timeout_ms (-1 = for ever), then 507047."""
        found = self._events.get(event)
        if found is None:
            return self._core.bad_handle(EVENT, event, RT_PARAM_INVALID)
        if self._contexts.current() is None:
            return self._contexts.missing("rt.synchronize_event")
        mark = found.mark
        if mark is None:
            return 0
        if not mark.passed.wait(None if timeout_ms < 0 else timeout_ms / 1000):
            return self._core.fail(
                RT_EVENT_SYNC_TIMEOUT, f"EE1002: event not complete after {timeout_ms} ms"
            )
        mark.worker.mark_synced(mark.number)
        return 0

    def query_event_status(self, event: int, /) -> tuple[int, int]:
        """Return (1 complete or 0 not ready, ret)."""
        found = self._events.get(event)
        if found is None:
            return 0, self._core.bad_handle(EVENT, event, RT_PARAM_INVALID)
        mark = found.mark
        if mark is not None and not mark.passed.is_set():
            return int(EventStatus.NOT_READY), 0
        if mark is not None:
            mark.worker.mark_synced(mark.number)
        return int(EventStatus.COMPLETE), 0

    def query_event(self, event: int, /) -> tuple[int, int]:
        """Return (0 complete or 1 not ready, ret): the deprecated call has the opposite sense."""
        status, code = self.query_event_status(event)
        return 1 - status, code

    def event_elapsed_time(self, start: int, end: int, /) -> tuple[float, int]:
        """Return (milliseconds, ret); both events need TIME_LINE and must be complete."""
        marks = []
        for handle in (start, end):
            found = self._events.get(handle)
            if found is None:
                return 0.0, self._core.bad_handle(EVENT, handle, RT_PARAM_INVALID)
            mark = found.mark
            if not found.flag & EventFlag.TIME_LINE or mark is None or not mark.passed.is_set():
                return 0.0, self._core.fail(
                    RT_EVENT_TIMESTAMP, f"event {handle:#x} has no time stamp or is not complete"
                )
            marks.append(mark)
        return (marks[1].time_s - marks[0].time_s) * 1000, 0

    def _create(self, flag: int, resettable: bool) -> tuple[int, int]:
        if self._contexts.current() is None:
            return 0, self._contexts.missing("rt.create_event")
        event = Event(self._core.new_handle(), flag, resettable)
        self._events[event.handle] = event
        self._core.ledger.opened(EVENT, event.handle)
        return event.handle, 0

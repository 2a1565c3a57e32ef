"""One stream's thread: runs operations in order, remembers the first failure.

    enqueue:    enqueued = n+1, queue <- operation          (the caller goes on)
    worker:     operation(), then completed = n+1
    host waits: synced = what was enqueued when it started to wait

`completed` is what happened, `synced` is what the host may rely on. The checked mode judges by
`synced` alone, so that a missing synchronisation is found even when the device was quick.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from .error_table import INTERNAL_ERROR, RT_STREAM_ABORT

LOG = logging.getLogger(__name__)

Failure = tuple[int, str]  # (code, text)
Operation = Callable[[], Failure | None]

_ALWAYS = -1  # generation of what somebody waits for


class Worker:
    """An ordered queue of operations with its own thread, started by the first operation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.enqueued = 0
        self.completed = 0
        self.synced = 0
        self._queue: SimpleQueue[tuple[int, Operation] | None] = SimpleQueue()
        self._failure: Failure | None = None
        self._generation = 0
        self._gates: list[threading.Lock] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._known: dict[Worker, int] = {}  # other streams' operations that ours come after
        self._waits: list[tuple[int, Worker, int]] = []  # (our number, other stream, its number)

    def enqueue(self, operation: Operation, survives_abort: bool = False) -> int:
        """Queue an operation and return its number; numbers start with 1."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self._thread.start()
            self.enqueued += 1
            self._queue.put((_ALWAYS if survives_abort else self._generation, operation))
            return self.enqueued

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait, without the GIL, for all that is queued; False when time is up (-1 = never)."""
        target = self.enqueued
        if self.completed < target and not self._wait_for_worker(timeout_s):
            return False
        self.mark_synced(target)
        return True

    def mark_synced(self, number: int) -> None:
        """Record that the host knows the operations up to a number to be complete."""
        if number <= self.synced:
            return
        self.synced = number
        if self._waits:
            for ours, other, theirs in self._waits:
                if ours <= number:
                    other.mark_synced(theirs)
            self._waits = [wait for wait in self._waits if wait[0] > number]

    def order_after(self, other: Worker, number: int) -> None:
        """Record that what is queued from now on here runs after an operation of another stream."""
        self._known[other] = max(self._known.get(other, 0), number)
        self._waits.append((self.enqueued, other, number))

    def is_ordered_after(self, other: Worker, number: int) -> bool:
        """Whether what is queued next here surely runs after another stream's operation."""
        return other is self or number <= other.synced or number <= self._known.get(other, 0)

    def take_failure(self) -> Failure | None:
        """Return the first failure since the last call and forget it."""
        failure, self._failure = self._failure, None
        return failure

    def abort(self) -> None:
        """Drop what has not started yet; the next synchronisation reports it."""
        with self._lock:
            self._generation += 1
            if self.completed < self.enqueued and self._failure is None:
                self._failure = (RT_STREAM_ABORT, f"{self.name}: operations were aborted")

    def stop(self) -> None:
        """Finish the queue and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.mark_synced(self.enqueued)

    def _wait_for_worker(self, timeout_s: float) -> bool:
        # A lock used as a gate: acquired here, released by the worker. Waiting on it costs one
        # futex, where threading.Event and Condition cost several Python calls.
        gate = self._gates.pop() if self._gates else threading.Lock()
        gate.acquire()
        self.enqueue(gate.release, survives_abort=True)
        if not gate.acquire(timeout=timeout_s):
            return False  # the worker will release it some day; it is not used again
        gate.release()
        self._gates.append(gate)
        return True

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            generation, operation = item
            failure: Failure | None = None
            if generation in (_ALWAYS, self._generation):
                try:
                    failure = operation()
                except Exception as error:
                    LOG.exception("%s: an operation raised", self.name)
                    failure = (INTERNAL_ERROR, f"EE9999: {type(error).__name__}: {error}")
            if failure is not None and self._failure is None:
                self._failure = failure
            self.completed += 1

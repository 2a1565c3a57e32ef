"""Streams and events of the host device: order, real asynchrony, time limits, late errors."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from pagedom.runtime.acl import AclOptions, HostAcl
from pagedom.runtime.acl.host_worker import Worker


@pytest.fixture
def acl() -> HostAcl:
    acl = HostAcl(AclOptions())
    acl.init()
    acl.rt.set_device(0)
    return acl


@pytest.fixture
def gate(monkeypatch) -> threading.Event:
    """Hold every asynchronous fill back until the event is set."""
    event = threading.Event()

    class Slow(np.ndarray):
        def fill(self, value):
            event.wait(5)
            super().fill(value)

    from pagedom.runtime.acl import host_copy

    real = host_copy.Copies._check_fill

    def check(self, *arguments):
        block = real(self, *arguments)
        if not isinstance(block, int):
            block.data = block.data.view(Slow)
        return block

    monkeypatch.setattr(host_copy.Copies, "_check_fill", check)
    return event


def slow_fill(acl, stream) -> int:
    ptr, _ = acl.rt.malloc(64, 0)
    assert acl.rt.memset_async(ptr, 64, 1, 64, stream) == 0
    return ptr


def test_calls_return_before_the_work_is_done(acl, gate):
    stream, _ = acl.rt.create_stream()
    slow_fill(acl, stream)
    assert acl.rt.stream_query(stream) == (1, 0)
    assert acl.rt.synchronize_stream_with_timeout(stream, 20) == 507046
    assert "20 ms" in acl.get_recent_err_msg()
    gate.set()
    assert acl.rt.synchronize_stream_with_timeout(stream, 5000) == 0
    assert acl.rt.stream_query(stream) == (0, 0)


def test_waiting_leaves_the_interpreter_to_others(acl, gate):
    stream, _ = acl.rt.create_stream()
    slow_fill(acl, stream)
    ticks = []

    def tick():
        for _ in range(5):
            time.sleep(0.01)
            ticks.append(1)
        gate.set()

    thread = threading.Thread(target=tick)
    thread.start()
    assert acl.rt.synchronize_stream(stream) == 0
    assert len(ticks) == 5
    thread.join()


def test_two_streams_do_not_wait_for_each_other(acl, gate):
    first, _ = acl.rt.create_stream()
    second, _ = acl.rt.create_stream()
    slow_fill(acl, first)
    event, _ = acl.rt.create_event()
    assert acl.rt.record_event(event, second) == 0
    assert acl.rt.synchronize_event_with_timeout(event, 5000) == 0
    assert acl.rt.stream_query(first) == (1, 0)
    gate.set()
    assert acl.rt.synchronize_device() == 0


def test_a_stream_waits_for_an_event(acl, gate):
    first, _ = acl.rt.create_stream()
    second, _ = acl.rt.create_stream()
    event, _ = acl.rt.create_event_with_flag(8)
    slow_fill(acl, first)
    acl.rt.record_event(event, first)
    assert acl.rt.stream_wait_event(second, event) == 0
    assert acl.rt.query_event_status(event) == (0, 0)
    assert acl.rt.query_event(event) == (1, 0)
    assert acl.rt.synchronize_event_with_timeout(event, 10) == 507047
    assert acl.rt.synchronize_stream_with_timeout(second, 10) == 507046
    gate.set()
    assert acl.rt.synchronize_stream(second) == 0
    assert acl.rt.query_event_status(event) == (1, 0)
    assert acl.rt.query_event(event) == (0, 0)


def test_elapsed_time(acl):
    stream, _ = acl.rt.create_stream()
    start, _ = acl.rt.create_event()
    end, _ = acl.rt.create_event()
    assert acl.rt.event_elapsed_time(start, end) == (0.0, 107006)
    acl.rt.record_event(start, stream)
    acl.rt.synchronize_stream(stream)
    time.sleep(0.01)
    acl.rt.record_event(end, stream)
    acl.rt.synchronize_stream(stream)
    milliseconds, code = acl.rt.event_elapsed_time(start, end)
    assert code == 0
    assert 9 < milliseconds < 1000


def test_reset_event_needs_an_event_with_flags(acl):
    stream, _ = acl.rt.create_stream()
    plain, _ = acl.rt.create_event()
    flagged, _ = acl.rt.create_event_with_flag(1)
    assert acl.rt.reset_event(plain, stream) == 107000
    assert acl.rt.reset_event(flagged, stream) == 0
    assert acl.rt.destroy_event(plain) == 0
    assert acl.rt.destroy_event(plain) == 107000
    assert acl.rt.synchronize_event(flagged) == 0


def test_abort_drops_what_has_not_started(acl, gate):
    stream, _ = acl.rt.create_stream()
    slow_fill(acl, stream)
    time.sleep(0.05)  # the first one runs now
    kept = slow_fill(acl, stream)
    assert acl.rt.stream_abort(stream) == 0
    gate.set()
    assert acl.rt.synchronize_stream(stream) == 107023
    assert acl.rt.synchronize_stream(stream) == 0
    out = np.zeros(64, np.uint8)
    acl.rt.memcpy(out.ctypes.data, 64, kept, 64, 2)
    assert (out == 0xFF).all()


def test_destroying_a_stream_finishes_it_first(acl):
    before = threading.active_count()
    stream, _ = acl.rt.create_stream()
    ptr = slow_fill(acl, stream)
    assert acl.rt.destroy_stream(stream) == 0
    out = np.zeros(64, np.uint8)
    acl.rt.memcpy(out.ctypes.data, 64, ptr, 64, 2)
    assert (out == 1).all()
    assert threading.active_count() == before


def test_the_first_failure_is_reported_once_by_the_next_wait():
    worker = Worker("w")
    order = []
    worker.enqueue(lambda: order.append(1))
    worker.enqueue(lambda: (507011, "first"))
    worker.enqueue(lambda: 1 / 0)
    worker.enqueue(lambda: order.append(2))
    assert worker.wait()
    assert order == [1, 2]
    assert worker.take_failure() == (507011, "first")
    assert worker.take_failure() is None
    worker.enqueue(lambda: 1 / 0)
    worker.wait()
    code, text = worker.take_failure()
    assert code == 500000
    assert "ZeroDivisionError" in text
    worker.stop()


def test_faults_of_synchronisation():
    from pagedom.runtime.acl import FaultPlan

    acl = HostAcl(AclOptions(faults=FaultPlan(sync={2: 507046})))
    acl.init()
    acl.rt.set_device(0)
    stream, _ = acl.rt.create_stream()
    assert [acl.rt.synchronize_stream(stream) for _ in range(3)] == [0, 507046, 0]

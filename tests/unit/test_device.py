"""Device: any thread may call, everything is freed once, ACL is started and ended by its owner."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pagedom.runtime.acl import AclError, AclOptions, FaultPlan, HostAcl
from pagedom.runtime.device import Device, DeviceClosedError


def in_thread(call, name="helper"):
    """Run `call` in a fresh thread; return its result or raise its error."""
    results, errors = [], []

    def run():
        try:
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def checked(**options) -> HostAcl:
    return HostAcl(AclOptions(checked=True, **options))


def test_case_10_any_thread_may_call_and_close():
    acl = checked()
    device = in_thread(lambda: Device(acl), "A")
    pointer = in_thread(lambda: device.malloc(4096), "B")
    in_thread(lambda: device.write(pointer, np.arange(4, dtype=np.int32)), "C")
    out = np.zeros(4, np.int32)
    device.read(out, pointer)
    assert out.tolist() == [0, 1, 2, 3]
    in_thread(device.synchronize, "D")
    assert in_thread(lambda: device.memory_info()[1]) > 0
    in_thread(device.close, "E")
    assert acl.ledger.live_counts() == {}
    assert acl.calls_without_context == []
    assert acl.ledger.usage_errors == []
    assert acl.init() == 0  # it was ended


def test_case_10_a_missing_context_names_the_thread():
    acl = checked()
    device = Device(acl)
    acl.rt.destroy_context(device.context)  # somebody else's mischief
    with pytest.raises(AclError, match=r"rt\.set_context.*invalid parameter"):
        in_thread(lambda: device.malloc(64), "worker-7")
    with pytest.raises(AclError, match=r"107002.*on thread 'worker-8'"):
        in_thread(device.close, "worker-8")


def test_case_12_two_engines_in_one_process():
    for order in ((0, 1), (1, 0)):
        acl = checked()
        devices = [Device(acl), Device(acl)]
        devices[order[0]].close()
        assert acl.init() == 100002  # still running
        assert devices[order[1]].malloc(64)
        devices[order[1]].close()
        assert acl.finalize() == 100037  # ended by the last one, once
        assert acl.ledger.live_counts() == {}


def test_case_12_somebody_else_started_it():
    acl = checked(already_initialised=True)
    device = Device(acl)
    assert acl.get_recent_err_msg() is None
    device.close()
    assert acl.init() == 100002  # not ended by us


def test_case_12_closed_and_built_again():
    acl = checked()
    for _ in range(3):
        with Device(acl) as device:
            assert device.malloc(64)
    assert acl.ledger.live_counts() == {}


def test_case_12_other_codes_still_fail():
    acl = checked()
    acl.init = lambda: 507033
    with pytest.raises(AclError, match="firmware"):
        Device(acl)
    acl.init = lambda: 0
    with pytest.raises(AclError, match="100001"):
        Device(acl)


def test_a_failed_start_leaves_nothing(monkeypatch):
    acl = checked()
    with pytest.raises(AclError, match=r"107001.*invalid device id") as caught:
        Device(acl, 3)
    assert "devices here: 1" in str(caught.value)
    acl.rt.create_stream = lambda: (0, 207008)
    with pytest.raises(AclError, match="207008"):
        Device(acl)
    assert acl.ledger.live_counts() == {}
    assert acl.finalize() == 100037


def test_close_frees_everything_once():
    acl = checked()
    device = Device(acl)
    device.malloc(100)
    kept = device.malloc(200)
    device.malloc_host(300)
    assert device.allocated_bytes == 300
    device.free(kept)
    with pytest.raises(KeyError, match="was not allocated by this device"):
        device.free(kept)
    closed = []
    device.before_close(lambda: closed.append("first"))
    device.before_close(lambda: closed.append("second"))
    device.close()
    device.close()
    assert closed == ["second", "first"]
    assert acl.ledger.live_counts() == {}
    assert acl.ledger.usage_errors == []
    with pytest.raises(DeviceClosedError):
        device.malloc(1)


def test_concurrent_closes_are_one():
    acl = checked()
    device = Device(acl)
    device.malloc(64)
    threads = [threading.Thread(target=device.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert acl.ledger.live_counts() == {}
    assert acl.ledger.usage_errors == []


def test_close_goes_on_after_an_error():
    acl = checked()
    device = Device(acl)
    device.malloc(64)

    def fail():
        raise RuntimeError("a model would not go")

    device.before_close(fail)
    with pytest.raises(RuntimeError, match="would not go"):
        device.close()
    assert acl.ledger.live_counts() == {}


def test_out_of_memory_says_how_much():
    acl = checked(memory_bytes=10 << 20)
    with Device(acl) as device:
        device.malloc(4 << 20)
        with pytest.raises(AclError) as caught:
            device.malloc(8 << 20)
    text = str(caught.value)
    assert (
        "8.00 MiB were wanted; 6.00 MiB of 10.00 MiB are free, 4.00 MiB are this engine's" in text
    )


def test_pinned_memory_is_an_array():
    acl = checked()
    with Device(acl) as device:
        host = device.malloc_host(64)
        pointer = device.malloc(64)
        host[:] = np.arange(64)
        device.copy_async(pointer, host.ctypes.data, 64, 1)
        with pytest.raises(AclError, match="was not synchronised"):
            device.memset(pointer, 8, 7)
        device.synchronize()
        device.memset(pointer, 8, 7)
        out = np.zeros(64, np.uint8)
        device.read(out, pointer)
        assert out[:10].tolist() == [7] * 8 + [8, 9]
        device.free_host(host)
        with pytest.raises(KeyError, match="malloc_host"):
            device.free_host(np.zeros(4, np.uint8))


def test_faults_reach_the_caller():
    acl = checked(faults=FaultPlan(malloc={1: 207001}, sync={1: 507046}))
    with Device(acl) as device:
        with pytest.raises(AclError, match="207001"):
            device.malloc(64)
        with pytest.raises(AclError, match="time limit"):
            device.synchronize(0.5)
        device.synchronize()


def test_arrays_must_be_contiguous():
    with Device(checked()) as device:
        pointer = device.malloc(64)
        with pytest.raises(ValueError, match="C-contiguous"):
            device.write(pointer, np.zeros((4, 4), np.float32)[:, ::2])

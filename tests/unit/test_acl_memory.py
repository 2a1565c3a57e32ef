"""Memory of the host device: dirty, aligned, bounded; copies in both forms."""

from __future__ import annotations

import numpy as np
import pytest

from pagedom.runtime.acl import AclOptions, HostAcl

H2D, D2H, D2D = 1, 2, 3
MIB = 1 << 20


def started(**options) -> HostAcl:
    """Return a host device with a current context."""
    acl = HostAcl(AclOptions(**options))
    acl.init()
    acl.rt.set_device(0)
    return acl


@pytest.fixture
def acl() -> HostAcl:
    return started()


def read(acl, ptr, count, dtype=np.uint8):
    """Copy `count` elements from the device."""
    out = np.zeros(count, dtype)
    assert acl.rt.memcpy(out.ctypes.data, out.nbytes, ptr, out.nbytes, D2H) == 0
    return out


def test_fresh_memory_is_nan_and_aligned(acl):
    for size in (1, 63, 1000, 5 * MIB):
        ptr, code = acl.rt.malloc(size, 0)
        assert code == 0
        assert ptr % 64 == 0
        assert read(acl, ptr, size)[-1] == 0xFF
        assert acl.rt.free(ptr) == 0
    ptr, _ = acl.rt.malloc(64, 0)
    assert np.isnan(read(acl, ptr, 16, np.float32)).all()
    assert (read(acl, ptr, 16, np.int32) == -1).all()


def test_large_memory_is_soiled_at_both_ends():
    acl = started(dirty_bytes=1024)
    ptr, _ = acl.rt.malloc(MIB, 0)
    assert (read(acl, ptr, 512) == 0xFF).all()
    assert read(acl, ptr, MIB)[-1] == 0xFF
    assert read(acl, ptr + MIB // 2, 1)[0] == 0


@pytest.mark.parametrize("size", [0, -1])
def test_size_zero_is_an_error(acl, size):
    assert acl.rt.malloc(size, 0) == (0, 100000)
    assert acl.rt.malloc_host(size) == (0, 100000)


def test_policy_is_checked(acl):
    assert acl.rt.malloc(64, 0x102)[1] == 0
    assert acl.rt.malloc(64, 9)[1] == 100000


def test_device_memory_runs_out():
    acl = started(memory_bytes=MIB)
    ptr, code = acl.rt.malloc(MIB - 100, 0)
    assert code == 0
    assert acl.rt.get_mem_info(1) == (100, MIB, 0)
    assert acl.rt.malloc(101, 0) == (0, 207001)
    assert "EL0004" in acl.get_recent_err_msg()
    acl.rt.free(ptr)
    assert acl.rt.malloc(MIB, 0)[1] == 0


def test_free_wants_the_start_of_a_live_block(acl):
    ptr, _ = acl.rt.malloc(64, 0)
    host, _ = acl.rt.malloc_host(64)
    assert acl.rt.free(ptr + 32) == 107000
    assert acl.rt.free(host) == 107000
    assert acl.rt.free_host(ptr) == 107000
    assert acl.rt.free(ptr) == 0
    assert acl.rt.free(ptr) == 107000
    assert acl.rt.free_host(host) == 0


def test_copies_there_and_back(acl):
    data = np.arange(100, dtype=np.int32)
    ptr, _ = acl.rt.malloc(400, 0)
    other, _ = acl.rt.malloc(400, 0)
    assert acl.rt.memcpy(ptr, 400, data.ctypes.data, 400, H2D) == 0
    assert acl.rt.memcpy(other, 400, ptr, 400, D2D) == 0
    assert (read(acl, other, 100, np.int32) == data).all()
    assert (read(acl, other + 40, 5, np.int32) == data[10:15]).all()


def test_bounds_of_copies(acl):
    data = np.zeros(200, np.uint8)
    ptr, _ = acl.rt.malloc(100, 0)
    source = data.ctypes.data
    assert acl.rt.memcpy(ptr, 50, source, 60, H2D) == 107000
    assert acl.rt.memcpy(ptr, 200, source, 101, H2D) == 107000
    assert acl.rt.memcpy(ptr + 90, 100, source, 11, H2D) == 107000
    assert acl.rt.memcpy(source, 200, ptr, 101, D2H) == 107000
    assert acl.rt.memcpy(source, 200, ptr, 10, 9) == 107000
    assert acl.rt.memcpy(ptr, 100, source, 0, H2D) == 100000
    assert acl.rt.memcpy(0, 100, source, 10, H2D) == 100000


def test_host_memory_is_no_device_memory(acl):
    data = np.zeros(100, np.uint8)
    ptr, _ = acl.rt.malloc(100, 0)
    assert acl.rt.memcpy(data.ctypes.data, 100, ptr, 100, D2D) == 107000
    assert "ordinary host memory" in acl.get_recent_err_msg()
    assert acl.rt.memset(data.ctypes.data, 100, 0, 100) == 107000


def test_memset(acl):
    ptr, _ = acl.rt.malloc(100, 0)
    assert acl.rt.memset(ptr, 100, 0x1AB, 50) == 0
    assert (read(acl, ptr, 50) == 0xAB).all()
    assert (read(acl, ptr + 50, 50) == 0xFF).all()
    assert acl.rt.memset(ptr, 40, 0, 50) == 107000
    assert acl.rt.memset(ptr, 200, 0, 101) == 107000


def test_copy_of_rows(acl):
    data = np.arange(32, dtype=np.uint8).reshape(4, 8)
    ptr, _ = acl.rt.malloc(64, 0)
    acl.rt.memset(ptr, 64, 0, 64)
    assert acl.rt.memcpy2d(ptr, 16, data.ctypes.data, 8, 5, 4, H2D) == 0
    rows = read(acl, ptr, 64).reshape(4, 16)
    assert (rows[:, :5] == data[:, :5]).all()
    assert (rows[:, 5:] == 0).all()
    assert acl.rt.memcpy2d(ptr, 4, data.ctypes.data, 8, 5, 4, H2D) == 107000
    assert acl.rt.memcpy2d(ptr, 24, data.ctypes.data, 8, 5, 4, H2D) == 107000


def test_asynchronous_copies(acl):
    stream, _ = acl.rt.create_stream()
    pinned, _ = acl.rt.malloc_host(400)
    ptr, _ = acl.rt.malloc(400, 0)
    data = acl.util.ptr_to_numpy(pinned, (100,), np.dtype("int32").num)
    data[:] = np.arange(100)
    assert acl.rt.memcpy_async(ptr, 400, pinned, 400, H2D, stream) == 0
    assert acl.rt.memset_async(ptr, 400, 0, 4, stream) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    assert read(acl, ptr, 3, np.int32).tolist() == [0, 1, 2]
    # Ordinary memory: complete when the call returns.
    plain = np.zeros(100, np.int32)
    assert acl.rt.memcpy_async(plain.ctypes.data, 400, ptr, 400, D2H, stream) == 0
    assert plain[99] == 99
    assert acl.rt.memcpy_async(pinned, 400, plain.ctypes.data, 400, 0, stream) == 207000
    assert acl.rt.memcpy_async(ptr, 400, pinned, 400, H2D, 12345) == 107000


def test_faults_hit_the_call_they_name():
    from pagedom.runtime.acl import FaultPlan

    acl = started(faults=FaultPlan(malloc={2: 207001}, memcpy={1: 507013}))
    ptr, code = acl.rt.malloc(64, 0)
    assert code == 0
    assert acl.rt.malloc(64, 0) == (0, 207001)
    assert acl.rt.malloc(64, 0)[1] == 0
    data = np.zeros(64, np.uint8)
    assert acl.rt.memcpy(ptr, 64, data.ctypes.data, 64, H2D) == 507013
    assert acl.rt.memcpy(ptr, 64, data.ctypes.data, 64, H2D) == 0
    with pytest.raises(ValueError, match="numbered from 1"):
        FaultPlan(malloc={0: 1})

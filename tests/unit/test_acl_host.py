"""The host device's process, contexts and messages: codes and rules of pyACL."""

from __future__ import annotations

import json
import threading

import pytest

from pagedom.runtime.acl import AclOptions, HostAcl


@pytest.fixture
def acl() -> HostAcl:
    return HostAcl(AclOptions(num_devices=2))


def in_thread(call):
    """Run `call` in a fresh thread and return its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(call()), name="helper")
    thread.start()
    thread.join()
    return result[0]


def test_init_and_finalize_codes(acl):
    assert acl.finalize() == 100001
    assert acl.rt.set_device(0) == 100001
    assert acl.init() == 0
    assert acl.init() == 100002
    assert acl.finalize() == 0
    assert acl.finalize() == 100037
    assert acl.init() == 0


def test_init_of_another_library():
    assert HostAcl(AclOptions(already_initialised=True)).init() == 100002


def test_init_reads_its_configuration(acl, tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"err_msg_mode": 0}))
    bad.write_text("{")
    assert acl.init(str(bad)) == 107000
    assert "bad.json" in acl.get_recent_err_msg()
    assert acl.init(str(good)) == 0


def test_device_ids(acl):
    acl.init()
    assert acl.rt.get_device_count() == (2, 0)
    assert acl.rt.set_device(2) == 107001
    assert "device id 2 is not in [0, 2)" in acl.get_recent_err_msg()
    assert acl.rt.set_device(1) == 0
    assert acl.rt.get_device() == (1, 0)


def test_the_context_belongs_to_the_thread(acl):
    acl.init()
    acl.rt.set_device(0)
    context, code = acl.rt.create_context(0)
    assert code == 0
    assert acl.rt.get_context() == (context, 0)
    assert in_thread(lambda: acl.rt.malloc(64, 0)) == (0, 107002)
    assert in_thread(lambda: acl.rt.create_stream()) == (0, 107002)
    assert in_thread(lambda: (acl.rt.set_context(context), acl.rt.get_context()[0])) == (0, context)
    assert [call.split(" on ")[0] for call in acl.calls_without_context] == [
        "rt.malloc",
        "rt.create_stream",
    ]
    assert "'helper'" in acl.calls_without_context[0]


def test_set_device_is_counted(acl):
    acl.init()
    acl.rt.set_device(0)
    acl.rt.set_device(0)
    assert acl.rt.reset_device(0) == 0
    assert acl.rt.get_device() == (0, 0)
    assert acl.rt.reset_device(0) == 0
    assert acl.rt.get_device() == (-1, 107002)
    assert acl.rt.reset_device(0) == 100000


def test_threads_of_one_device_share_its_default_context(acl):
    acl.init()
    acl.rt.set_device(0)
    mine = acl.rt.get_context()[0]
    assert in_thread(lambda: (acl.rt.set_device(0), acl.rt.get_context()[0])) == (0, mine)
    assert acl.rt.destroy_context(mine) == 107000


def test_a_destroyed_context_is_nobodys(acl):
    acl.init()
    context, _ = acl.rt.create_context(0)
    assert acl.rt.destroy_context(context) == 0
    assert acl.rt.get_context() == (0, 107002)
    assert acl.rt.set_context(context) == 107000
    assert acl.rt.destroy_context(context) == 107000


def test_messages_are_bound_to_the_thread_and_cleared_by_reading(acl):
    acl.init()
    acl.rt.set_device(5)
    assert in_thread(acl.get_recent_err_msg) is None
    assert "device id 5" in acl.get_recent_err_msg()
    assert acl.get_recent_err_msg() is None


def test_streams_belong_to_their_context(acl):
    acl.init()
    first, _ = acl.rt.create_context(0)
    stream, _ = acl.rt.create_stream()
    acl.rt.create_context(0)
    assert acl.rt.synchronize_stream(stream) == 107003
    acl.rt.set_context(first)
    assert acl.rt.synchronize_stream(stream) == 0
    assert acl.rt.destroy_stream(stream) == 0
    assert acl.rt.synchronize_stream(stream) == 107000


def test_arguments_are_positional_only(acl):
    acl.init()
    acl.rt.set_device(0)
    with pytest.raises(TypeError):
        acl.rt.malloc(size=64, policy=0)
    with pytest.raises(TypeError):
        acl.rt.malloc("64", 0)
    with pytest.raises(TypeError):
        acl.rt.malloc(64)


def test_run_mode_is_host(acl):
    assert acl.rt.get_run_mode() == (1, 0)
    assert acl.get_soc_name() is None
    assert acl.get_version()[-1] == 0


def test_half_precision_helpers(acl):
    assert acl.float16_to_float(0x3C00) == 1.0
    assert acl.float_to_float16(-2.0) == 0xC000
    assert acl.data_type_size(27) == 2
    assert acl.data_type_size(99) == 0


def test_util_pointers(acl):
    import numpy as np

    data = b"0123456789"
    pointer = acl.util.bytes_to_ptr(data)
    assert acl.util.ptr_to_bytes(pointer, 4) == b"0123"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    view = acl.util.ptr_to_numpy(acl.util.numpy_to_ptr(array), (3, 2), np.dtype("float32").num)
    view[0, 0] = 7
    assert array[0, 0] == 7
    pointer, contiguous = acl.util.numpy_contiguous_to_ptr(array.T)
    assert contiguous.flags.c_contiguous
    assert pointer == contiguous.ctypes.data

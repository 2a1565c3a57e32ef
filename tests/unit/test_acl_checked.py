"""The checked mode: every wrong use is a code and a sentence that names the places."""

from __future__ import annotations

import logging

import acl_samples as samples
import numpy as np
import pytest
from acl_loaded import Loaded

from pagedom.runtime.acl import AclOptions, HostAcl

HERE = "test_acl_checked.py:"
H2D, D2H = 1, 2


@pytest.fixture
def acl() -> HostAcl:
    acl = HostAcl(AclOptions(checked=True))
    acl.init()
    acl.rt.set_device(0)
    return acl


@pytest.fixture
def loaded(tmp_path) -> Loaded:
    loaded = Loaded(tmp_path / "m.om", {}, checked=True)
    loaded.add_all({})
    loaded.shapes(tokens=2, seqs=2)
    return loaded


def launch(loaded, stream=None) -> int:
    """Execute without waiting."""
    acl = loaded.acl
    return acl.mdl.execute_async(loaded.model, loaded.ins, loaded.outs, stream or loaded.stream)


def complaint(acl, *parts: str) -> None:
    """Check the recent message."""
    message = acl.get_recent_err_msg()
    assert message.startswith("AclUsageError: ")
    for part in parts:
        assert part in message


def test_double_free_names_all_three_places(acl):
    ptr, _ = acl.rt.malloc(64, 0)
    acl.rt.free(ptr)
    assert acl.rt.free(ptr) == 107000
    message = acl.get_recent_err_msg()
    assert message.count(HERE) >= 3
    assert "made at" in message
    assert "destroyed at" in message


def test_use_after_free(acl):
    ptr, _ = acl.rt.malloc(64, 0)
    acl.rt.free(ptr)
    data = np.zeros(16, np.uint8)
    assert acl.rt.memcpy(ptr + 8, 16, data.ctypes.data, 16, H2D) == 107000
    complaint(acl, "use after free", HERE)
    assert acl.rt.memcpy(data.ctypes.data, 16, ptr, 16, D2H) == 107000
    assert acl.rt.memset(ptr, 16, 0, 16) == 107000
    complaint(acl, "use after free")


def test_freed_addresses_are_not_given_out_again(acl):
    ptr, _ = acl.rt.malloc(4096, 0)
    acl.rt.free(ptr)
    assert all(acl.rt.malloc(4096, 0)[0] != ptr for _ in range(20))


def test_wrong_kind_is_not_forgiven(acl):
    ptr, _ = acl.rt.malloc(64, 0)
    data = np.zeros(64, np.uint8)
    assert acl.rt.memcpy(ptr, 64, data.ctypes.data, 64, D2H) == 107000
    complaint(acl, "kind DEVICE_TO_HOST, but the destination is device memory")
    pinned, _ = acl.rt.malloc_host(64)
    assert acl.rt.memcpy(ptr, 64, pinned, 64, 3) == 107000
    complaint(acl, "DEVICE_TO_DEVICE", "pinned host memory")


def test_free_before_synchronisation(loaded):
    acl = loaded.acl
    ptr = acl.get_data_buffer_addr(loaded.buffers["logits"])
    assert launch(loaded) == 0
    loaded.executor.delay_s = 0
    assert acl.rt.free(ptr) == 107000
    complaint(acl, "freed before the stream that uses it was synchronised", "acl_loaded.py:")
    assert acl.update_data_buffer(loaded.buffers["logits"], ptr, 64) == 100000
    assert acl.destroy_data_buffer(loaded.buffers["logits"]) == 100000
    assert acl.mdl.destroy_dataset(loaded.ins) == 100000
    assert acl.mdl.unload(loaded.model) == 107037
    acl.get_recent_err_msg()
    assert acl.rt.synchronize_stream(loaded.stream) == 0
    assert acl.mdl.unload(loaded.model) == 0
    assert acl.mdl.destroy_dataset(loaded.ins) == 0
    assert acl.rt.free(ptr) == 0


def test_copying_under_a_running_model(loaded):
    acl = loaded.acl
    ptr = acl.get_data_buffer_addr(loaded.buffers["argmax"])
    data = np.zeros(2, np.int32)
    assert launch(loaded) == 0
    assert acl.rt.memcpy(data.ctypes.data, 8, ptr, 8, D2H) == 107000
    complaint(acl, "was not synchronised")
    assert acl.rt.memset(ptr, 8, 0, 8) == 107000
    assert acl.rt.synchronize_stream(loaded.stream) == 0
    assert acl.rt.memcpy(data.ctypes.data, 8, ptr, 8, D2H) == 0


def test_pinned_memory_of_a_queued_copy(acl):
    stream, _ = acl.rt.create_stream()
    pinned, _ = acl.rt.malloc_host(64)
    ptr, _ = acl.rt.malloc(64, 0)
    assert acl.rt.memcpy_async(ptr, 64, pinned, 64, H2D, stream) == 0
    assert acl.rt.free_host(pinned) == 107000
    event, _ = acl.rt.create_event()
    acl.rt.record_event(event, stream)
    assert acl.rt.synchronize_event(event) == 0  # an event counts as well
    assert acl.rt.free_host(pinned) == 0


def test_one_model_on_two_streams(loaded):
    acl = loaded.acl
    other, _ = acl.rt.create_stream()
    assert launch(loaded) == 0
    assert launch(loaded, other) == 107000
    complaint(acl, "one model runs on one stream at a time")
    event, _ = acl.rt.create_event()
    acl.rt.record_event(event, loaded.stream)
    acl.rt.stream_wait_event(other, event)
    assert launch(loaded, other) == 0
    # Waiting for the second stream vouches for the first.
    assert acl.rt.synchronize_stream(other) == 0
    assert acl.mdl.unload(loaded.model) == 0


def test_a_gear_must_not_change_under_a_run(tmp_path):
    gears = ({"T": 2, "B": 2, "R": 2}, {"T": 4, "B": 2, "R": 2})
    loaded = Loaded(tmp_path / "m.om", {"gears": gears, "extents": {"P": 8}}, checked=True)
    loaded.add_all({})
    loaded.add("ascend_mbatch_shape_data", 128)
    acl = loaded.acl
    dims = acl.mdl.get_input_dynamic_dims(loaded.desc, -1, 2)[0][0]
    assert acl.mdl.set_input_dynamic_dims(loaded.model, loaded.ins, 9, dims) == 0
    assert launch(loaded) == 0
    assert acl.mdl.set_input_dynamic_dims(loaded.model, loaded.ins, 9, dims) == 100000
    complaint(acl, "the gear changes while")
    assert acl.rt.synchronize_stream(loaded.stream) == 0
    assert acl.mdl.set_input_dynamic_dims(loaded.model, loaded.ins, 9, dims) == 0


def test_datasets_smaller_than_the_model(loaded):
    acl = loaded.acl
    ptr = acl.get_data_buffer_addr(loaded.buffers["input_ids"])
    acl.update_data_buffer(loaded.buffers["input_ids"], ptr, 4)
    assert launch(loaded) == 100000
    complaint(acl, "E13025", "input 0 (input_ids)", "4 bytes, the model needs 8")
    acl.update_data_buffer(loaded.buffers["input_ids"], ptr, 5000)
    assert launch(loaded) == 107000
    complaint(acl, "5000 bytes from", "leave device memory")
    acl.update_data_buffer(loaded.buffers["input_ids"], ptr + 4, 64)
    assert launch(loaded) == 107000
    complaint(acl, "is not a multiple of 64")
    acl.update_data_buffer(loaded.buffers["input_ids"], ptr, 64)
    assert launch(loaded) == 0


def test_destroyed_handles(acl):
    buffer = acl.create_data_buffer(0, 0)
    assert acl.destroy_data_buffer(buffer) == 0
    assert acl.destroy_data_buffer(buffer) == 100000
    complaint(acl, "not a live data buffer", "destroyed at")
    dataset = acl.mdl.create_dataset()
    assert acl.mdl.add_dataset_buffer(dataset, buffer) == (0, 100000)
    desc = acl.create_tensor_desc(0, [1], 2)
    acl.destroy_tensor_desc(desc)
    acl.get_recent_err_msg()
    acl.destroy_tensor_desc(desc)
    complaint(acl, "tensor desc")


def test_borrowed_descriptions_are_not_ours_to_destroy(loaded):
    acl = loaded.acl
    launch(loaded)
    acl.rt.synchronize_stream(loaded.stream)
    acl.destroy_tensor_desc(acl.mdl.get_dataset_tensor_desc(loaded.outs, 0))
    complaint(acl, "borrowed")


def test_leaks_are_listed_with_their_places(acl, caplog):
    acl.rt.malloc(4096, 0)
    acl.mdl.create_dataset()
    report = acl.ledger.report()
    assert "device memory" in report
    assert "of 4096 bytes made at test_acl_checked.py:" in report
    assert acl.ledger.live_counts() == {"device memory": 1, "dataset": 1}
    with caplog.at_level(logging.WARNING):
        assert acl.finalize() == 0
    assert report in caplog.text


def test_a_sound_run_has_no_complaint(loaded):
    assert launch(loaded) == 0
    assert loaded.acl.rt.synchronize_stream(loaded.stream) == 0
    assert loaded.acl.ledger.usage_errors == []
    assert samples.VOCAB == 16

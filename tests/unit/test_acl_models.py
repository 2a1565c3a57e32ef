"""Models on the host device: range, static and gear OMs, their sizes, shapes and codes."""

from __future__ import annotations

import acl_samples as samples
import numpy as np
import pytest
from acl_loaded import Loaded

from pagedom.runtime.acl import AclOptions, FaultPlan, HostAcl


@pytest.fixture
def ranged(tmp_path) -> Loaded:
    loaded = Loaded(tmp_path / "m.om", {})
    loaded.add_all({})
    return loaded


def test_description_of_a_range_model(ranged):
    mdl, desc = ranged.acl.mdl, ranged.desc
    assert mdl.get_num_inputs(desc) == 9
    assert mdl.get_num_outputs(desc) == 2
    assert mdl.get_input_dims(desc, 3) == (
        {"name": "block_table", "dimCount": 2, "dims": [-1, 8]},
        0,
    )
    assert mdl.get_input_size_by_index(desc, 3) == 0
    assert mdl.get_output_size_by_index(desc, 0) == 0
    assert mdl.get_input_data_type(desc, 4) == 9
    assert mdl.get_input_name_by_index(desc, 5) == "kv_lens"
    assert mdl.get_input_index_by_name(desc, "kv_lens") == (5, 0)
    assert mdl.get_input_index_by_name(desc, "nobody")[1] == 100000
    assert mdl.get_output_name_by_index(desc, 1) == "head:1:argmax"
    assert mdl.get_input_dims(desc, 99) == ({}, 100000)
    assert mdl.get_input_data_type(desc, 99) == -1
    assert mdl.get_cur_output_dims(desc, 0) == ({}, 200001)
    assert mdl.get_input_dynamic_gear_count(desc, -1) == (0, 0)
    assert mdl.query_size("nowhere.om")[2] == 145002
    assert mdl.query_size(ranged.path)[2] == 200001
    assert mdl.destroy_desc(desc) == 0
    assert mdl.destroy_desc(desc) == 100000


def test_a_range_run_and_its_output_shapes(ranged):
    ranged.shapes(tokens=5, seqs=2)
    assert ranged.acl.mdl.get_dataset_tensor_desc(ranged.outs, 0) == 0
    assert ranged.run() == 0, ranged.message()
    assert ranged.executor.shapes[:4] == [(5,), (5,), (5,), (2, 8)]
    desc = ranged.acl.mdl.get_dataset_tensor_desc(ranged.outs, 0)
    dims = [ranged.acl.get_tensor_desc_dim_v2(desc, i) for i in range(2)]
    assert dims == [(2, 0), (16, 0)]
    assert ranged.acl.get_tensor_desc_type(desc) == 0
    assert ranged.acl.get_tensor_desc_size(desc) == 2 * 16 * 4
    ranged.shapes(tokens=3, seqs=3)
    assert ranged.run() == 0
    assert ranged.executor.shapes[0] == (3,)


def test_wrong_shapes_of_a_range_model(ranged):
    assert ranged.run() == 100000
    assert "set_dataset_tensor_desc" in ranged.message()
    ranged.shapes(tokens=5, seqs=2)
    ranged.shape("block_table", (2, 7))
    assert ranged.run() == 100000
    assert "[2, 7]" in ranged.message()
    ranged.shape("block_table", (2,))
    assert ranged.run() == 100000
    ranged.shapes(tokens=5, seqs=2)
    ranged.shape("input_ids", (1025,))
    assert ranged.run() == 100000
    assert "4096 bytes, the model needs 4100" in ranged.message()
    ranged.shape("input_ids", (5,))
    assert ranged.run() == 0


def test_a_buffer_may_move_between_runs(ranged):
    ranged.shapes(tokens=1, seqs=1)
    assert ranged.run() == 0
    ptr, _ = ranged.acl.rt.malloc(64, 0)
    ids = np.array([9], np.int32)
    ranged.acl.rt.memcpy(ptr, 64, ids.ctypes.data, 4, 1)
    assert ranged.acl.update_data_buffer(ranged.buffers["input_ids"], ptr, 64) == 0
    assert ranged.acl.get_data_buffer_size_v2(ranged.buffers["input_ids"]) == 64
    assert ranged.run() == 0
    best = np.zeros(1, np.int32)
    out = ranged.acl.get_data_buffer_addr(ranged.buffers["argmax"])
    ranged.acl.rt.memcpy(best.ctypes.data, 4, out, 4, 2)
    assert best[0] == 10


def test_an_unchanged_dataset_is_resolved_once(ranged):
    seen = []
    real = ranged.executor.execute
    ranged.executor.execute = lambda ins, outs: (seen.append([*ins, *outs]), real(ins, outs))[1]
    ranged.shapes(tokens=1, seqs=1)
    assert ranged.run() == 0
    assert ranged.run() == 0
    assert all(a is b for a, b in zip(*seen))
    ranged.shape("kv_lens", (2,))
    assert ranged.run() == 0
    assert [i for i, (a, b) in enumerate(zip(seen[1], seen[2])) if a is not b] == [5]


def test_number_of_buffers(tmp_path):
    loaded = Loaded(tmp_path / "m.om", {})
    loaded.add("input_ids", 64)
    assert loaded.run() == 145000
    message = loaded.message()
    assert "E13025" in message
    assert "the dataset has 1, the model has 9" in message
    assert "kv_lens" in message


@pytest.mark.parametrize(("missing", "checked", "code"), [
    (64, False, 0),
    (65, False, 145000),
    (1, True, 145000),
])  # fmt: skip
def test_size_tolerance_of_static_models(tmp_path, missing, checked, code):
    static = {"T": 32, "B": 4, "R": 4, "P": 8}
    loaded = Loaded(tmp_path / "m.om", {"extents": static}, checked=checked)
    assert loaded.acl.mdl.get_input_size_by_index(loaded.desc, 0) == 128
    loaded.add_all({"input_ids": 128 - missing})
    assert loaded.run() == code
    if code:
        message = loaded.message()
        assert "E13025" in message
        assert "the model needs 128" in message
    else:
        assert loaded.executor.shapes[0] == (32,)


def test_null_and_host_buffers_are_refused(ranged):
    ranged.shapes(tokens=1, seqs=1)
    host = np.zeros(4096, np.uint8)
    for ptr in (host.ctypes.data, 0):
        ranged.acl.update_data_buffer(ranged.buffers["logits"], ptr, 4096)
        assert ranged.run() == 107000
        assert "output 0 (head:0:logits) must be device memory" in ranged.message()
    assert ranged.acl.create_data_buffer(0, 0)


def test_gear_calls_on_other_models(ranged):
    given = {"name": "", "dimCount": 1, "dims": [1]}
    assert ranged.acl.mdl.set_input_dynamic_dims(ranged.model, ranged.ins, 0, given) == 100019
    assert ranged.acl.mdl.set_dynamic_batch_size(ranged.model, ranged.ins, 0, 1) == 100019


def test_loading_fails_with_the_right_code(tmp_path):
    acl = HostAcl(AclOptions(executor="oracle", faults=FaultPlan(load={4: 545005})))
    acl.init()
    assert acl.mdl.load_from_file("nowhere.om") == (0, 107002)
    acl.rt.set_device(0)
    assert acl.mdl.load_from_file(str(tmp_path / "nowhere.om")) == (0, 145002)
    assert "nowhere.om" in acl.get_recent_err_msg()
    (tmp_path / "bad.om").write_bytes(b"x" * 300)
    assert acl.mdl.load_from_file(str(tmp_path / "bad.om")) == (0, 100013)
    path = samples.write_sample_om(tmp_path / "m.om")
    assert acl.mdl.load_from_file(path) == (0, 545001)
    assert "Sample" in acl.get_recent_err_msg()
    assert acl.mdl.load_from_file(path) == (0, 545005)
    assert acl.ledger.live_counts() == {}


def test_models_belong_to_their_context(ranged):
    acl = ranged.acl
    ranged.shapes(tokens=1, seqs=1)
    mine = acl.rt.get_context()[0]
    acl.rt.create_context(0)
    other, _ = acl.rt.create_stream()
    assert acl.mdl.execute_async(ranged.model, ranged.ins, ranged.outs, other) == 107004
    assert acl.mdl.execute_async(ranged.model, ranged.ins, ranged.outs, ranged.stream) == 107003
    assert acl.mdl.unload(ranged.model) == 107004
    acl.rt.set_context(mine)
    assert acl.mdl.unload(ranged.model) == 0
    assert ranged.executor.closed
    assert acl.mdl.unload(ranged.model) == 100011
    assert acl.mdl.execute_async(ranged.model, ranged.ins, ranged.outs, ranged.stream) == 100011


def test_errors_of_a_run_come_with_the_next_wait(ranged):
    acl = ranged.acl
    ranged.shapes(tokens=1, seqs=1)
    ranged.executor.fail_with = [507015]
    assert acl.mdl.execute_async(ranged.model, ranged.ins, ranged.outs, ranged.stream) == 0
    assert acl.rt.synchronize_stream(ranged.stream) == 507015
    assert "told to fail" in ranged.message()
    assert ranged.run() == 0


def test_synchronous_forms(ranged):
    mdl = ranged.acl.mdl
    ranged.shapes(tokens=1, seqs=1)
    assert mdl.execute(ranged.model, ranged.ins, ranged.outs) == 0
    config = mdl.create_exec_config_handle()
    assert mdl.set_exec_config_opt(config, 0, 10) == 0
    assert mdl.set_exec_config_opt(config, 2, 10) == 100000
    ranged.executor.delay_s = 0.1
    execute = mdl.execute_v2
    assert execute(ranged.model, ranged.ins, ranged.outs, ranged.stream, config) == 545601
    assert ranged.acl.rt.synchronize_stream(ranged.stream) == 0
    assert mdl.destroy_exec_config_handle(config) == 0


def test_other_ways_to_load(ranged, tmp_path):
    acl = ranged.acl
    path = str(tmp_path / "m.om")
    data = (tmp_path / "m.om").read_bytes()
    model, code = acl.mdl.load_from_mem(acl.util.bytes_to_ptr(data), len(data))
    assert code == 0
    assert acl.mdl.unload(model) == 0
    ptr, _ = acl.rt.malloc(len(data), 0)
    assert acl.mdl.load_from_mem(ptr, len(data)) == (0, 100000)
    assert "host memory" in ranged.message()
    config = acl.mdl.create_config_handle()
    assert acl.mdl.load_with_config(config) == (0, 100000)
    acl.mdl.set_config_opt(config, 1, 1)
    acl.mdl.set_config_opt(config, 2, path)
    model, code = acl.mdl.load_with_config(config)
    assert code == 0
    assert acl.mdl.destroy_config_handle(config) == 0
    desc = acl.mdl.create_desc()
    assert acl.mdl.get_desc_from_file(desc, path) == 0
    assert acl.mdl.get_num_inputs(desc) == 9


def test_old_size_call_truncates(ranged):
    acl = ranged.acl
    buffer = acl.create_data_buffer(1, (1 << 32) + 5)
    assert acl.get_data_buffer_size(buffer) == 5
    assert acl.get_data_buffer_size_v2(buffer) == (1 << 32) + 5


def test_a_dataset_frees_neither_buffers_nor_memory(ranged):
    acl = ranged.acl
    before = acl.ledger.live_counts()
    assert acl.mdl.get_dataset_num_buffers(ranged.ins) == 9
    assert acl.mdl.get_dataset_buffer(ranged.ins, 0) == ranged.buffers["input_ids"]
    assert acl.mdl.destroy_dataset(ranged.ins) == 0
    after = acl.ledger.live_counts()
    assert before["data buffer"] == after["data buffer"]
    assert before["device memory"] == after["device memory"]
    assert acl.mdl.destroy_dataset(ranged.ins) == 100000

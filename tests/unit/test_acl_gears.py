"""Gears on the host device: which one a run takes, what is written where, and codes."""

from __future__ import annotations

import time

import numpy as np
import pytest
from acl_loaded import Loaded

GEARS = ({"T": 4, "B": 4, "R": 4}, {"T": 64, "B": 4, "R": 4})


@pytest.fixture
def geared(tmp_path) -> Loaded:
    return Loaded(tmp_path / "m.om", {"gears": GEARS, "extents": {"P": 8}})


def test_gears(geared):
    mdl, desc = geared.acl.mdl, geared.desc
    assert mdl.get_num_inputs(desc) == 10
    assert mdl.get_input_index_by_name(desc, "ascend_mbatch_shape_data") == (9, 0)
    assert mdl.get_input_size_by_index(desc, 0) == 64 * 4
    assert mdl.get_output_size_by_index(desc, 0) == 4 * 16 * 4
    assert mdl.get_input_dynamic_gear_count(desc, -1) == (2, 0)
    assert mdl.get_input_dynamic_gear_count(desc, 0)[1] == 100000
    gears, code = mdl.get_input_dynamic_dims(desc, -1, 2)
    assert code == 0
    small = gears[0]["dims"]
    assert small == [4, 4, 4, 4, 8, 4, 4, 4, 8, 4, 1, 32, 8, 4, 1, 32]

    geared.add_all({})
    assert mdl.get_input_size_by_index(desc, 9) == 28
    shape_ptr = geared.add("ascend_mbatch_shape_data", 28)
    assert geared.run() == 0, geared.message()
    assert geared.executor.shapes[0] == (64,)  # the largest, if none is set
    assert mdl.get_cur_output_dims(desc, 0)[0]["dims"] == [4, 16]

    def choose(dims, index=9):
        given = {"name": "", "dimCount": len(dims), "dims": dims}
        return mdl.set_input_dynamic_dims(geared.model, geared.ins, index, given)

    assert choose(small) == 0
    assert geared.run() == 0
    assert geared.executor.shapes[0] == (4,)
    shape = np.zeros(7, np.int32)
    geared.acl.rt.memcpy(shape.ctypes.data, 28, shape_ptr, 28, 2)
    assert shape.tolist() == [4] * 7  # what stands for -1 in T, T, T, B, B, B and R
    assert choose([5, *small[1:]]) == 145013
    assert "is no gear" in geared.message()
    assert choose([*small[:-1], 33]) == 145012
    assert choose(small[:-1]) == 145012
    assert choose(small, index=0) == 145011


def set_gear(loaded: Loaded, gear: int, dataset: int = 0) -> int:
    gears, _ = loaded.acl.mdl.get_input_dynamic_dims(loaded.desc, -1, 2)
    return loaded.acl.mdl.set_input_dynamic_dims(
        loaded.model, dataset or loaded.ins, 9, gears[gear]
    )


def shape_buffer(loaded: Loaded, nbytes: int = 28) -> int:
    loaded.add_all({})
    return loaded.add("ascend_mbatch_shape_data", nbytes)


def ran(loaded: Loaded, dataset: int = 0) -> int:
    """T of the gear that a run takes."""
    loaded.ins = dataset or loaded.ins
    assert loaded.run() == 0, loaded.message()
    return loaded.executor.shapes[0][0]


def test_the_gear_is_what_the_shape_buffer_holds(geared):
    """Two datasets with one shape buffer have one gear; with a buffer each, a gear each."""
    acl = geared.acl
    first, other = geared.ins, acl.mdl.create_dataset()
    shape_buffer(geared)
    for index in range(10):
        acl.mdl.add_dataset_buffer(other, acl.mdl.get_dataset_buffer(first, index))
    assert set_gear(geared, 0, first) == 0
    assert ran(geared, other) == 4
    assert set_gear(geared, 1, other) == 0
    assert ran(geared, first) == 64
    own, _ = acl.rt.malloc(28, 0)
    third = acl.mdl.create_dataset()
    for index in range(9):
        acl.mdl.add_dataset_buffer(third, acl.mdl.get_dataset_buffer(first, index))
    acl.mdl.add_dataset_buffer(third, acl.create_data_buffer(own, 28))
    assert set_gear(geared, 0, third) == 0
    assert (ran(geared, first), ran(geared, third)) == (64, 4)
    # The state of the model is of the newest call, whichever dataset ran.
    assert acl.mdl.get_cur_output_dims(geared.desc, 0)[0]["dims"] == [4, 16]
    small = np.full(7, 4, np.int32)
    acl.rt.memcpy(acl.get_data_buffer_addr(acl.mdl.get_dataset_buffer(first, 9)), 28,
                  small.ctypes.data, 28, 1)  # fmt: skip
    assert ran(geared, first) == 4


def test_a_gear_set_under_a_queued_run_changes_that_run(geared):
    """A race on a chip; here the run that is set back always sees it."""
    shape_buffer(geared)
    assert set_gear(geared, 1) == 0
    geared.executor.delay_s = 0.1
    mdl, seen = geared.acl.mdl, []
    real = geared.executor.execute
    geared.executor.execute = lambda *given: seen.append(given[0][0].shape) or real(*given)
    for _ in range(2):
        assert mdl.execute_async(geared.model, geared.ins, geared.outs, geared.stream) == 0
    time.sleep(0.02)  # the first has begun, the second waits for it
    assert set_gear(geared, 0) == 0
    assert geared.acl.rt.synchronize_stream(geared.stream) == 0
    assert seen == [(64,), (4,)]


@pytest.mark.parametrize(("nbytes", "kind"), [(28, np.int32), (55, np.int32), (56, np.int64)])
def test_the_numbers_in_the_shape_buffer_are_as_wide_as_fits(geared, nbytes, kind):
    ptr = shape_buffer(geared, nbytes)
    assert set_gear(geared, 0) == 0
    found = np.zeros(7, kind)
    geared.acl.rt.memcpy(found.ctypes.data, found.nbytes, ptr, found.nbytes, 2)
    assert found.tolist() == [4] * 7
    assert ran(geared) == 4


def test_a_shape_buffer_that_is_too_small(geared):
    shape_buffer(geared, 27)
    assert set_gear(geared, 0) == 145012
    assert "has 27 bytes, the gear's 7 numbers need 4 each" in geared.message()


def test_buffers_of_a_gear_are_as_large_as_the_model_says_whatever_the_gear(geared):
    shape_buffer(geared)
    assert set_gear(geared, 0) == 0
    slots = geared.buffers["slot_mapping"]
    ptr = geared.acl.get_data_buffer_addr(slots)
    # A chip lets pass 64 bytes less than the model says; this gear would do with 16.
    for given, code in ((64 * 4 - 64, 0), (64 * 4 - 65, 145000), (64 * 4, 0)):
        geared.acl.update_data_buffer(slots, ptr, given)
        assert geared.run() == code


def test_checked_mode_wants_a_gear(tmp_path):
    loaded = Loaded(tmp_path / "m.om", {"gears": GEARS, "extents": {"P": 8}}, checked=True)
    shape_buffer(loaded)
    assert loaded.run() == 145013
    assert "the shape buffer holds no gear: call mdl.set_input_dynamic_dims" in loaded.message()
    assert set_gear(loaded, 0) == 0
    assert ran(loaded) == 4

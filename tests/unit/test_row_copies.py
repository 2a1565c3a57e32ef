"""Rows of a step to slots of the pool: an exact and shortest plan, copies on the stream."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pagedom.runtime.acl import AclError, AclOptions, FaultPlan, HostAcl
from pagedom.runtime.device import Device
from pagedom.runtime.row_copies import RowCopies, plan_runs

ROW = 24  # bytes: no multiple of anything


def listed(slots: list[int]) -> list[tuple[int, int, int]]:
    runs = plan_runs(np.array(slots, np.int32))
    return list(zip(runs.tokens.tolist(), runs.slots.tolist(), runs.lengths.tolist()))


def test_the_example_of_the_module():
    assert listed([40, 41, 42, 7, -1, 8]) == [(0, 40, 3), (3, 7, 1), (5, 8, 1)]


@pytest.mark.parametrize(
    ("slots", "runs"),
    [
        ([], []),
        ([-1], []),
        ([-1, -1, -1], []),
        ([0], [(0, 0, 1)]),
        ([-1, 0, 1], [(1, 0, 2)]),
        ([5, -1, -1, 6, 7, -1], [(0, 5, 1), (3, 6, 2)]),
        ([3, 2, 1], [(0, 3, 1), (1, 2, 1), (2, 1, 1)]),
        # Two pages of 4 that are neighbours are one copy, two that are not are two.
        ([4, 5, 6, 7, 8, 9], [(0, 4, 6)]),
        ([4, 5, 6, 7, 16, 17], [(0, 4, 4), (4, 16, 2)]),
        ([8, 9, 4, 5], [(0, 8, 2), (2, 4, 2)]),
    ],
)
def test_plans(slots, runs):
    assert listed(slots) == runs


slot_lists = st.lists(
    st.one_of(
        st.just([-1]),
        st.tuples(st.integers(0, 40), st.integers(1, 6)).map(lambda p: [*range(p[0], sum(p))]),
    ),
    max_size=12,
).map(lambda parts: [slot for part in parts for slot in part])


@given(slot_lists)
@example([-1, 0])
@example([0, -1, 1])
def test_every_real_slot_is_covered_once_and_no_other(slots):
    covered = [
        (token + place, slot + place)
        for token, slot, length in listed(slots)
        for place in range(length)
    ]
    assert covered == [(token, slot) for token, slot in enumerate(slots) if slot >= 0]


@given(slot_lists)
def test_no_two_runs_could_be_one(slots):
    runs = listed(slots)
    assert all(length > 0 for _, _, length in runs)
    for (token, slot, length), (next_token, next_slot, _) in pairwise(runs):
        assert (token + length, slot + length) != (next_token, next_slot)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rows_reach_their_slots_and_nothing_else(dtype):
    slots = np.array([9, 10, 3, -1, -1, 0, 11], dtype)
    acl = HostAcl(AclOptions(checked=True))
    with Device(acl) as device:
        rows = np.arange(1, 1 + slots.size * ROW, dtype=np.uint32).astype(np.uint8)
        source, pool = device.malloc(rows.nbytes), device.malloc(12 * ROW)
        device.write(source, rows)
        device.memset(pool, 12 * ROW, 0)
        RowCopies(device, source, pool, ROW, 12).queue(slots)
        with pytest.raises(AclError, match="was not synchronised"):
            device.memset(pool, 1, 0)  # they are on the stream
        device.synchronize()
        found = np.empty((12, ROW), np.uint8)
        device.read(found, pool)
        wanted = np.zeros_like(found)
        wanted[slots[slots >= 0]] = rows.reshape(-1, ROW)[slots >= 0]
        np.testing.assert_array_equal(found, wanted)
    assert acl.ledger.usage_errors[1:] == []


def test_padding_alone_copies_nothing():
    acl = HostAcl(AclOptions(checked=True, faults=FaultPlan(memcpy={1: 500003})))
    with Device(acl) as device:
        RowCopies(device, device.malloc(64), device.malloc(64), 8, 8).queue(np.array([-1, -1]))


def test_a_slot_outside_the_pool_is_refused_before_any_copy():
    with Device(HostAcl(AclOptions(checked=True))) as device:
        copies = RowCopies(device, device.malloc(64), device.malloc(64), 8, 8)
        with pytest.raises(IndexError, match="slot 8 is outside the page pool of 8 slots"):
            copies.queue(np.array([1, 6, 7, 8]))


def test_a_failing_copy_is_reported():
    acl = HostAcl(AclOptions(checked=True, faults=FaultPlan(memcpy={2: 507013})))
    with Device(acl) as device:
        copies = RowCopies(device, device.malloc(64), device.malloc(64), 8, 8)
        with pytest.raises(AclError, match="507013"):
            copies.queue(np.array([1, 4, 6]))
        device.synchronize()

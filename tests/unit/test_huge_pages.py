"""Large pages: which memory is meant, and that asking for them changes no byte."""

from __future__ import annotations

import doctest
import mmap
import sys

import numpy as np
import pytest

from pagedom.runtime.acl.executors import huge_pages

LARGE = 2 << 20


def test_examples() -> None:
    assert doctest.testmod(huge_pages).failed == 0


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ([], [(0, 4 * LARGE)], [(0, 4 * LARGE)]),
        ([(0, 4 * LARGE)], [(0, 4 * LARGE)], []),
        ([(0, LARGE)], [(0, 5 * LARGE)], [(LARGE, 5 * LARGE)]),
        ([(2 * LARGE, 3 * LARGE)], [(0, 5 * LARGE)], [(0, 2 * LARGE), (3 * LARGE, 5 * LARGE)]),
        ([], [(1, 2 * LARGE)], []),
    ],
)
def test_added_areas(before: list, after: list, wanted: list) -> None:
    assert huge_pages.added(before, after) == wanted


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_new_memory_is_found_and_keeps_its_content() -> None:
    before = huge_pages.anonymous_areas()
    block = mmap.mmap(-1, 16 * LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(block, np.uint32)
    array[:] = np.arange(array.size)
    first = array.ctypes.data
    areas = huge_pages.added(before, huge_pages.anonymous_areas())
    assert any(start < first + 8 * LARGE < end for start, end in areas)
    thread = huge_pages.collapse_in_background(before)
    assert thread is not None
    thread.join(20)
    assert not thread.is_alive()
    np.testing.assert_array_equal(array, np.arange(array.size))

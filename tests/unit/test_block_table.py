"""Rows of a block table end with the null page, whatever was there before."""

from __future__ import annotations

import numpy as np
import pytest

from pagedom.runtime.block_table import ROW_ALIGNMENT, BlockTable, table_width


def fill(table: BlockTable, row: int, *pages: int) -> None:
    start = int(table.num_pages[row])
    columns = np.arange(start, start + len(pages))
    table.append(np.full(len(pages), row), columns, np.array(pages, np.int32))


@pytest.mark.parametrize(
    ("tokens", "size", "aligned", "width"),
    [(64, 4, False, 16), (65, 4, False, 17), (65, 4, True, 32)],
)
def test_width(tokens, size, aligned, width):
    assert table_width(tokens, size, ROW_ALIGNMENT if aligned else 1) == width


def test_append_clear_and_pages():
    table = BlockTable(2, 4)
    fill(table, 1, 5, 6)
    fill(table, 1, 9)
    assert table.pages(1).tolist() == [5, 6, 9]
    table.clear(1)
    assert table.pages(1).size == 0
    assert not table.ids.any()


def test_a_moved_row_leaves_no_tail():
    """Case 16: a short row moved over a long one."""
    table = BlockTable(2, 6)
    fill(table, 0, 1, 2, 3, 4, 5, 6)
    fill(table, 1, 7, 8)
    table.move(1, 0)
    assert table.ids.tolist() == [[7, 8, 0, 0, 0, 0], [0] * 6]
    assert table.num_pages.tolist() == [2, 0]

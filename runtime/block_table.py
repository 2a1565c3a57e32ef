"""Block tables: the page ids of each running sequence, one row a sequence.

    row b   [ p0 p1 p2 | 0 0 0 0 ]      int32 [max_rows, M]
              num_pages  null pages

A device reads the whole width of a row, so the tail of a row is the null page at all times: a row
that a longer sequence used before must not leave its page ids behind.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .page_pool import NULL_PAGE, PageIds, pages_for

ROW_ALIGNMENT = 32  # int32 elements: 128 bytes, one burst of the Ascend cores


def table_width(max_seq_len: int, page_size: int, align: int = 1) -> int:
    """Return M, the most pages of one sequence, rounded up to a multiple of `align`."""
    return -(-pages_for(max_seq_len, page_size) // align) * align


class BlockTable:
    """Page ids by row; entries past `num_pages[row]` are always the null page."""

    def __init__(self, max_rows: int, width: int) -> None:
        """Make an empty table of `max_rows` rows of `width` pages."""
        self.ids = np.full((max_rows, width), NULL_PAGE, np.int32)  # [max_rows, M]
        self.num_pages = np.zeros(max_rows, np.int32)  # [max_rows]

    @property
    def width(self) -> int:
        """M: pages a row can hold."""
        return self.ids.shape[1]

    def pages(self, row: int) -> PageIds:
        """Return a view of the pages that `row` holds."""
        return self.ids[row, : self.num_pages[row]]

    def append(
        self, rows: npt.NDArray[np.intp], columns: npt.NDArray[np.intp], ids: PageIds
    ) -> None:
        """Write `ids` at (rows, columns); the columns of a row follow its last page, ascending."""
        self.ids[rows, columns] = ids
        np.add.at(self.num_pages, rows, 1)

    def clear(self, row: int) -> None:
        """Reset `row` to the null page."""
        self.ids[row, : self.num_pages[row]] = NULL_PAGE
        self.num_pages[row] = 0

    def move(self, source: int, target: int) -> None:
        """Copy row `source` over row `target` and clear the source."""
        used = max(int(self.num_pages[source]), int(self.num_pages[target]))
        self.ids[target, :used] = self.ids[source, :used]
        self.num_pages[target] = self.num_pages[source]
        self.clear(source)

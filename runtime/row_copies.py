"""New rows of a step, copied on the device to their slots of the page pool.

    new_rows      row of token 0 | 1 | 2 | 3 | 4 | 5        [T, L, 2, K, D], output of the model
    slot_mapping           40  41  42   7  -1   8
    kv_rows_pool  slot     ... 7 8 ... 40 41 42 ...         [P, S, L, 2, K, D]

    copies        tokens 0-2 -> slots 40-42,   3 -> 7,   5 -> 8

For chips with no operator that writes into a graph input (docs/design/acl.md). A token of all
layers is one block of memory in both, so a run of tokens whose slots follow each other is one copy:
a chunk of a prompt inside a page, or across pages that happen to be neighbours; a decode token is
one copy. Padding (slot < 0) is not copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .acl.constants import MemcpyKind
from .device import Device

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowRuns:
    """Runs of neighbouring tokens whose slots are neighbours too: int64 [runs] each."""

    tokens: Ints  # first token of each run
    slots: Ints  # first slot
    lengths: Ints  # tokens


def plan_runs(slot_mapping: npt.NDArray[Any]) -> RowRuns:
    """Return the fewest runs that cover every token with a slot >= 0, in order of the tokens."""
    slots = slot_mapping.astype(np.int64)
    # A run starts where the slot before is not the one to the left.
    starts = slots >= 0
    starts[1:] &= slots[1:] != slots[:-1] + 1
    # The slot after -1 is 0, which looks like a neighbour.
    starts[1:] |= (slots[1:] == 0) & (slots[:-1] < 0)
    tokens = np.flatnonzero(starts)
    real = np.cumsum(slots >= 0)
    before = real[tokens] - 1  # real tokens before each run
    lengths = np.diff(before, append=real[-1] if real.size else 0)
    return RowRuns(tokens, slots[tokens], lengths)


class RowCopies:
    """Copies rows from the model's output to the pool, on the device's own stream."""

    def __init__(self, device: Device, source: int, pool: int, row_bytes: int, slots: int) -> None:
        """Take device pointers of `new_rows` and of the pool, which has `slots` rows."""
        self._device = device
        self._source, self._pool = source, pool
        self._row_bytes, self._slots = row_bytes, slots

    def queue(self, slot_mapping: npt.NDArray[Any]) -> None:
        """Queue the copies of a step behind its execution: int [T], -1 = no slot.

        Raises IndexError for a slot outside the pool, AclError if a copy is refused.
        """
        runs = plan_runs(slot_mapping)
        if not runs.tokens.size:
            return
        last = int((runs.slots + runs.lengths).max()) - 1
        if last >= self._slots:
            raise IndexError(f"slot {last} is outside the page pool of {self._slots} slots")
        row = self._row_bytes
        self._device.copy_each_async(
            (self._pool + runs.slots * row).tolist(),
            (self._source + runs.tokens * row).tolist(),
            (runs.lengths * row).tolist(),
            MemcpyKind.DEVICE_TO_DEVICE,
        )

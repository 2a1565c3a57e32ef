"""The checks of a packed batch that are cheap enough for every step.

They look at extremes alone: a slot, length, page or row outside of what the model and the pool have
would make a device read or write memory of somebody else. What they find is told in full by
`batch_validator`, which checks every rule and is otherwise run in checked mode only.

An argmax of a short integer array costs 0.2 us where a max costs 1 us (numpy's reduction has more
to set up), and this runs in every step: hence `item(argmax())`. Sections are looked at as unsigned,
so that one comparison also finds what is negative.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from .batch_validator import BatchError, BatchSnapshot, Violation, check_batch
from .packed_batch import PackedBatch
from .page_pool import NOBODY, PagePool
from .sequences import SequenceRows
from .step import Step

Ints = npt.NDArray[Any]
_ZERO: Ints = np.zeros(1, np.uint32)


class BatchBounds:
    """Checks one staging batch; keeps views of its sections, so a step makes no new ones."""

    def __init__(self, batch: PackedBatch, num_pages: int) -> None:
        """Prepare for the batch of a model with `num_pages` pages."""
        limits = batch.layout.limits
        self._sections: dict[str, Ints] = {}
        for section in batch.layout.sections:
            end = section.offset + section.elements * section.dtype.itemsize
            unsigned = np.dtype(f"u{section.dtype.itemsize}")
            self._sections[section.source] = batch.buffer[section.offset : end].view(unsigned)
        # A source that the model does not read is one zero, which holds. The views of a step are
        # kept until its extents change, because most steps are of the size of the last one.
        self._slots = self._step_slots = self._sections.get("slot_mapping", _ZERO)
        # Lengths are of sequences, or of tokens where each token is a sequence to the model.
        self._token_lens = "kv_lens" not in self._sections
        lens = "token_lens" if self._token_lens else "kv_lens"
        self._lens = self._step_lens = self._sections.get(lens, _ZERO)
        self._extents = (-1, -1)
        self._first_slot = limits.page_size  # page 0 is the null page
        self._last_slot = num_pages * limits.page_size - 1
        self._longest = limits.table_width * limits.page_size
        self._num_pages = num_pages

    def hold(self, batch: PackedBatch, step: Step) -> bool:
        """Whether the batch of `step` is within its bounds."""
        extents = (batch.num_tokens, batch.num_seqs)
        if extents != self._extents:
            self._extents = extents
            self._step_slots = self._slots[: batch.num_tokens]
            count = batch.num_tokens if self._token_lens else batch.num_seqs
            self._step_lens = self._lens[:count]
        slots, lens = self._step_slots, self._step_lens
        return bool(
            slots.item(slots.argmax()) <= self._last_slot
            and lens.item(lens.argmax()) <= self._longest
            # A step of decode rows alone copies what earlier steps have left, one token further.
            and (not step.chunks or self._chunks_hold(batch, slots))
        )

    def explain(
        self, batch: PackedBatch, step: Step, rows: SequenceRows, pool: PagePool
    ) -> NoReturn:
        """Raise BatchError with every violation of every rule of a batch that does not hold."""
        check_batch(BatchSnapshot.of(batch, step, rows, pool))
        text = "a slot, length, page or row is out of bounds, and no single rule says which"
        raise BatchError([Violation("bounds", 0, None, 0, NOBODY, text)])

    def _chunks_hold(self, batch: PackedBatch, slots: Ints) -> bool:
        if "slot_mapping" in self._sections and slots.item(slots.argmin()) < self._first_slot:
            return False
        table = batch.table().view(np.uint32)
        if table.item(table.argmax()) >= self._num_pages:
            return False
        ends = self._sections.get("seq_ends")
        if ends is not None and ends.item(batch.num_seqs - 1) != batch.num_tokens:
            return False
        seqs = self._sections.get("token_seqs", _ZERO)[: batch.num_tokens]
        if seqs.item(seqs.argmax()) >= batch.num_seqs:
            return False
        wanted = self._sections.get("logits_rows", _ZERO)[: batch.num_logits]
        return int(wanted.item(wanted.argmax())) < batch.num_tokens

"""The small inputs of one step, packed without padding into one staging buffer.

    | input_ids | positions | slot_mapping | cu_seqlens | … | kv_lens | … | logits_rows | table |

Every section starts at a multiple of 64 bytes, with the gap behind it that CANN wants between
blocks of one allocation, and has room for the largest step, so addresses never change, nothing is
allocated in a step, and one host-to-device copy moves the step: the block table is last, so the
copy ends where the step's table ends.

Meaning (T tokens, B sequences, R rows of logits, M pages a sequence):

| source       | shape | content                                                          |
|--------------|-------|------------------------------------------------------------------|
| input_ids    | [T]   | tokens, sequence after sequence                                  |
| positions    | [T]   | place of each token in its own sequence                          |
| slot_mapping | [T]   | page * S + offset where its K and V go; -1 writes nothing        |
| block_table  | [B,M] | pages of each sequence, then the null page                       |
| cu_seqlens   | [B+1] | cumulative QUERY lengths of this step: starts with 0, ends with T|
| seq_ends     | [B]   | cu_seqlens without its 0: what FusedInferAttentionScore wants    |
| kv_lens      | [B]   | tokens visible to each sequence, this step's included            |
| token_seqs   | [T]   | row of each token's sequence in the table                        |
| token_lens   | [T]   | tokens visible to each token: its position + 1                   |
| logits_rows  | [R]   | the tokens whose logits are wanted                               |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .dtypes import dtype as dtype_of
from .page_pool import NULL_PAGE
from .sequences import SequenceRows
from .step import Step

SECTION_ALIGNMENT = 64  # bytes
# A block that is carved from an allocation is as long as CANN's own: its length rounded up to 32,
# and 32 more, which a kernel may read.
_BLOCK_ROUNDING, _BLOCK_GUARD = 32, 32

DEFAULT_DTYPES = MappingProxyType(
    {
        "input_ids": "int32",
        "positions": "int32",
        "slot_mapping": "int32",
        "cu_seqlens": "int32",
        "seq_ends": "int64",
        "kv_lens": "int32",
        "token_seqs": "int32",
        "token_lens": "int64",
        "logits_rows": "int32",
        "block_table": "int32",
    }
)
SOURCES = tuple(DEFAULT_DTYPES)  # in the order of the sections
_PER_TOKEN = frozenset({"input_ids", "positions", "slot_mapping", "token_seqs", "token_lens"})


class SourceBinding(Protocol):
    """What a manifest says about one input; see `artifact.Binding`."""

    @property
    def source(self) -> str:
        """Name of the source."""

    @property
    def dtype(self) -> str:
        """Name of the element type."""


def step_symbols(tokens: int, seqs: int, logits: int) -> dict[str, int]:
    """Return the numbers behind the symbols that change from step to step."""
    return {"T": tokens, "B": seqs, "B+1": seqs + 1, "R": logits}


@dataclass(frozen=True)
class BatchLimits:
    """The largest step: `max_tokens` T, `max_seqs` B (and R), `table_width` M, page size S."""

    max_tokens: int
    max_seqs: int
    table_width: int
    page_size: int

    @property
    def symbols(self) -> dict[str, int]:
        """The number behind each symbol of a shape, in the largest step."""
        step = step_symbols(self.max_tokens, self.max_seqs, self.max_seqs)
        return {**step, "M": self.table_width, "S": self.page_size}

    def capacity(self, source: str) -> int:
        """Return the most elements of a source."""
        if source in _PER_TOKEN:
            return self.max_tokens
        if source == "block_table":
            return self.max_seqs * self.table_width
        return self.max_seqs + 1 if source == "cu_seqlens" else self.max_seqs


@dataclass(frozen=True)
class Section:
    """Where one source lies in the staging buffer."""

    source: str
    dtype: np.dtype[Any]
    offset: int  # bytes
    elements: int


@dataclass(frozen=True)
class BatchLayout:
    """The sections of a staging buffer, in address order."""

    limits: BatchLimits
    sections: tuple[Section, ...]
    nbytes: int

    @classmethod
    def of(
        cls, limits: BatchLimits, bindings: Iterable[SourceBinding] | None = None
    ) -> BatchLayout:
        """Lay out the sources that `bindings` name, or all of them with their default dtypes.

        Bindings of other sources (the caches) are not part of a batch and are passed over.
        """
        dtypes = dict(DEFAULT_DTYPES)
        if bindings is not None:
            dtypes = {b.source: b.dtype for b in bindings if b.source in DEFAULT_DTYPES}
        sections, offset = [], 0
        for source in SOURCES:
            if source not in dtypes:
                continue
            row = dtype_of(dtypes[source])
            elements = limits.capacity(source)
            sections.append(Section(source, row.numpy, offset, elements))
            block = _round_up(elements * row.itemsize, _BLOCK_ROUNDING) + _BLOCK_GUARD
            offset += _round_up(block, SECTION_ALIGNMENT)
        return cls(limits, tuple(sections), offset)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class PackedBatch:
    """One staging buffer and the views of the step that it holds."""

    def __init__(self, layout: BatchLayout, buffer: npt.NDArray[np.uint8] | None = None) -> None:
        """Use `buffer` (uint8, at least layout.nbytes long, aligned to 64) or an own one."""
        self.layout = layout
        self.buffer = aligned_buffer(layout.nbytes) if buffer is None else buffer
        if self.buffer.nbytes < layout.nbytes:
            raise ValueError(
                f"staging buffer of {self.buffer.nbytes} bytes, but the largest step needs "
                f"{layout.nbytes} (T={layout.limits.max_tokens}, B={layout.limits.max_seqs}, "
                f"M={layout.limits.table_width})"
            )
        self.num_tokens = 0  # T
        self.num_seqs = 0  # B
        self.num_logits = 0  # R
        self._full: dict[str, npt.NDArray[Any]] = {}
        self._sections = {section.source: section for section in layout.sections}
        for section in layout.sections:
            end = section.offset + section.elements * section.dtype.itemsize
            self._full[section.source] = self.buffer[section.offset : end].view(section.dtype)
        limits = layout.limits
        self._ramp = np.arange(max(limits.max_tokens, limits.max_seqs) + 1, dtype=np.int32)
        # A table is needed to find slots even where the model does not read one.
        table = self._full.get("block_table")
        if table is None:
            table = np.zeros(limits.capacity("block_table"), np.int32)
        self._table: npt.NDArray[np.int32] = table

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources that this batch holds."""
        return tuple(self._full)

    @property
    def nbytes(self) -> int:
        """Bytes from the start of the buffer that the step uses: what has to be copied."""
        last = self.layout.sections[-1]
        return last.offset + self.extent(last.source) * last.dtype.itemsize

    def offset(self, source: str) -> int:
        """Return where a source starts in the buffer, in bytes."""
        return self._section(source).offset

    def extent(self, source: str) -> int:
        """Return how many elements of a source the step uses."""
        if source in _PER_TOKEN:
            return self.num_tokens
        if source == "block_table":
            return self.num_seqs * self.layout.limits.table_width
        if source == "logits_rows":
            return self.num_logits
        return self.num_seqs + 1 if source == "cu_seqlens" else self.num_seqs

    def view(self, source: str) -> npt.NDArray[Any]:
        """Return the step's part of a source, in its shape."""
        self._section(source)
        flat = self._full[source][: self.extent(source)]
        if source == "block_table":
            return flat.reshape(self.num_seqs, self.layout.limits.table_width)
        return flat

    def fill(self, step: Step, rows: SequenceRows) -> None:
        """Write the inputs of `step`; the rows of its admissions must be prepared."""
        self.num_tokens = step.num_tokens
        self.num_seqs = step.num_seqs
        self._fill_table(step, rows)
        self._fill_decode(step, rows)
        if not step.chunks:
            self.num_logits = step.num_decode
            self._put("cu_seqlens", self._ramp[: step.num_decode + 1])
            self._put("seq_ends", self._ramp[1 : step.num_decode + 1])
            self._put("logits_rows", self._ramp[: step.num_decode])
            return
        self._fill_chunks(step, rows)

    def pad(self, num_tokens: int, num_seqs: int, num_logits: int) -> None:
        """Pad the step to a gear: a dummy sequence on the null page, then empty sequences.

        See `gears`. The caller has checked that a row is free where padding tokens are.
        """
        t, b, r = self.num_tokens, self.num_seqs, self.num_logits
        dummy = num_tokens - t
        self.num_tokens, self.num_seqs, self.num_logits = num_tokens, num_seqs, num_logits
        self.table()[b:] = NULL_PAGE
        limits = self.layout.limits
        visible = min(dummy, limits.table_width * limits.page_size)
        for source, start, end, values in (
            ("input_ids", t, num_tokens, 0),
            ("positions", t, num_tokens, self._ramp[:dummy] % max(visible, 1)),
            ("slot_mapping", t, num_tokens, -1),
            ("cu_seqlens", b + 1, num_seqs + 1, num_tokens),
            ("seq_ends", b, num_seqs, num_tokens),
            ("kv_lens", b, num_seqs, 0),
            ("kv_lens", b, min(b + 1, num_seqs), visible),
            ("token_seqs", t, num_tokens, b),
            ("token_lens", t, num_tokens, 1),
            ("logits_rows", r, num_logits, 0),
        ):
            if source in self._full:
                self._full[source][start:end] = values

    def table(self) -> npt.NDArray[np.int32]:
        """Return the step's block table, also where the model does not read one: int32 [B,M]."""
        width = self.layout.limits.table_width
        return self._table[: self.num_seqs * width].reshape(self.num_seqs, width)

    def _fill_table(self, step: Step, rows: SequenceRows) -> None:
        table = self.table()
        table[: step.num_decode] = rows.table.ids[step.decode]
        for i, chunk in enumerate(step.chunks, step.num_decode):
            table[i] = rows.table.ids[chunk.row]
        if step.pages.ids.size:
            table[step.pages.seqs, step.pages.columns] = step.pages.ids

    def _fill_decode(self, step: Step, rows: SequenceRows) -> None:
        n = step.num_decode
        if not n:
            return
        at = step.decode
        computed = rows.num_computed[at]
        self._put("input_ids", rows.last_token[at])
        self._put("positions", computed)
        slots = self._full.get("slot_mapping")
        if slots is not None:
            slots[:n] = rows.next_slot[at]
            if step.pages.ids.size:
                # A sequence that takes a page in a decode step writes its first slot.
                new = step.pages.seqs < n
                page_size = self.layout.limits.page_size
                slots[step.pages.seqs[new]] = step.pages.ids[new] * page_size
        self._put("token_seqs", self._ramp[:n])
        for source in ("kv_lens", "token_lens"):
            lens = self._full.get(source)
            if lens is not None:
                np.add(computed, 1, out=lens[:n], casting="same_kind")

    def _fill_chunks(self, step: Step, rows: SequenceRows) -> None:
        n, page_size = step.num_decode, self.layout.limits.page_size
        table, full = self.table(), self._full
        ends = list(range(1, n + 1))
        logits = list(range(n))
        at = n
        for i, chunk in enumerate(step.chunks, n):
            stop = at + chunk.width
            positions = self._ramp[: chunk.width] + chunk.start
            if "input_ids" in full:
                ids = full["input_ids"][at:stop]
                ids[: chunk.length] = rows.tokens[
                    chunk.row, chunk.start : chunk.start + chunk.length
                ]
                ids[chunk.length :] = 0
            if "positions" in full:
                full["positions"][at:stop] = positions
            if "slot_mapping" in full:
                pages = table[i, positions // page_size]
                full["slot_mapping"][at:stop] = pages * page_size + positions % page_size
            if "kv_lens" in full:
                full["kv_lens"][i] = chunk.start + chunk.width
            if "token_seqs" in full:
                full["token_seqs"][at:stop] = i
            if "token_lens" in full:
                np.add(positions, 1, out=full["token_lens"][at:stop], casting="same_kind")
            if chunk.samples:
                logits.append(at + chunk.length - 1)
            ends.append(stop)
            at = stop
        # A model does not like zero rows of logits: ask for one and ignore it.
        logits = logits or [at - 1]
        self.num_logits = len(logits)
        self._put("cu_seqlens", np.array([0, *ends], np.int32))
        self._put("seq_ends", np.array(ends, np.int32))
        self._put("logits_rows", np.array(logits, np.int32))

    def _put(self, source: str, values: npt.NDArray[np.int32]) -> None:
        section = self._full.get(source)
        if section is not None:
            section[: values.size] = values

    def _section(self, source: str) -> Section:
        try:
            return self._sections[source]
        except KeyError:
            raise KeyError(
                f"source {source!r} is not part of this batch, which holds "
                f"{', '.join(self._full)}: the artefact's manifest does not bind it"
            ) from None


def aligned_buffer(nbytes: int, alignment: int = SECTION_ALIGNMENT) -> npt.NDArray[np.uint8]:
    """Return a zeroed uint8 array whose address is a multiple of `alignment`."""
    raw = np.zeros(nbytes + alignment, np.uint8)
    shift = -raw.ctypes.data % alignment
    return raw[shift : shift + nbytes]

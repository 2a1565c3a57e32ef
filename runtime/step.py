"""A planned step: which tokens of which sequences one execution of the model computes.

    sequences of a step, in packed order
    [ decode rows, one token each | chunks: a part of a sequence's pending tokens each ]

A chunk may be wider than its tokens (`width > length`): only the padded baseline does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .request import Request

Index = npt.NDArray[np.intp]
NO_INDEX: Index = np.empty(0, np.intp)
NO_PAGES: npt.NDArray[np.int32] = np.empty(0, np.int32)


@dataclass(frozen=True)
class Chunk:
    """Tokens start .. start+length-1 of a sequence, in a segment of `width` tokens."""

    request: Request
    row: int
    start: int
    length: int
    width: int
    samples: bool  # the chunk ends with the last known token, so a new token follows


@dataclass(frozen=True)
class NewPages:
    """Pages that the step's sequences take: page `ids[i]` at (`seqs[i]`, `columns[i]`)."""

    seqs: Index  # index of the sequence in the step
    rows: Index  # its row
    columns: Index
    ids: npt.NDArray[np.int32]


NO_NEW_PAGES = NewPages(NO_INDEX, NO_INDEX, NO_INDEX, NO_PAGES)


@dataclass(frozen=True)
class Step:
    """What `plan` decided. It fits, and it is valid until the scheduler's `version` changes."""

    version: int
    decode: slice | Index  # rows that compute one token
    num_decode: int
    chunks: tuple[Chunk, ...] = ()
    pages: NewPages = NO_NEW_PAGES
    admitted: tuple[Request, ...] = ()  # they get rows count, count + 1, …
    preempted: tuple[int, ...] = ()  # rows that go back to the queue, youngest first
    contiguous: bool = False  # pages of admissions are runs, see `PagePool.take_run`

    @property
    def num_seqs(self) -> int:
        """B of this step."""
        return self.num_decode + len(self.chunks)

    @property
    def num_tokens(self) -> int:
        """T of this step, padding included."""
        return self.num_decode + sum(chunk.width for chunk in self.chunks)

    @property
    def num_real_tokens(self) -> int:
        """Tokens of this step that belong to a sequence."""
        return self.num_decode + sum(chunk.length for chunk in self.chunks)

    @property
    def sampling_rows(self) -> Index:
        """Rows that get a new token, in packed order: decode rows first."""
        rows = _decode_index(self.decode)
        chunks = [chunk.row for chunk in self.chunks if chunk.samples]
        return np.concatenate([rows, np.array(chunks, np.intp)]) if chunks else rows


def _decode_index(decode: slice | Index) -> Index:
    return np.arange(decode.stop, dtype=np.intp) if isinstance(decode, slice) else decode

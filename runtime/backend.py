"""What the engine asks of a device with a loaded model; tests put a closed-form model here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .kv_cache import KvCacheSpec
from .packed_batch import BatchLayout, PackedBatch, SourceBinding


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a compiled model, from its manifest.

    bindings: its inputs; None means every source with its default dtype. table_width is M;
    max_batch the largest B it was compiled for, 0 = any. gear_tokens, gear_seqs: T and B of its
    largest gears, which the staging buffer must hold; 0 = it has none. num_pages: P, if it was
    compiled in; 0 = any.
    """

    vocab_size: int
    max_seq_len: int
    table_width: int
    cache: KvCacheSpec
    eos_ids: tuple[int, ...] = ()
    bindings: Sequence[SourceBinding] | None = None
    max_batch: int = 0
    gear_tokens: int = 0
    gear_seqs: int = 0
    num_pages: int = 0


class DeviceLostError(RuntimeError):
    """The device cannot compute any more: it hangs, or it reported damage; the cause is chained.

    After it an engine ends every request and closes. Any other error of a Backend concerns one
    step alone.
    """


class StepOutput(Protocol):
    """What one execution computed; valid until the next launch."""

    def argmax(self) -> npt.NDArray[np.int32] | None:
        """Return the most probable token of each row of logits, if the model has it: int32 [R]."""

    def logits(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
        """Return these rows of the logits: float32 [n, V]."""


class Backend(Protocol):
    """A device and a model; all methods but `geometry` are called on the engine's own thread.

    `launch` and `wait` raise DeviceLostError when no later step can work either.
    """

    @property
    def geometry(self) -> ModelFacts:
        """Facts of the model, known before `open`."""

    @property
    def num_pages(self) -> int:
        """Pages of the opened cache, the null page included."""

    def open(self, num_pages: int, layout: BatchLayout, least_pages: int = 0) -> PackedBatch:
        """Load the model, allocate the cache, return the staging batch.

        The cache has `num_pages` pages; with least_pages above 0 as many as fit will do, if those.
        """

    def launch(self, batch: PackedBatch) -> None:
        """Start one execution; returns before it ends."""

    def wait(self) -> StepOutput:
        """Wait for the execution in progress."""

    def close(self) -> None:
        """Free everything."""

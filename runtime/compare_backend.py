"""Two models behind one engine: every step runs on both, and the first one's tokens go on.

The engine packs a step once, into a batch with every source; each side gets a copy in its own
layout and dtypes and pads it to its own gears. So prompts, pages, slots and order are the same,
and whatever differs is the model, the executor or the lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .backend import ModelFacts, StepOutput
from .compare_tap import ReadableBackend
from .packed_batch import BatchLayout, PackedBatch

OnStep = Callable[[PackedBatch, StepOutput, StepOutput], None]


class CompareError(ValueError):
    """Two sides that cannot be compared; says which fact differs."""


class TwinBackend:
    """Runs each step on two backends and tells `on_step` about it."""

    def __init__(self, first: ReadableBackend, second: ReadableBackend, on_step: OnStep) -> None:
        self._sides = (first, second)
        self._facts = common_facts(first.geometry, second.geometry)
        self._batches: list[PackedBatch] = []
        self._batch: PackedBatch | None = None
        self._on_step = on_step

    @property
    def geometry(self) -> ModelFacts:
        """What both sides can do."""
        return self._facts

    @property
    def num_pages(self) -> int:
        """Pages of each side's cache."""
        return self._sides[0].num_pages

    def open(self, num_pages: int, layout: BatchLayout, least_pages: int = 0) -> PackedBatch:
        """Open both sides; on an error both are closed."""
        try:
            for side in self._sides:
                self._batches.append(side.open(num_pages, _layout_of(side, layout)))
        except BaseException:
            self.close()
            raise
        return PackedBatch(layout)

    def launch(self, batch: PackedBatch) -> None:
        """Start the step on the first side; the second one follows in `wait`."""
        self._batch = batch
        for copy in self._batches:
            copy_step(batch, copy)
        self._sides[0].launch(self._batches[0])

    def wait(self) -> StepOutput:
        """Run the second side as well and return the first one's output."""
        first = self._sides[0].wait()
        self._sides[1].launch(self._batches[1])
        second = self._sides[1].wait()
        if self._batch is None:
            raise RuntimeError("wait() without launch()")
        self._on_step(self._batch, first, second)
        return first

    def close(self) -> None:
        """Close both sides, the second even if the first fails."""
        try:
            self._sides[0].close()
        finally:
            self._sides[1].close()


def common_facts(first: ModelFacts, second: ModelFacts) -> ModelFacts:
    """Return limits that both models keep; raises CompareError where they are no twins."""
    geometry = {
        "vocabulary": (first.vocab_size, second.vocab_size),
        "page size": (first.cache.page_size, second.cache.page_size),
        "layers": (first.cache.num_layers, second.cache.num_layers),
        "key/value heads": (first.cache.num_kv_heads, second.cache.num_kv_heads),
        "head dim": (first.cache.head_dim, second.cache.head_dim),
    }
    different = [f"{name} {a} and {b}" for name, (a, b) in geometry.items() if a != b]
    if first.num_pages and second.num_pages and first.num_pages != second.num_pages:
        different.append(f"pages {first.num_pages} and {second.num_pages} (compiled in)")
    if different:
        raise CompareError(
            f"the two artefacts are not of one model and page size: {'; '.join(different)}. "
            "Compile both from the same checkpoint with the same --page-size."
        )
    return replace(
        first,
        max_seq_len=min(first.max_seq_len, second.max_seq_len),
        table_width=min(first.table_width, second.table_width),
        bindings=None,
        max_batch=_least(first.max_batch, second.max_batch),
        gear_tokens=_least(first.gear_tokens, second.gear_tokens),
        gear_seqs=_least(first.gear_seqs, second.gear_seqs),
        num_pages=first.num_pages or second.num_pages,
    )


def copy_step(batch: PackedBatch, to: PackedBatch) -> None:
    """Copy a step into a batch of another layout; entries of a wider table are the null page."""
    to.num_tokens, to.num_seqs = batch.num_tokens, batch.num_seqs
    to.num_logits = batch.num_logits
    for source in to.sources:
        if source != "block_table":
            to.view(source)[...] = batch.view(source)
    table, given = to.table(), batch.table()
    table[...] = 0
    table[:, : given.shape[1]] = given


def _least(first: int, second: int) -> int:
    """The smaller of two limits, of which 0 is none."""
    return min(first, second) if first and second else first or second


def _layout_of(side: ReadableBackend, layout: BatchLayout) -> BatchLayout:
    facts, limits = side.geometry, layout.limits
    own = replace(
        limits,
        max_tokens=max(limits.max_tokens, facts.gear_tokens),
        max_seqs=max(limits.max_seqs, facts.gear_seqs),
        table_width=facts.table_width,
    )
    return BatchLayout.of(own, facts.bindings)

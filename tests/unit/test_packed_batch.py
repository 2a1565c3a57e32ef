"""The staging buffer: the worked example, alignment, dtypes of the bindings, admissions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from closed_form import ClosedFormBackend, make_core, submit

from pagedom.runtime.packed_batch import BatchLayout, BatchLimits, PackedBatch

LIMITS = BatchLimits(max_tokens=512, max_seqs=8, table_width=6, page_size=4)


@dataclass(frozen=True)
class Bound:
    source: str
    dtype: str


def core_after_planning(lengths, page_size=16, **settings):
    """Return a core whose batch holds the first step of prompts of these lengths."""
    settings = {"max_batch": 8, "max_batch_tokens": 512, "num_pages": 80, **settings}
    core = make_core(ClosedFormBackend(page_size, max_seq_len=512), **settings)
    for n in lengths:
        submit(core, np.arange(n) % 97, 4)
    step = core._schedule()
    core._batch.fill(step, core.rows)
    return core


def test_the_worked_example(worked_example):
    core = core_after_planning(worked_example.prompts)
    batch = core._batch
    assert batch.num_tokens == worked_example.tokens
    assert batch.view("cu_seqlens").tolist() == list(worked_example.cu_seqlens)
    assert batch.view("seq_ends").tolist() == list(worked_example.cu_seqlens[1:])
    assert batch.view("kv_lens").tolist() == list(worked_example.prompts)
    assert batch.view("logits_rows").tolist() == list(worked_example.logits_rows)
    positions = batch.view("positions")
    assert positions.tolist() == [i for n in worked_example.prompts for i in range(n)]
    assert batch.view("token_lens").tolist() == (positions + 1).tolist()
    rows = [row for row, n in enumerate(worked_example.prompts) for _ in range(n)]
    assert batch.view("token_seqs").tolist() == rows
    assert len(set(batch.view("slot_mapping").tolist())) == worked_example.tokens


def test_the_decode_step_of_the_worked_example(worked_example):
    core = core_after_planning(worked_example.prompts)
    core._in_step = False
    core.step()
    assert core.pool.num_held == worked_example.pages[16]
    core.step()
    batch = core._batch
    assert batch.view("cu_seqlens").tolist() == list(worked_example.decode_cu_seqlens)
    assert batch.view("kv_lens").tolist() == list(worked_example.decode_kv_lens)
    assert batch.view("positions").tolist() == list(worked_example.decode_positions)
    assert batch.view("token_lens").tolist() == list(worked_example.decode_kv_lens)
    assert batch.view("token_seqs").tolist() == [0, 1, 2, 3]
    assert batch.view("logits_rows").tolist() == [0, 1, 2, 3]
    assert core.pool.num_held == worked_example.decode_pages


def test_five_pages_of_128(worked_example):
    core = core_after_planning(worked_example.prompts, page_size=128)
    assert np.count_nonzero(core._batch.view("block_table")) == worked_example.pages[128]


def test_sections_are_aligned_and_the_table_is_last():
    layout = BatchLayout.of(LIMITS)
    assert all(section.offset % 64 == 0 for section in layout.sections)
    assert layout.sections[-1].source == "block_table"
    # Blocks of one allocation: CANN wants the length rounded up to 32, and 32 bytes behind it.
    sizes = [-(-s.elements * s.dtype.itemsize // 32) * 32 + 32 for s in layout.sections]
    starts = [*(s.offset for s in layout.sections), layout.nbytes]
    assert all(size <= b - a for size, a, b in zip(sizes, starts, starts[1:]))
    assert PackedBatch(layout).buffer.ctypes.data % 64 == 0


def test_dtypes_and_sources_come_from_the_bindings():
    layout = BatchLayout.of(
        LIMITS,
        [Bound("kv_lens", "int64"), Bound("key_cache.0", "float16"), Bound("input_ids", "int32")],
    )
    batch = PackedBatch(layout)
    assert set(batch.sources) == {"kv_lens", "input_ids"}
    assert batch.view("kv_lens").dtype == np.int64
    with pytest.raises(KeyError, match="'positions' is not part of this batch"):
        batch.view("positions")


def test_a_small_buffer_is_refused_with_both_sizes():
    layout = BatchLayout.of(LIMITS)
    with pytest.raises(ValueError, match=f"of 64 bytes.*needs {layout.nbytes}"):
        PackedBatch(layout, np.zeros(64, np.uint8))


def test_only_the_used_bytes_are_counted():
    core = core_after_planning([3, 5])
    batch = core._batch
    assert batch.nbytes == batch.offset("block_table") + 2 * 32 * 4


def test_a_chunk_without_logits_asks_for_one_row_all_the_same():
    core = core_after_planning([40], max_batch_tokens=16)
    assert core._batch.view("logits_rows").tolist() == [15]
    assert core._batch.num_tokens == 16


def test_a_mixed_step_puts_decode_rows_first():
    core = core_after_planning([16], max_batch_tokens=16)
    core._in_step = False
    core.step()
    submit(core, list(range(20)), 4)
    core.step()
    batch = core._batch
    assert batch.view("cu_seqlens").tolist() == [0, 1, 16]
    assert batch.view("kv_lens").tolist() == [17, 15]
    assert batch.view("positions").tolist() == [16, *range(15)]
    assert batch.view("logits_rows").tolist() == [0]

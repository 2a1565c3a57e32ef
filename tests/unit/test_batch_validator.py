"""Every rule of a packed batch, broken one at a time, and several at once."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from closed_form import make_core, run, submit

from pagedom.runtime import engine_core
from pagedom.runtime.batch_validator import BatchError, BatchSnapshot, check_batch, violations_of
from pagedom.runtime.packed_batch import DEFAULT_DTYPES, BatchLayout, PackedBatch


def snapshot() -> BatchSnapshot:
    """Two sequences, requests 7 and 8: a chunk of 3 after 4 tokens, and a decode step at 5."""
    owners = np.full(9, -1)
    owners[[1, 2]] = 7
    owners[[3, 4]] = 8
    return BatchSnapshot(
        num_tokens=4,
        num_pages=9,
        page_size=4,
        table_width=3,
        sequence_ids=np.array([7, 8]),
        page_owners=owners,
        page_shared=np.zeros(9, bool),
        block_table=np.array([[1, 2, 0], [3, 4, 0]]),
        cu_seqlens=np.array([0, 3, 4]),
        kv_lens=np.array([7, 6]),
        positions=np.array([4, 5, 6, 5]),
        slot_mapping=np.array([8, 9, 10, 17]),
        logits_rows=np.array([2, 3]),
        seq_ends=np.array([3, 4]),
        token_seqs=np.array([0, 0, 0, 1]),
        token_lens=np.array([5, 6, 7, 6]),
    )


def edited(name: str, index, value) -> BatchSnapshot:
    array = getattr(snapshot(), name).copy()
    array[index] = value
    return replace(snapshot(), **{name: array})


def test_a_right_batch_has_no_violation():
    assert violations_of(snapshot()) == []
    check_batch(snapshot())


@pytest.mark.parametrize(
    ("field", "index", "value", "rule", "owner"),
    [
        ("cu_seqlens", 0, 1, "cu_start", -1),
        ("cu_seqlens", 1, 5, "cu_order", 8),
        ("cu_seqlens", 2, 3, "cu_end", -1),
        ("seq_ends", 0, 2, "seq_ends", 7),
        ("kv_lens", 0, 2, "kv_len", 7),
        ("kv_lens", 1, 13, "kv_len", 8),
        ("positions", 3, 6, "position", 8),
        ("token_seqs", 3, 0, "token_seq", 8),
        ("token_seqs", 0, 1, "token_seq", 7),
        ("token_lens", 2, 8, "token_len", 7),
        ("block_table", (0, 1), 9, "page_range", 7),
        ("block_table", (0, 1), -1, "page_range", 7),
        ("block_table", (1, 0), 0, "null_page", 8),
        ("block_table", (0, 0), 3, "page_owner", 7),
        ("block_table", (0, 0), 6, "page_owner", 7),
        ("block_table", (0, 2), 4, "table_tail", 7),
        ("block_table", (0, 2), 1, "page_twice", 7),
        ("slot_mapping", 1, 8, "slot_twice", 7),
        ("slot_mapping", 3, 30, "slot_place", 8),
        ("logits_rows", 0, 4, "logits_row", -1),
        ("logits_rows", 0, -1, "logits_row", -1),
    ],
)
def test_each_rule(field, index, value, rule, owner):
    found = {violation.rule: violation for violation in violations_of(edited(field, index, value))}
    assert rule in found
    assert found[rule].owner == owner
    assert str(found[rule]).startswith(f"{rule}: row ")


def test_pitch():
    wide = replace(snapshot(), block_table=np.pad(snapshot().block_table, ((0, 0), (0, 1))))
    assert [violation.rule for violation in violations_of(wide)] == ["pitch"]


def test_a_shared_page_has_many_owners():
    shared = np.zeros(9, bool)
    shared[3] = True
    batch = edited("block_table", (0, 0), 3)
    assert violations_of(replace(batch, page_shared=shared)) == []


def test_padding_writes_nothing_and_breaks_nothing():
    batch = edited("slot_mapping", [2, 3], -1)
    assert violations_of(batch) == []


def test_all_violations_are_listed():
    batch = edited("positions", 3, 6)
    table = batch.block_table.copy()
    table[0, 0] = 99
    with pytest.raises(BatchError, match="violation") as caught:
        check_batch(replace(batch, block_table=table, logits_rows=np.array([9])))
    rules = {violation.rule for violation in caught.value.violations}
    assert {"position", "page_range", "logits_row"} <= rules
    assert "row 0, column 0 (request 7): page 99" in str(caught.value)


class Source(NamedTuple):
    source: str
    dtype: str


@pytest.mark.parametrize("missing", [(name,) for name in DEFAULT_DTYPES] + [tuple(DEFAULT_DTYPES)])
def test_a_source_that_the_model_does_not_read_is_derived(monkeypatch, missing):
    """What is derived is what the engine would have written, in decode steps and in chunks."""
    bound = [Source(name, kind) for name, kind in DEFAULT_DTYPES.items() if name not in missing]
    compared = []

    class Both:
        @staticmethod
        def of(batch, step, rows, pool):
            whole = BatchSnapshot.of(batch, step, rows, pool)
            part = PackedBatch(BatchLayout.of(batch.layout.limits, [*bound, Source("x", "int8")]))
            part.fill(step, rows)
            seen = BatchSnapshot.of(part, step, rows, pool)
            assert violations_of(seen) == []
            for name in ("cu_seqlens", "kv_lens", "positions", "slot_mapping", "block_table"):
                np.testing.assert_array_equal(getattr(seen, name), getattr(whole, name), name)
            compared.append((step.num_decode, len(step.chunks)))
            return whole

    monkeypatch.setattr(engine_core, "BatchSnapshot", Both)
    core = make_core(max_batch=4, max_batch_tokens=6, num_pages=40)
    for n in (3, 9, 1, 14):
        submit(core, list(range(n)), 6)
    run(core)
    assert any(decode and chunks for decode, chunks in compared)
    assert any(decode and not chunks for decode, chunks in compared)

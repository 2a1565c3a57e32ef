"""Padding a step to a gear, alone and through the host device's gears."""

from __future__ import annotations

import numpy as np
import pytest
from acl_samples import PAGE, VOCAB, WIDTH, FakeExecutor, sample_artifact
from closed_form import ClosedFormBackend, make_core, submit

from pagedom.runtime.acl.host import HostAcl
from pagedom.runtime.acl.options import AclOptions
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.engine import Engine
from pagedom.runtime.gears import GearError, Gears
from pagedom.runtime.sampling_params import SamplingParams

GEARS = [{"T": 4, "B": 4, "R": 4}, {"T": 32, "B": 5, "R": 5}]


def filled(lengths):
    core = make_core(ClosedFormBackend(), num_pages=40, max_batch=8, max_batch_tokens=32)
    for n in lengths:
        submit(core, list(range(n)), 4)
    step = core._schedule()
    core._batch.fill(step, core.rows)
    return core._batch


def test_padding_is_a_dummy_sequence_on_the_null_page_and_empty_ones():
    batch = filled([3, 6])
    table = batch.view("block_table").copy()
    Gears([{"T": 16, "B": 5}]).pad(batch)
    assert (batch.num_tokens, batch.num_seqs, batch.num_logits) == (16, 5, 5)
    assert batch.view("cu_seqlens").tolist() == [0, 3, 9, 16, 16, 16]
    assert batch.view("seq_ends").tolist() == [3, 9, 16, 16, 16]
    assert batch.view("kv_lens").tolist() == [3, 6, 7, 0, 0]
    assert batch.view("slot_mapping")[9:].tolist() == [-1] * 7
    assert batch.view("token_seqs").tolist() == [0] * 3 + [1] * 6 + [2] * 7
    assert batch.view("token_lens").tolist() == [1, 2, 3, 1, 2, 3, 4, 5, 6] + [1] * 7
    assert batch.view("logits_rows").tolist() == [2, 8, 0, 0, 0]
    assert np.array_equal(batch.view("block_table")[:2], table)
    assert not batch.view("block_table")[2:].any()


def test_the_smallest_gear_that_fits_is_taken():
    gears = Gears([{"T": 16, "B": 2}, {"T": 32, "B": 4}, {"T": 9, "B": 2}])
    assert gears.max_tokens == 32
    assert gears.max_seqs == 4
    batch = filled([3, 6])
    gears.pad(batch)
    assert batch.num_tokens == 9
    batch = filled([3, 5])
    gears.pad(batch)
    assert (batch.num_tokens, batch.num_seqs) == (32, 4), "the dummy needs a row of its own"


def test_no_gear_is_an_error_with_the_numbers():
    with pytest.raises(GearError, match=r"8 tokens of 2 sequences.*\(T=8, B=1\)"):
        Gears([{"T": 8, "B": 1}]).pad(filled([3, 5]))


def test_without_gears_nothing_is_padded():
    batch = filled([3, 6])
    Gears([]).pad(batch)
    assert batch.num_tokens == 9


def test_an_engine_on_gears(tmp_path):
    executor = FakeExecutor()
    acl = HostAcl(AclOptions(checked=True, executor_factory=lambda om: executor))
    artifact = sample_artifact(tmp_path / "geared", GEARS, extents={"P": 30})
    with Engine(ArtifactBackend(artifact, acl), num_pages=30, max_batch=4) as engine:
        assert engine._core.scheduler.policy.max_batch_tokens == 32
        prompts = [[1, 2, 3], [5], [9, 8, 7, 6, 5, 4], [2] * (PAGE * WIDTH - 8), [0, 1]]
        answers = engine.generate(prompts, SamplingParams(max_tokens=6))
        for prompt, answer in zip(prompts, answers):
            assert answer.token_ids == [(prompt[-1] + 1 + i) % VOCAB for i in range(6)]
    assert {shape[0] for shape in [executor.shapes[0]]} <= {4, 32}
    assert acl.ledger.live_counts() == {}


def test_more_tokens_than_the_largest_gear_are_refused(tmp_path):
    acl = HostAcl(AclOptions(executor_factory=lambda om: FakeExecutor()))
    artifact = sample_artifact(tmp_path / "geared", GEARS, extents={"P": 30})
    with pytest.raises(ValueError, match=r"max_batch_tokens is 64, but the largest gear.*32"):
        Engine(ArtifactBackend(artifact, acl), num_pages=30, max_batch=4, max_batch_tokens=64)

"""The bounds that are checked in every step: what they stop, and that they stop nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from closed_form import ClosedFormBackend, continuation, make_core, run, submit

from pagedom.runtime.batch_bounds import BatchBounds
from pagedom.runtime.batch_validator import BatchError
from pagedom.runtime.packed_batch import BatchLayout, PackedBatch

PROMPTS = [[1, 2, 3, 4, 5], [7] * 9, [11, 12]]


def spoil(monkeypatch, source: str, index, value: int, at_step: int) -> None:
    """Change one number of a batch when it has been filled for the given step."""
    fill, count = PackedBatch.fill, iter(range(10**6))

    def wrong(self, step, rows) -> None:
        fill(self, step, rows)
        if next(count) == at_step:
            self.view(source)[index] = value

    monkeypatch.setattr(PackedBatch, "fill", wrong)


CASES = [
    # (source, index, value, rule, in decode steps too)
    ("slot_mapping", 0, -1, None, True),
    ("slot_mapping", 0, 10**6, "slot_place", True),
    ("slot_mapping", 0, 1, "slot_place", False),  # in the null page
    ("kv_lens", 0, 10**6, "kv_len", True),
    ("kv_lens", 0, -5, "kv_len", True),
    ("block_table", (0, 0), 10**6, "page_range", False),
    ("block_table", (0, 1), -1, "page_range", False),
    ("seq_ends", -1, 77, "seq_ends", False),
    ("logits_rows", 0, 99, "logits_row", False),
    ("logits_rows", 0, -1, "logits_row", False),
    # of a model to which each token is a sequence
    ("token_lens", 0, 10**6, "token_len", True),
    ("token_lens", 0, -5, "token_len", True),
    ("token_seqs", 0, 99, "token_seq", False),
    ("token_seqs", 1, -1, "token_seq", False),
]


@pytest.mark.parametrize(
    ("source", "index", "value", "rule", "at_step"),
    # Step 0 has prompts; step 3 has decode rows alone, where less is looked at.
    [(*case[:4], 0) for case in CASES] + [(*case[:4], 3) for case in CASES if case[4]],
)
def test_a_batch_out_of_bounds_never_reaches_the_device(
    monkeypatch, source, index, value, rule, at_step
):
    spoil(monkeypatch, source, index, value, at_step)
    backend = ClosedFormBackend(per_token=source.startswith("token_"))
    core = make_core(backend, checked=False)
    hit = [submit(core, prompt, 6) for prompt in PROMPTS]
    for _ in range(at_step + 1):
        core.step()
    assert len(backend.launches) == at_step
    for request in hit:
        assert isinstance(request.error, BatchError)
        rules = {violation.rule for violation in request.error.violations}
        assert (rule or "bounds") in rules
    assert core.pool.num_free == core.pool.num_usable
    after = submit(core, [5, 6, 7], 4)
    run(core)
    assert after.output_tokens.tolist() == continuation([5, 6, 7], 4)


def test_the_full_check_names_row_value_owner_and_rule(monkeypatch):
    spoil(monkeypatch, "slot_mapping", 2, 10**6, 0)
    core = make_core(checked=False)
    request = submit(core, PROMPTS[0], 4)
    core.step()
    assert "slot_place: row 2" in str(request.error)
    assert "(request 0)" in str(request.error)
    assert "slot 1000000" in str(request.error)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("settings", [{}, {"cache": "contiguous"}, {"num_pages": 9}])
def test_sound_batches_hold(monkeypatch, settings, per_token):
    """Every batch that the full check lets pass is within its bounds."""
    held = []
    hold = BatchBounds.hold

    def watched(self, batch, step) -> bool:
        held.append(hold(self, batch, step))
        return held[-1]

    monkeypatch.setattr(BatchBounds, "hold", watched)
    backend = ClosedFormBackend(per_token=per_token)
    core = make_core(backend, checked=False, max_batch=3, max_batch_tokens=8, **settings)
    requests = [submit(core, prompt, 9) for prompt in [*PROMPTS, *PROMPTS]]
    run(core)
    assert all(held)
    assert len(held) > 10
    for request, prompt in zip(requests, [*PROMPTS, *PROMPTS]):
        assert request.output_tokens.tolist() == continuation(prompt, 9)


def test_sources_that_the_model_does_not_read_are_not_looked_at():
    core = make_core(checked=False)
    submit(core, PROMPTS[0], 3)
    step = core._schedule()
    core._batch.fill(step, core.rows)
    few = PackedBatch(BatchLayout(core._batch.layout.limits, (), 0), np.empty(0, np.uint8))
    assert BatchBounds(few, 4).hold(core._batch, step)

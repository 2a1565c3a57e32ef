"""Continuous batching on the closed-form model: cases 13 to 17, purity, and random workloads."""

from __future__ import annotations

import numpy as np
import pytest
from closed_form import ClosedFormBackend, continuation, make_core, run, submit
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedom.runtime.page_pool import pages_for
from pagedom.runtime.request import RequestError
from pagedom.runtime.scheduler import SchedulerPolicy, StalePlanError


def prompt(n: int, salt: int = 0) -> list[int]:
    return [(7 * i + 3 * salt + 1) % 97 for i in range(n)]


def check(requests) -> None:
    for request in requests:
        expected = continuation(request.prompt.tolist(), request.limit - request.prompt_tokens)
        assert request.output_tokens.tolist() == expected


def fingerprint(core) -> bytes:
    """Return all state that a plan must not change and a failed step must not leave behind."""
    rows, n = core.rows, core.rows.count
    arrays = [rows.table.ids[:n], rows.table.num_pages[:n], core.pool._refs, core.pool.free_ids()]
    arrays += [column[:n] for column in rows._columns]
    waiting = np.array(list(core.scheduler.waiting))
    return b"|".join(array.tobytes() for array in [*arrays, waiting])


class TestAdmission:
    """Case 13: 20 usable tokens, a model of 64."""

    @staticmethod
    def core():
        return make_core(num_pages=6, max_batch=4, max_batch_tokens=64)

    def test_never_is_an_error_at_once_with_both_numbers(self):
        core = self.core()
        with pytest.raises(RequestError, match=r"21 tokens.*holds 20 \(5 pages of 4 tokens\)"):
            submit(core, prompt(21), 4)
        assert core.pool.num_free == 5
        assert not core.has_work

    def test_those_behind_run(self):
        core = self.core()
        with pytest.raises(RequestError):
            submit(core, prompt(21), 4)
        b, c = submit(core, prompt(4), 4), submit(core, prompt(20), 1)
        run(core, 20)
        check([b, c])
        assert [b.finish_reason, c.finish_reason] == ["length", "length"]
        assert c.output_tokens.size == 1

    def test_an_answer_that_outgrows_the_pool_ends_with_length(self):
        """20 tokens are in the pool, and the 21st is returned without being computed."""
        core = self.core()
        d = submit(core, prompt(12), 30)
        run(core, 20)
        assert d.finish_reason == "length"
        assert d.output_tokens.tolist() == continuation(prompt(12), 9)
        assert core.pool.num_free == 5

    def test_the_start_says_that_the_model_is_longer_than_the_pool(self, caplog):
        self.core()
        assert "takes sequences of 64 tokens, but the page pool holds 20" in caplog.text

    def test_a_prompt_as_long_as_the_model(self):
        core = make_core(num_pages=40, max_batch=4)
        with pytest.raises(RequestError, match=r"has 64 tokens.*at most 63"):
            submit(core, prompt(64), 1)
        last = submit(core, prompt(63), 9)
        run(core)
        assert last.output_tokens.tolist() == continuation(prompt(63), 1)

    def test_an_empty_prompt(self):
        with pytest.raises(RequestError, match="has no tokens"):
            submit(self.core(), [], 1)

    @pytest.mark.parametrize("token", [97, -1])
    def test_a_token_outside_the_vocabulary(self, token):
        with pytest.raises(RequestError, match=rf"token {token} at place 1 .*0..96"):
            submit(self.core(), [5, token], 1)


class TestPreemption:
    """Case 14."""

    @pytest.mark.parametrize("reserve", [0.0, 1.0])
    def test_all_finish_as_if_alone(self, reserve):
        core = make_core(num_pages=9, max_batch=4, max_batch_tokens=64, reserve_pages=reserve)
        requests = [submit(core, prompt(8, i), 20) for i in range(4)]
        assert run(core, 200) <= 200
        check(requests)
        assert core.scheduler.num_preemptions <= 12
        assert requests[0].timings.preemptions == 0
        assert core.pool.num_free == 8
        assert core.pool.leaks() == []

    @pytest.mark.parametrize("reserve", [0.0, 1.0])
    def test_with_one_long_request_in_front(self, reserve):
        core = make_core(num_pages=9, max_batch=5, max_batch_tokens=64, reserve_pages=reserve)
        requests = [submit(core, prompt(28), 4)]
        requests += [submit(core, prompt(8, i), 20) for i in range(1, 5)]
        run(core, 200)
        check(requests)
        assert core.scheduler.num_preemptions <= 12
        assert requests[0].timings.preemptions == 0
        assert core.pool.num_free == 8

    def test_some_preemption_happens_at_all(self):
        core = make_core(num_pages=9, max_batch=4, max_batch_tokens=64, reserve_pages=0.0)
        for i in range(4):
            submit(core, prompt(8, i), 20)
        run(core)
        assert core.scheduler.num_preemptions > 0

    def test_the_victim_is_the_youngest_and_keeps_its_place_in_the_queue(self):
        core = make_core(num_pages=9, max_batch=4, max_batch_tokens=64, reserve_pages=0.0)
        requests = [submit(core, prompt(8, i), 20) for i in range(4)]
        while not core.scheduler.num_preemptions:
            core.step()
        assert list(core.scheduler.waiting) == [request.id for request in requests[2:]]

    def test_two_victims_of_one_step_whose_pages_interleave(self):
        """The pages named by the plan are those that the commit takes."""
        core = make_core(
            ClosedFormBackend(page_size=1),
            num_pages=30,
            max_batch=8,
            max_batch_tokens=64,
            reserve_pages=0.0,
        )
        requests = [submit(core, prompt(4, i), 20) for i in range(8)]
        core.pool.permute_free(np.random.default_rng(3))
        most = 0
        while core.has_work:
            step = core.scheduler.plan()
            most = max(most, len(step.preempted))
            core.step()
        assert most > 1
        check(requests)


class TestPageEdges:
    """Case 17: lengths that are exact multiples of the page size."""

    @pytest.mark.parametrize(
        ("size", "length", "answer"),
        [(4, 8, 5), (4, 7, 2), (4, 1, 9), (1, 5, 6), (16, 16, 3)],
    )
    def test_pages_are_the_ceiling_at_every_length(self, size, length, answer):
        core = make_core(ClosedFormBackend(size), num_pages=40, max_batch=1, max_batch_tokens=64)
        request = submit(core, prompt(length), answer)
        while core.step():
            computed = int(core.rows.num_computed[0]) if core.rows.count else 0
            assert core.pool.num_held == pages_for(computed, size)
        check([request])

    def test_the_ninth_token_takes_a_third_page_before_it_is_written(self):
        core = make_core(num_pages=40, max_batch=1, max_batch_tokens=64)
        submit(core, prompt(8), 5)
        core.step()
        assert core.pool.num_held == 2
        step = core.scheduler.plan()
        page = int(step.pages.ids[0])
        core.step()
        assert core._batch.view("slot_mapping").tolist() == [page * 4]
        assert core.pool.num_held == 3


class TestReusedRows:
    """Case 16."""

    def test_the_tail_of_a_reused_row_is_the_null_page(self):
        backend = ClosedFormBackend(page_size=4, max_seq_len=24)
        backend.keep_tables = True
        core = make_core(backend, num_pages=12, max_batch=2, max_batch_tokens=8)
        a = submit(core, prompt(22), 1)
        b = submit(core, prompt(20, 1), 3)
        c = submit(core, prompt(10, 2), 4)
        run(core)
        check([a, b, c])
        for table in backend.tables:
            for row in table:
                used = np.count_nonzero(row)
                assert not row[used:].any()

    def test_a_preempted_prompt_resumes_on_other_pages(self):
        core = make_core(num_pages=9, max_batch=3, max_batch_tokens=4, reserve_pages=0.0)
        requests = [submit(core, prompt(n, n), 12) for n in (8, 9, 14)]
        run(core)
        assert core.scheduler.num_preemptions > 0
        check(requests)


class TestPlanAndCommit:
    def test_plan_is_pure(self):
        core = make_core(num_pages=9, max_batch=4, max_batch_tokens=16, reserve_pages=0.0)
        for i in range(4):
            submit(core, prompt(8, i), 20)
        for _ in range(40):
            before = fingerprint(core)
            one, two = core.scheduler.plan(), core.scheduler.plan()
            assert fingerprint(core) == before
            if one is not None:
                assert np.array_equal(one.pages.ids, two.pages.ids)
                assert one.preempted == two.preempted
            core.step()

    @pytest.mark.parametrize("moment", ["fill", "launch", "wait", "sample"])
    def test_an_interrupt_between_plan_and_commit_changes_nothing(self, moment, monkeypatch):
        core = make_core(num_pages=9, max_batch=4, max_batch_tokens=16, reserve_pages=0.0)
        requests = [submit(core, prompt(8, i), 20) for i in range(4)]
        where = {"fill": core._batch, "sample": core}.get(moment, core._backend)
        name = "_sample" if moment == "sample" else moment
        original = getattr(where, name)

        def interrupted(*_args):
            raise KeyboardInterrupt

        more = True
        while more:
            before = fingerprint(core)
            monkeypatch.setattr(where, name, interrupted)
            if core.has_work:
                with pytest.raises(KeyboardInterrupt):
                    core.step()
            assert fingerprint(core) == before
            monkeypatch.setattr(where, name, original)
            more = core.step()
        check(requests)

    def test_a_stale_plan_is_refused(self):
        core = make_core(num_pages=9, max_batch=4)
        request = submit(core, prompt(8), 4)
        core.step()
        step = core.scheduler.plan()
        core.cancel(request)
        with pytest.raises(StalePlanError, match="plan again"):
            core.scheduler.commit(step, np.zeros(1, np.int32))

    def test_mixed_steps_respect_the_budget_and_decode_first(self):
        core = make_core(num_pages=60, max_batch=4, max_batch_tokens=8)
        requests = [submit(core, prompt(n, n), 9) for n in (3, 20, 5, 17)]
        run(core)
        check(requests)
        assert max(tokens for tokens, _ in core._backend.launches) == 8

    def test_a_step_always_computes_something_while_sequences_run(self):
        core = make_core(num_pages=9, max_batch=4, max_batch_tokens=8, reserve_pages=0.0)
        for i in range(6):
            submit(core, prompt(8 + i, i), 10)
        while core.has_work:
            before = core.counters.computed_tokens
            assert core.step()
            assert core.counters.computed_tokens > before


class TestPolicy:
    def test_fewer_tokens_than_sequences_is_refused(self):
        with pytest.raises(ValueError, match="max_batch_tokens is 8 but max_batch is 16"):
            SchedulerPolicy(16, 8, 4, 64)

    def test_an_admission_leaves_a_reserve(self):
        """6 usable pages: two prompts of 2 pages would leave 2, a third waits for room to grow."""
        core = make_core(num_pages=9, max_batch=8, max_batch_tokens=64)
        for i in range(4):
            submit(core, prompt(8, i), 20)
        core.step()
        assert core.rows.count == 2
        assert len(core.scheduler.waiting) == 2


def test_cancel_twice_is_once():
    """Case 15 (1)."""
    core = make_core(num_pages=9, max_batch=4)
    request = submit(core, prompt(8), 4)
    core.step()
    core.cancel(request)
    core.cancel(request)
    assert request.finish_reason == "cancelled"
    assert core.pool.num_free == 8
    run(core)


def test_cancel_during_the_step_drops_its_result():
    """Case 15 (4)."""
    backend = ClosedFormBackend()
    core = make_core(backend, num_pages=20, max_batch=4)
    a, b = submit(core, prompt(8), 6), submit(core, prompt(5), 6)
    core.step()
    seen = a.output_tokens.size
    backend.gate = lambda: core.cancel(a)
    core.step()
    backend.gate = lambda: None
    assert a.finish_reason == "cancelled"
    assert a.output_tokens.size in (seen, seen + 1)
    assert core.pool.num_held == 2
    run(core)
    check([b])
    assert core.pool.num_free == 19


def test_a_failed_step_ends_its_requests_and_no_others():
    backend = ClosedFormBackend()
    core = make_core(backend, num_pages=20, max_batch=2)
    a, b, c = (submit(core, prompt(8, i), 6) for i in range(3))
    core.step()
    backend.fail_at = {len(backend.launches)}
    core.step()
    assert [a.finish_reason, b.finish_reason] == ["error", "error"]
    assert "injected" in str(a.error)
    assert core.pool.num_free == 19
    run(core)
    check([c])


def test_rows_stay_compact_and_the_table_follows():
    core = make_core(num_pages=60, max_batch=6)
    requests = [submit(core, prompt(4 + i, i), 3 + 4 * (i % 3)) for i in range(6)]
    while core.step():
        for row, request in enumerate(core.rows.requests):
            assert request.row == row
            assert set(core.pool.owners[core.rows.table.pages(row)].tolist()) == {request.id}
        assert not core.rows.table.ids[core.rows.count :].any()
    check(requests)


WORKLOADS = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(1, 20),  # answer
        st.integers(0, 6),  # arrives after so many steps
        st.one_of(st.none(), st.integers(1, 12)),  # cancelled after so many more
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(
    workload=WORKLOADS,
    page_size=st.sampled_from([1, 2, 4, 8]),
    spare=st.integers(0, 30),
    seed=st.integers(0, 1000),
    max_batch=st.sampled_from([2, 4, 8]),
    budget=st.integers(0, 12),
    reserve=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_any_workload_answers_as_if_each_ran_alone(
    workload, page_size, spare, seed, max_batch, budget, reserve
):
    """No page has two owners (checked mode), nothing leaks, and the end comes."""
    core = make_core(
        ClosedFormBackend(page_size, max_seq_len=56),
        num_pages=1 + pages_for(30, page_size) + spare,
        max_batch=max_batch,
        max_batch_tokens=max_batch + budget,
        reserve_pages=reserve,
    )
    core.pool.permute_free(np.random.default_rng(seed))
    coming = sorted(enumerate(workload), key=lambda item: item[1][2])
    requests, cancels = [], []
    for now in range(1500):
        while coming and coming[0][1][2] <= now:
            i, (length, answer, _, dropped) = coming.pop(0)
            requests.append(submit(core, prompt(length, i), answer))
            if dropped is not None:
                cancels.append((now + dropped, requests[-1]))
        for when, request in cancels:
            if when == now:
                core.cancel(request)
        if not core.step() and not coming:
            break
    assert all(request.finished for request in requests)
    check([request for request in requests if request.finish_reason != "cancelled"])
    for request in requests:
        got = request.output_tokens.tolist()
        assert got == continuation(request.prompt.tolist(), 20)[: len(got)]
    assert core.pool.num_free == core.pool.num_usable
    assert core.pool.leaks() == []


def test_the_padded_baseline_gives_the_same_answers():
    lengths = (8, 3, 21, 1, 16, 4, 30, 55)
    for budget in (4, 16, 64):
        core = make_core(
            ClosedFormBackend(max_seq_len=56),
            num_pages=60,
            max_batch=4,
            max_batch_tokens=budget,
            cache="contiguous",
        )
        requests = [submit(core, prompt(n, n), 10) for n in lengths]
        run(core)
        check(requests)
        assert core.pool.num_free == 59
        statistics = core.statistics()
        assert (statistics.padding_tokens > 0) == (budget > 4)
        assert statistics.pool.high_water == 56, "four runs of 14 pages"


def test_the_padded_baseline_reserves_whole_sequences():
    """The same 29 usable pages: two sequences contiguous, all four paged."""
    running = {}
    for cache in ("contiguous", "paged"):
        core = make_core(ClosedFormBackend(max_seq_len=56), num_pages=30, max_batch=4, cache=cache)
        for i in range(4):
            submit(core, prompt(8, i), 4)
        core.step()
        running[cache] = core.rows.count
    assert running == {"contiguous": 2, "paged": 4}


def test_the_padded_baseline_counts_the_worked_example(worked_example):
    core = make_core(
        ClosedFormBackend(16, max_seq_len=512),
        num_pages=200,
        max_batch=4,
        max_batch_tokens=1024,
        cache="contiguous",
    )
    for n in worked_example.prompts:
        submit(core, prompt(n), 2)
    core.step()
    statistics = core.statistics()
    assert statistics.computed_tokens == worked_example.padded_tokens
    assert statistics.padding_tokens == worked_example.padded_tokens - worked_example.tokens


def test_a_pool_too_small_for_one_reservation_is_refused():
    core = make_core(num_pages=9, max_batch=2, cache="contiguous")
    with pytest.raises(RequestError, match=r"reserves 16 neighbouring pages.*pool has 8"):
        submit(core, prompt(3), 1)

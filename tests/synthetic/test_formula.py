"""The engine on every kind of artefact an NPU can have: answers equal the closed formula."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from closed_form import make_core, run, submit
from formula_engines import (
    ALL_KINDS,
    CALL_KINDS,
    HAND_MADE,
    KINDS,
    MAX_SEQ_LEN,
    check,
    check_clean,
    continuation,
    make_backend,
    prompt,
)

from pagedom.runtime.acl.faults import FaultPlan
from pagedom.runtime.acl.host import HostAcl
from pagedom.runtime.acl.options import AclOptions
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.engine import Engine
from pagedom.runtime.request import RequestFailed
from pagedom.runtime.sampling_params import SamplingParams

CASES = [(kind, "oracle", size) for kind in ALL_KINDS for size in (16, 64)]
CASES += [(kind, "openvino", 32) for kind in KINDS]
CASES += [(HAND_MADE, "oracle", size) for size in (32, 128)]
CASES += [(HAND_MADE, "openvino", size) for size in (64, 128)]


@pytest.mark.parametrize(("kind", "executor", "page_size"), CASES)
def test_answers_do_not_depend_on_pages_arrivals_or_neighbours(
    artefacts, kind, executor, page_size
):
    num_pages = 4 - (-MAX_SEQ_LEN // page_size)
    for seed in (0, 1):
        one = make_backend(artefacts(kind, page_size, num_pages), executor)
        core = make_core(
            one, num_pages=num_pages, max_batch=4, max_batch_tokens=24, reserve_pages=0.0
        )
        core.pool.permute_free(np.random.default_rng(seed))
        requests = [submit(core, prompt(n, n), 12) for n in (1, page_size)]
        for n in (33, 15, 64, 120):
            core.step()
            core.step()
            requests.append(submit(core, prompt(n, n + seed), 14))
        core.step()
        core.cancel(requests[3])
        run(core)
        check(kind, requests)
        assert [request.output_tokens.size for request in requests[4:]] == [14, 14]
        assert core.pool.num_free == core.pool.num_usable
        core.close()
        check_clean(one._acl)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_small_pages_make_preemptions(artefacts, kind):
    core = make_core(
        make_backend(artefacts(kind, 16, 10)),
        num_pages=10,
        max_batch=4,
        max_batch_tokens=24,
        reserve_pages=0.0,
    )
    requests = [submit(core, prompt(30, i), 40) for i in range(4)]
    run(core)
    assert core.scheduler.num_preemptions > 0
    check(kind, requests)
    core.close()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_padded_baseline_says_the_same(artefacts, kind):
    num_pages = 1 + 4 * 6
    core = make_core(
        make_backend(artefacts(kind, 32, num_pages)),
        num_pages=num_pages,
        max_batch=4,
        max_batch_tokens=24,
        cache="contiguous",
    )
    requests = [submit(core, prompt(n, n), 8) for n in (5, 4, 11, 6, 1)]
    run(core)
    check(kind, requests)
    assert core.statistics().padding_tokens > 0
    core.close()


@pytest.mark.parametrize("executor", ["oracle", "openvino"])
def test_the_padded_baseline_with_long_prompts(artefacts, executor):
    core = make_core(
        make_backend(artefacts(HAND_MADE, 32), executor),
        num_pages=1 + 3 * 6,
        max_batch=4,
        max_batch_tokens=96,
        cache="contiguous",
    )
    requests = [submit(core, prompt(n, n), 8) for n in (5, 40, 17, 64, 1)]
    run(core)
    check(HAND_MADE, requests)
    assert core.statistics().padding_tokens > 0
    core.close()


@pytest.mark.parametrize(
    ("kind", "executor"),
    [*((kind, "oracle") for kind in ALL_KINDS), *((kind, "openvino") for kind in KINDS)],
)
def test_sampling_with_a_seed_is_the_same_in_company(artefacts, kind, executor):
    """Case 20 through the device's logits."""
    params = SamplingParams(max_tokens=12, temperature=2.0, seed=7)
    settings = {"num_pages": 30, "checked": True, "max_batch": 4}
    with Engine(make_backend(artefacts(kind, 32, 30), executor), **settings) as engine:
        alone = engine.generate(prompt(9, 1), params)[0].token_ids
        others = SamplingParams(max_tokens=20, temperature=1.0)
        greedy = SamplingParams(max_tokens=25)
        prompts = [prompt(5, 2), prompt(9, 1), prompt(40, 3)]
        crowd = engine.generate(prompts, [others, params, greedy])
        assert crowd[1].token_ids == alone
        assert alone != continuation(kind, prompt(9, 1), 12)
        answer = crowd[2].token_ids
        assert answer == continuation(kind, prompt(40, 3), len(answer))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_tokens_come_while_the_rest_is_computed(artefacts, kind):
    """Three callers stream at once from an engine with its own thread; one leaves early."""
    one = make_backend(artefacts(kind))
    seen: dict[int, list[int]] = {}
    counts = {5: 9, 12: 3, 30: 14}  # prompt tokens -> tokens that the caller takes of 14

    def read(n: int) -> None:
        request = engine.submit(prompt(n, n), SamplingParams(max_tokens=14))
        seen[n] = []
        for token in request:
            seen[n].append(token)
            if len(seen[n]) == counts[n]:
                request.cancel()
                break

    with Engine(one, num_pages=30, max_batch=4, max_batch_tokens=16) as engine:
        engine.start()
        threads = [threading.Thread(target=read, args=(n,)) for n in counts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        engine.stop()
        assert {n: len(tokens) for n, tokens in seen.items()} == counts
        for n, tokens in seen.items():
            assert tokens == continuation(kind, prompt(n, n), len(tokens))
        while engine.step():
            pass
        assert engine.statistics().pool.held == 0
    check_clean(one._acl)


@pytest.mark.parametrize("kind", CALL_KINDS)
def test_case_10_no_call_comes_from_a_thread_without_a_context(artefacts, kind):
    """Load in A, generate in B, from an event loop too, close in C."""
    one = make_backend(artefacts(kind))
    engine = in_thread(lambda: Engine(one, num_pages=30, max_batch=4))
    params = SamplingParams(max_tokens=6)
    answer = in_thread(lambda: engine.generate(prompt(7, 1), params)[0])
    assert answer.token_ids == continuation(kind, prompt(7, 1), 6)

    async def serve() -> list[int]:
        loop, rung, tokens = asyncio.get_running_loop(), asyncio.Event(), []

        def ring() -> None:
            with suppress(RuntimeError):  # the loop may have ended before the engine
                loop.call_soon_threadsafe(rung.set)

        engine.add_listener(ring)
        engine.start()
        request = engine.submit(prompt(9, 2), params)
        while not request.finished:
            await asyncio.wait_for(rung.wait(), 30)
            rung.clear()
            tokens += request.poll_tokens()
        return tokens + request.poll_tokens()

    assert asyncio.run(serve()) == continuation(kind, prompt(9, 2), 6)
    in_thread(engine.stop)
    in_thread(engine.close)
    check_clean(one._acl)


def in_thread(call):
    """Run a call in a thread of its own and return its result."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(60)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_steps_cancellations_and_failures_leave_no_handle(artefacts, kind):
    """Case 11: a bounded number of handles during steps, none after the end."""
    faults = FaultPlan(
        execute={10 * n: 507011 for n in range(1, 15)},
        launch={37 * n: 500002 for n in range(1, 4)},
    )
    one = make_backend(artefacts(kind, 16, 60), faults=faults)
    with Engine(one, num_pages=60, max_batch=4, max_batch_tokens=16) as engine:
        live = []
        for burst in range(8):
            requests = [
                engine.submit(prompt(3 + i, burst), SamplingParams(max_tokens=20)) for i in range(5)
            ]
            requests[4].cancel()
            for request in requests[:4]:
                try:
                    request.result()
                except RequestFailed as failure:
                    assert "507011" in str(failure) or "500002" in str(failure)  # noqa: PT017
                else:
                    check(kind, [request])
            live.append(sum(one._acl.ledger.live_counts().values()))
        assert engine.statistics().failed_steps > 0
        assert engine.statistics().pool.held == 0
        assert len(set(live[1:])) == 1
    check_clean(one._acl)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_copies_that_fail_end_their_step_alone(artefacts, kind):
    faults = FaultPlan(memcpy=dict.fromkeys((25, 38), 500003))
    one = make_backend(artefacts(kind, 16, 30), faults=faults)
    core = make_core(one, num_pages=30, max_batch=4, max_batch_tokens=16)
    requests = []
    for n in range(12):
        requests.append(submit(core, prompt(3 + n, n), 6))
        core.step()
    run(core)
    failed = [request for request in requests if request.error is not None]
    assert 0 < len(failed) < len(requests)
    assert all("500003" in str(request.error) for request in failed)
    check(kind, [request for request in requests if request.error is None])
    assert core.pool.num_free == core.pool.num_usable
    core.close()
    check_clean(one._acl)


@pytest.mark.parametrize("kind", CALL_KINDS)
def test_load_and_unload_twenty_times(artefacts, kind):
    counts = []
    for turn in range(20):
        one = make_backend(artefacts(kind))
        with Engine(one, num_pages=30, max_batch=4) as engine:
            answer = engine.generate(prompt(4, 1), SamplingParams(max_tokens=3))[0]
        assert answer.token_ids == continuation(kind, prompt(4, 1), 3)
        check_clean(one._acl)
        if turn in (5, 19):
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[1] - counts[0] < 2000


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_two_engines_on_one_acl_close_in_either_order(artefacts, kind):
    """Case 12 (1) and (3)."""
    for first in (0, 1):
        acl = HostAcl(AclOptions(executor="oracle", checked=True))
        settings = {"num_pages": 30, "max_batch": 4}
        backends = [ArtifactBackend(artefacts(kind), acl) for _ in range(2)]
        engines = [Engine(backend, **settings) for backend in backends]
        params, wanted = SamplingParams(max_tokens=4), continuation(kind, prompt(6, 2), 4)
        for engine in (*engines, engines[first]):
            assert engine.generate(prompt(6, 2), params)[0].token_ids == wanted
        engines[first].close()
        other = engines[1 - first]
        assert other.generate(prompt(6, 2), params)[0].token_ids == wanted
        other.close()
        check_clean(acl)

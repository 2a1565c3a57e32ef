"""The engine on every kind of artefact an NPU can have: answers equal the closed formula."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from closed_form import make_core, run, submit
from formula_forms import KINDS, TOKEN_KINDS, continuation, write_artifact
from formula_graph import MAX_SEQ_LEN, VOCAB

from pagedom.runtime.acl.faults import FaultPlan
from pagedom.runtime.acl.host import HostAcl
from pagedom.runtime.acl.options import AclOptions
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.engine import Engine
from pagedom.runtime.request import RequestFailed
from pagedom.runtime.sampling_params import SamplingParams

ALL_KINDS = (*KINDS, *TOKEN_KINDS)
HOSTS = [("oracle", 16), ("oracle", 64), ("openvino", 32)]
CASES = [(kind, *host) for kind in KINDS for host in HOSTS]
CASES += [(kind, *host) for kind in TOKEN_KINDS for host in HOSTS[:2]]
MakeBackend = Callable[..., ArtifactBackend]


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory) -> Callable[[str, int, int], Path]:
    root = tmp_path_factory.mktemp("forms")

    def artefact(kind: str, page_size: int, num_pages: int) -> Path:
        folder = root / f"{kind}-{page_size}-{num_pages}"
        return folder if folder.exists() else write_artifact(folder, kind, page_size, num_pages)

    return artefact


@pytest.fixture
def backend(artefacts) -> MakeBackend:
    def make(
        kind: str, page_size: int, num_pages: int, executor: str = "oracle", **options
    ) -> ArtifactBackend:
        settings = AclOptions(executor=executor, threads=1, checked=True, **options)
        artifact = Artifact.open(artefacts(kind, page_size, num_pages))
        return ArtifactBackend(artifact, HostAcl(settings), self_test=True)

    return make


def prompt(n: int, salt: int) -> list[int]:
    return [(11 * i * i + 5 * i + 3 * salt) % VOCAB for i in range(n)]


def check(requests) -> None:
    for request in requests:
        assert request.error is None
        expected = continuation(request.prompt.tolist(), request.output_tokens.size)
        assert request.output_tokens.tolist() == expected


def check_clean(one: ArtifactBackend) -> None:
    assert one._acl.ledger.live_counts() == {}
    assert one._acl.ledger.usage_errors == []
    assert one._acl.calls_without_context == []


@pytest.mark.parametrize(("kind", "executor", "page_size"), CASES)
def test_answers_do_not_depend_on_pages_arrivals_or_neighbours(backend, kind, executor, page_size):
    num_pages = 4 - (-MAX_SEQ_LEN // page_size)
    for seed in (0, 1):
        one = backend(kind, page_size, num_pages, executor)
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
        check(requests)
        assert [request.output_tokens.size for request in requests[4:]] == [14, 14]
        assert core.pool.num_free == core.pool.num_usable
        core.close()
        check_clean(one)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_small_pages_make_preemptions(backend, kind):
    core = make_core(
        backend(kind, 16, 10), num_pages=10, max_batch=4, max_batch_tokens=24, reserve_pages=0.0
    )
    requests = [submit(core, prompt(30, i), 40) for i in range(4)]
    run(core)
    assert core.scheduler.num_preemptions > 0
    check(requests)
    core.close()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_padded_baseline_says_the_same(backend, kind):
    num_pages = 1 + 4 * 6
    core = make_core(
        backend(kind, 32, num_pages),
        num_pages=num_pages,
        max_batch=4,
        max_batch_tokens=24,
        cache="contiguous",
    )
    requests = [submit(core, prompt(n, n), 8) for n in (5, 4, 11, 6, 1)]
    run(core)
    check(requests)
    assert core.statistics().padding_tokens > 0
    core.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("executor", ["oracle", "openvino"])
def test_sampling_with_a_seed_is_the_same_in_company(backend, kind, executor):
    params = SamplingParams(max_tokens=12, temperature=2.0, seed=7)
    settings = {"num_pages": 30, "checked": True, "max_batch": 4}
    with Engine(backend(kind, 32, 30, executor), **settings) as engine:
        alone = engine.generate(prompt(9, 1), params)[0].token_ids
        others = SamplingParams(max_tokens=20, temperature=1.0)
        greedy = SamplingParams(max_tokens=25)
        prompts = [prompt(5, 2), prompt(9, 1), prompt(40, 3)]
        crowd = engine.generate(prompts, [others, params, greedy])
        assert crowd[1].token_ids == alone
        assert alone != continuation(prompt(9, 1), 12)
        assert crowd[2].token_ids == continuation(prompt(40, 3), len(crowd[2].token_ids))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_steps_cancellations_and_failures_leave_no_handle(backend, kind):
    """Case 11: a bounded number of handles during steps, none after the end."""
    faults = FaultPlan(
        execute={10 * n: 507011 for n in range(1, 15)},
        launch={37 * n: 500002 for n in range(1, 4)},
    )
    one = backend(kind, 16, 60, faults=faults)
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
                    check([request])
            live.append(sum(one._acl.ledger.live_counts().values()))
        assert engine.statistics().failed_steps > 0
        assert engine.statistics().pool.held == 0
        assert len(set(live[1:])) == 1
    check_clean(one)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_no_failure_of_any_call_leaks(backend, kind):
    """Malloc, pinned malloc, load and copies fail one after the other while the engine opens."""
    for what, code in (("malloc", 207001), ("malloc_host", 207001), ("load", 545001)):
        for number in (1, 2, 3, 4, 6):
            one = backend(kind, 16, 20, faults=FaultPlan(**{what: {number: code}}))
            try:
                with Engine(one, num_pages=20, max_batch=4) as engine:
                    answer = engine.generate(prompt(4, 1), SamplingParams(max_tokens=3))[0]
                assert answer.token_ids == continuation(prompt(4, 1), 3)
            except Exception as error:
                assert str(code) in str(error)  # noqa: PT017
            check_clean(one)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_copies_that_fail_end_their_step_alone(backend, kind):
    faults = FaultPlan(memcpy=dict.fromkeys((25, 38), 500003))
    one = backend(kind, 16, 30, faults=faults)
    core = make_core(one, num_pages=30, max_batch=4, max_batch_tokens=16)
    requests = []
    for n in range(12):
        requests.append(submit(core, prompt(3 + n, n), 6))
        core.step()
    run(core)
    failed = [request for request in requests if request.error is not None]
    assert 0 < len(failed) < len(requests)
    assert all("500003" in str(request.error) for request in failed)
    check([request for request in requests if request.error is None])
    assert core.pool.num_free == core.pool.num_usable
    core.close()
    check_clean(one)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_two_engines_on_one_acl_close_in_either_order(artefacts, kind):
    for first in (0, 1):
        acl = HostAcl(AclOptions(executor="oracle", checked=True))
        artifact = Artifact.open(artefacts(kind, 16, 20))
        settings = {"num_pages": 20, "max_batch": 4}
        engines = [Engine(ArtifactBackend(artifact, acl), **settings) for _ in range(2)]
        params = SamplingParams(max_tokens=4)
        engines[first].close()
        other = engines[1 - first]
        assert other.generate(prompt(6, 2), params)[0].token_ids == continuation(prompt(6, 2), 4)
        other.close()
        assert acl.ledger.live_counts() == {}

"""The engine on a real `.om` through ACL: answers equal the closed formula, however they ran."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from closed_form import make_core, run, submit
from formula_graph import MAX_SEQ_LEN, VOCAB, continuation, write_artifact

from pagedom.runtime.acl.faults import FaultPlan
from pagedom.runtime.acl.host import HostAcl
from pagedom.runtime.acl.options import AclOptions
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.engine import Engine
from pagedom.runtime.request import RequestFailed
from pagedom.runtime.sampling_params import SamplingParams

HOSTS = [
    *(("oracle", size) for size in (16, 32, 64, 128)),
    *(("openvino", size) for size in (32, 64, 128)),
]


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory) -> dict[int, Path]:
    root = tmp_path_factory.mktemp("formula")
    return {size: write_artifact(root / f"s{size}", size) for size in (16, 32, 64, 128)}


def prompt(n: int, salt: int) -> list[int]:
    return [(11 * i * i + 5 * i + 3 * salt) % VOCAB for i in range(n)]


def backend(folder: Path, executor: str = "oracle", **options) -> ArtifactBackend:
    settings = AclOptions(executor=executor, threads=1, checked=True, **options)
    return ArtifactBackend(Artifact.open(folder), HostAcl(settings))


def check(requests) -> None:
    for request in requests:
        expected = continuation(request.prompt.tolist(), request.output_tokens.size)
        assert request.output_tokens.tolist() == expected


@pytest.mark.parametrize(("executor", "page_size"), HOSTS)
def test_answers_do_not_depend_on_pages_arrivals_or_neighbours(artefacts, executor, page_size):
    pages_of_one = -(-MAX_SEQ_LEN // page_size)
    for seed in (0, 1):
        core = make_core(
            backend(artefacts[page_size], executor),
            num_pages=1 + pages_of_one + 3,
            max_batch=4,
            max_batch_tokens=24,
            reserve_pages=0.0,
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


def test_small_pages_make_preemptions(artefacts):
    core = make_core(
        backend(artefacts[16]), num_pages=10, max_batch=4, max_batch_tokens=64, reserve_pages=0.0
    )
    requests = [submit(core, prompt(30, i), 40) for i in range(4)]
    run(core)
    assert core.scheduler.num_preemptions > 0
    check(requests)
    core.close()


@pytest.mark.parametrize("executor", ["oracle", "openvino"])
def test_the_padded_baseline_says_the_same(artefacts, executor):
    core = make_core(
        backend(artefacts[32], executor),
        num_pages=1 + 3 * 6,
        max_batch=4,
        max_batch_tokens=96,
        cache="contiguous",
    )
    requests = [submit(core, prompt(n, n), 8) for n in (5, 40, 17, 64, 1)]
    run(core)
    check(requests)
    assert core.statistics().padding_tokens > 0
    core.close()


@pytest.mark.parametrize("executor", ["oracle", "openvino"])
def test_sampling_with_a_seed_is_the_same_in_company(artefacts, executor):
    """Case 20 through the device's logits."""
    params = SamplingParams(max_tokens=12, temperature=2.0, seed=7)
    with Engine(backend(artefacts[32], executor), num_pages=30, checked=True) as engine:
        alone = engine.generate(prompt(9, 1), params)[0].token_ids
        others = SamplingParams(max_tokens=20, temperature=1.0)
        crowd = engine.generate(
            [prompt(5, 2), prompt(9, 1), prompt(40, 3)], [others, params, SamplingParams()]
        )
        assert crowd[1].token_ids == alone
        assert alone != continuation(prompt(9, 1), 12)
        assert crowd[2].token_ids == continuation(prompt(40, 3), len(crowd[2].token_ids))


def test_steps_cancellations_and_failures_leave_no_handle(artefacts):
    """Case 11: a bounded number of handles during steps, none after the end."""
    acl_backend = backend(
        artefacts[16], faults=FaultPlan(execute={10 * n: 507011 for n in range(1, 21)})
    )
    acl = acl_backend._acl
    with Engine(acl_backend, num_pages=60, max_batch=4, max_batch_tokens=16) as engine:
        live = []
        for burst in range(10):
            requests = [
                engine.submit(prompt(3 + i, burst), SamplingParams(max_tokens=20)) for i in range(5)
            ]
            requests[4].cancel()
            for request in requests[:4]:
                try:
                    request.result()
                except RequestFailed as failure:
                    assert "507011" in str(failure)  # noqa: PT017 - some fail, some do not
            live.append(sum(acl.ledger.live_counts().values()))
        assert engine.statistics().failed_steps > 0
        assert engine.statistics().pool.held == 0
        assert len(set(live[1:])) == 1
    assert acl.ledger.live_counts() == {}
    assert acl.ledger.usage_errors == []
    assert acl.calls_without_context == []


def test_load_and_unload_twenty_times(artefacts):
    counts = []
    for turn in range(20):
        one = backend(artefacts[16])
        with Engine(one, num_pages=20) as engine:
            answer = engine.generate(prompt(4, 1), SamplingParams(max_tokens=3))[0]
        assert answer.token_ids == continuation(prompt(4, 1), 3)
        assert one._acl.ledger.live_counts() == {}
        if turn in (5, 19):
            gc.collect()
            counts.append(len(gc.get_objects()))
    assert counts[1] - counts[0] < 2000


def test_two_engines_on_one_acl_close_in_either_order(artefacts):
    """Case 12 (1) and (3)."""
    for first in (0, 1):
        acl = HostAcl(AclOptions(executor="oracle", checked=True))
        artifact = Artifact.open(artefacts[16])
        engines = [Engine(ArtifactBackend(artifact, acl), num_pages=20) for _ in range(2)]
        params = SamplingParams(max_tokens=4)
        for engine in (*engines, engines[first]):
            answer = engine.generate(prompt(6, 2), params)[0].token_ids
            assert answer == continuation(prompt(6, 2), 4)
        engines[first].close()
        other = engines[1 - first]
        assert other.generate(prompt(6, 2), params)[0].token_ids == continuation(prompt(6, 2), 4)
        other.close()
        assert acl.ledger.live_counts() == {}


def test_a_failing_allocation_is_reported_and_frees_everything(artefacts):
    one = backend(artefacts[16], faults=FaultPlan(malloc={3: 207001}))
    with pytest.raises(Exception, match="207001"):
        Engine(one, num_pages=20)
    assert one._acl.ledger.live_counts() == {}

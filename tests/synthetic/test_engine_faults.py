"""The engine over a failing device: the n-th call of a kind fails, for every n until none is left.

Whatever fails, requests end with the right tokens or with the error, those that were not part of
the failing step go on, and after the end nothing is left of memory, handles or pages.
"""

from __future__ import annotations

import gc
import itertools
import random
from pathlib import Path

import pytest
from formula_graph import VOCAB, continuation, write_artifact

from pagedom.runtime.acl.error_table import DEVICE_LOST
from pagedom.runtime.acl.errors import AclError
from pagedom.runtime.acl.faults import FaultPlan
from pagedom.runtime.acl.host import HostAcl
from pagedom.runtime.acl.options import AclOptions
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.engine import Engine, EngineError
from pagedom.runtime.request import RequestFailed
from pagedom.runtime.sampling_params import SamplingParams

PAGE = 16
MAX_BATCH = 2
TOKENS = 4
PROMPTS = [[5, 9, 2], list(range(18)), [40, 41], [7] * 5, [1]]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.open(write_artifact(tmp_path_factory.mktemp("faults") / "m", PAGE))


class Trial:
    """One life of an engine on a device with one fault."""

    def __init__(self, artifact: Artifact, kind: str, number: int, code: int) -> None:
        faults = FaultPlan(**{kind: {number: code}})
        self.acl = HostAcl(AclOptions(executor="oracle", threads=1, checked=True, faults=faults))
        self.kind, self.number, self.code = kind, number, code
        self.failed: list[int] = []  # prompts that ended with the error
        self.errors: list[str] = []
        self.opened = self.usable = False
        try:
            engine = Engine(
                ArtifactBackend(artifact, self.acl),
                num_pages=20,
                max_batch=MAX_BATCH,
                max_batch_tokens=16,
                checked=True,
            )
        except AclError as error:
            self.errors.append(str(error))
            return
        self.opened = True
        with engine:
            self._serve(engine)

    @property
    def fired(self) -> bool:
        """Whether the device got as far as the fault."""
        return self.acl._core.faults._counts[self.kind] >= self.number

    def _serve(self, engine: Engine) -> None:
        params = SamplingParams(max_tokens=TOKENS)
        requests = [engine.submit(prompt, params) for prompt in PROMPTS]
        for place, (request, prompt) in enumerate(zip(requests, PROMPTS)):
            try:
                answer = request.result()
            except RequestFailed as failure:
                self.errors.append(str(failure))
                self.failed.append(place)
            else:
                assert list(answer.token_ids) == continuation(prompt, TOKENS)
        # There is one fault: if it hits the first of these, the second is served.
        for _ in range(2):
            try:
                assert engine.statistics().pool.held == 0
                after = engine.generate([[3, 1, 4]], params)[0]
            except (EngineError, RequestFailed) as error:
                self.errors.append(str(error))
            else:
                assert list(after.token_ids) == continuation([3, 1, 4], TOKENS)
                self.usable = True
                return

    def check_nothing_is_left(self) -> None:
        """Fail if a handle or memory is alive, or something was used wrongly on the way."""
        assert all(str(self.code) in error for error in self.errors)
        assert self.acl.ledger.report() == ""
        assert self.acl.ledger.usage_errors == []
        assert self.acl.calls_without_context == []


# One fault of each kind that a step survives, with a code that the device may give there.
SURVIVED = [
    ("malloc", 207001),
    ("malloc_host", 207001),
    ("memcpy", 107000),
    ("launch", 145000),
    ("execute", 507011),
    ("sync", 507011),
    ("load", 545001),
]


@pytest.mark.parametrize(("kind", "code"), SURVIVED)
def test_a_fault_ends_the_requests_of_its_step_and_no_others(artifact, kind, code):
    assert code not in DEVICE_LOST
    outcomes = set()
    for number in itertools.count(1):
        trial = Trial(artifact, kind, number, code)
        trial.check_nothing_is_left()
        if not trial.fired:
            break
        assert not trial.opened or trial.usable, f"{kind} {number}: the engine did not go on"
        assert len(trial.failed) <= MAX_BATCH
        outcomes.add((trial.opened, bool(trial.failed)))
    assert number > 1, f"no call of kind {kind} was made"
    assert not trial.failed
    expected = {
        "load": {(False, False)},
        "malloc": {(False, False)},
        "malloc_host": {(False, False)},
    }
    if kind in expected:
        assert outcomes == expected[kind]
    else:
        assert (True, True) in outcomes


@pytest.mark.parametrize("code", [507015, 507046, 507053, 507899])
@pytest.mark.parametrize("kind", ["execute", "sync"])
def test_a_lost_device_ends_every_request_and_the_engine(artifact, kind, code):
    assert code in DEVICE_LOST
    for number in (1, 3):
        trial = Trial(artifact, kind, number, code)
        trial.check_nothing_is_left()
        assert trial.fired
        assert trial.opened
        assert not trial.usable
        # What had ended before is right (checked in the trial); the rest has the error.
        assert trial.failed == list(range(len(PROMPTS) - len(trial.failed), len(PROMPTS)))


def resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def test_case_11_a_thousand_steps(artifact):
    """Changing batch sizes, 50 aborts, 20 failed executes: bounded while it runs, nothing after."""
    faults = FaultPlan(execute={40 + 47 * n: 507011 for n in range(20)})
    acl = HostAcl(AclOptions(executor="oracle", threads=1, checked=True, faults=faults))
    chance = random.Random(0)
    requests, live, resident, aborted = [], [], [], 0
    with Engine(ArtifactBackend(artifact, acl), num_pages=80, max_batch=8) as engine:
        for step in range(1000):
            running = [request for request in requests if not request.finished]
            while len(running) < chance.randint(1, 8):
                prompt = [chance.randrange(VOCAB) for _ in range(chance.randint(1, 30))]
                params = SamplingParams(max_tokens=chance.randint(2, 20))
                running.append(engine.submit(prompt, params))
                requests.append(running[-1])
            if step % 20 == 10:
                chance.choice(running).cancel()
                aborted += 1
            assert engine.step()
            if step % 100 == 0:
                live.append(sum(acl.ledger.live_counts().values()))
                resident.append(resident_mib())
        assert engine.statistics().failed_steps == 20
    assert aborted == 50
    assert len(set(live)) == 1, "what lives during steps has a bound of its own"
    assert resident[-1] - resident[1] < 5
    assert acl.ledger.created == acl.ledger.destroyed
    assert acl.ledger.report() == ""
    assert acl.ledger.usage_errors == []
